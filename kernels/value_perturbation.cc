#include "kernels/value_perturbation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/bf16.h"

namespace ripplekv {
namespace {

double ToDouble(float x) { return x; }
double ToDouble(uint16_t x) { return Bf16ToFloat(x); }
void Put(double x, float* out) { *out = static_cast<float>(x); }
void Put(double x, uint16_t* out) { *out = FloatToBf16(static_cast<float>(x)); }

template <typename T>
void PerturbRow(const T* v, T* out, int head_dim, double alpha, const NoiseKey& noise,
                uint32_t kv_head, uint32_t position) {
  double squares = 0;
  for (int c = 0; c < head_dim; ++c) squares += ToDouble(v[c]) * ToDouble(v[c]);
  const double strength = alpha * std::sqrt(squares);
  for (int c = 0; c < head_dim; c += 4) {
    const auto normals = NoiseBlock(noise, kv_head, position, static_cast<uint32_t>(c / 4));
    for (int i = 0; i < std::min(4, head_dim - c); ++i) {
      Put(ToDouble(v[c + i]) + strength * normals[i], out + c + i);
    }
  }
}

template <typename T>
void Perturb(const PerturbArgs& args, int64_t row_begin, int64_t row_end) {
  const int d = args.head_dim;
  const double alpha = static_cast<double>(args.eta) / std::sqrt(static_cast<double>(d));
  const auto copy = [&](const T* from, T* to, int64_t begin, int64_t end) {
    if (from != to && begin < end) {
      std::memcpy(to + begin * d, from + begin * d,
                  static_cast<size_t>((end - begin) * d) * sizeof(T));
    }
  };
  for (int h = 0; h < args.kv_heads; ++h) {
    const T* from = static_cast<const T*>(args.source) + h * args.kv_head_stride;
    T* to = static_cast<T*>(args.destination) + h * args.kv_head_stride;
    if (args.eta == 0) {
      copy(from, to, row_begin, row_end);
      continue;
    }
    const int64_t first = std::clamp(args.first_row, row_begin, row_end);
    const int64_t last = std::clamp(args.last_row, first, row_end);
    copy(from, to, row_begin, first);
    for (int64_t r = first; r < last; ++r) {
      PerturbRow(from + r * d, to + r * d, d, alpha, args.noise, static_cast<uint32_t>(h),
                 args.first_position + static_cast<uint32_t>(r));
    }
    copy(from, to, last, row_end);
  }
}

}  // namespace

void PerturbValues(const PerturbArgs& args, int64_t row_begin, int64_t row_end) {
  if (args.type == KvType::kF32) {
    Perturb<float>(args, row_begin, row_end);
  } else {
    Perturb<uint16_t>(args, row_begin, row_end);
  }
}

}  // namespace ripplekv
