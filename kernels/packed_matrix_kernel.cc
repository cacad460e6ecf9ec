#include "kernels/isa_functions.h"
#include "kernels/packed_decode.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

RIPPLEKV_INLINE void Put(float* out, Vec a) { Store(out, a); }
RIPPLEKV_INLINE void Put(uint16_t* out, Vec a) { StoreBf16(out, a); }

template <typename D, typename T>
void Expand(const PackedMatrix& w, int64_t row_begin, int64_t row_end, T* out) {
  const int64_t blocks = w.cols / kDecodeElements;
  const int64_t tail = w.cols % kDecodeElements;
  for (int64_t r = row_begin; r < row_end; ++r) {
    const std::byte* p = w.data + r * w.row_bytes;
    Vec low, high;
    for (int64_t b = 0; b < blocks; ++b) {
      D::Decode(p, &low, &high);
      Put(out, low);
      Put(out + kLanes, high);
      p += D::kBytes;
      out += kDecodeElements;
    }
    if (tail > 0) {
      T padded[kDecodeElements];
      DecodePart<D>(p, tail, &low, &high);
      Put(padded, low);
      Put(padded + kLanes, high);
      for (int64_t i = 0; i < tail; ++i) out[i] = padded[i];
      out += tail;
    }
  }
}

}  // namespace

void ExpandRows(const PackedMatrix& w, int64_t row_begin, int64_t row_end, float* out) {
  WithDecoder(w.type, [&](auto d) RIPPLEKV_INLINE_LAMBDA {
    Expand<decltype(d)>(w, row_begin, row_end, out);
  });
}

void ExpandRowsBf16(const PackedMatrix& w, int64_t row_begin, int64_t row_end, uint16_t* out) {
  WithDecoder(w.type, [&](auto d) RIPPLEKV_INLINE_LAMBDA {
    Expand<decltype(d)>(w, row_begin, row_end, out);
  });
}

}  // namespace ripplekv::RIPPLEKV_ISA
