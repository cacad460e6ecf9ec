#include "kernels/isa_functions.h"
#include "kernels/packed_decode.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

template <typename D>
void Expand(const PackedMatrix& w, int64_t row_begin, int64_t row_end, float* out) {
  const int64_t blocks = w.cols / kDecodeElements;
  const int64_t tail = w.cols % kDecodeElements;
  for (int64_t r = row_begin; r < row_end; ++r) {
    const std::byte* p = w.data + r * w.row_bytes;
    Vec low, high;
    for (int64_t b = 0; b < blocks; ++b) {
      D::Decode(p, &low, &high);
      Store(out, low);
      Store(out + kLanes, high);
      p += D::kBytes;
      out += kDecodeElements;
    }
    if (tail > 0) {
      float padded[kDecodeElements];
      DecodePart<D>(p, tail, &low, &high);
      Store(padded, low);
      Store(padded + kLanes, high);
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

}  // namespace ripplekv::RIPPLEKV_ISA
