// Products of quantised weights with activations of 16 bits, by dot products of bytes.
//
// Weights enter as unsigned bytes u = q + offset (Q4_1: 0, Q4_0: 8, Q8_0: 128), activations as 256
// * high + low with both halves signed bytes. A group's integer sum is exact: below 2^28.
#include "kernels/panel_linear_avx512vnni.h"

#include "kernels/panel_decode.h"
#include "kernels/panel_store.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

/// A group of 32 columns of one row of activations.
struct QuantizedGroup {
  int8_t high[kPanelGroup];
  int8_t low[kPanelGroup];
  float scale;
  float sum;           // scale * sum of q
  int32_t offset_8;    // -8 * sum of q
  int32_t offset_128;  // -128 * sum of q
};
static_assert(sizeof(QuantizedGroup) == quantized_input_bytes(1, kPanelGroup));

constexpr float kLargest = 32639;  // 127 * 256 + 127
constexpr int kTile = 4;           // rows of activations whose sums run side by side

void QuantizeGroup(const float* x, QuantizedGroup* out) {
  const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
  const __m512i magnitude = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(x0)),
                                             _mm512_castps_si512(_mm512_abs_ps(x1)));
  const int32_t bits = _mm512_reduce_max_epi32(magnitude);
  float largest = LoadAs<float>(&bits);
  if (bits >= 0x7f800000) {
    __builtin_memset(out, 0, sizeof *out);
    out->scale = out->sum = __builtin_nanf("");
    return;
  }
  if (largest < 0x1p-96f) largest = 0x1p-96f;
  const __m512 inverse = _mm512_set1_ps(kLargest / largest);
  const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, inverse));
  const __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, inverse));
  // 256 * high + low: low is the signed low byte.
  const auto put = [](__m512i q, int8_t* high, int8_t* low) RIPPLEKV_INLINE_LAMBDA {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(q));
    const __m512i rounded = _mm512_add_epi32(q, _mm512_set1_epi32(128));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high),
                     _mm512_cvtepi32_epi8(_mm512_srai_epi32(rounded, 8)));
  };
  put(q0, out->high, out->low);
  put(q1, out->high + 16, out->low + 16);
  const int32_t sum = _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
  out->scale = largest / kLargest;
  out->sum = out->scale * static_cast<float>(sum);
  out->offset_8 = -8 * sum;
  out->offset_128 = -128 * sum;
}

// Four products of unsigned (w) and signed (x, broadcast) bytes a lane. GCC 12 copies the
// accumulator of the intrinsic through the stack.
RIPPLEKV_INLINE void Dot(__m512i& sum, __m512i w, const int8_t* x) {
  const int32_t& four = *reinterpret_cast<const int32_t*>(x);
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(four));
}

/// The integer weights of a group, 4 columns a vector, and its scales.
struct IntegerGroup {
  __m512i w[8];
  __m512 d, m;
};

template <TensorType type>
struct Integers;

RIPPLEKV_INLINE void OpenNibbles(const std::byte* numbers, __m512i (&w)[8]) {
  const __m512i mask = _mm512_set1_epi8(15);
  Unroll<4>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
    const __m512i q = _mm512_load_si512(numbers + v.value * 64);
    w[v.value] = _mm512_and_si512(q, mask);
    w[v.value + 4] = _mm512_and_si512(_mm512_srli_epi16(q, 4), mask);
  });
}

RIPPLEKV_INLINE __m512 OpenHalves(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}

template <>
struct Integers<TensorType::kQ4_0> : PanelQ4_0 {
  static constexpr bool kHasMinima = false;
  static RIPPLEKV_INLINE void Open(const std::byte* numbers, const std::byte* scales,
                                   IntegerGroup* g) {
    OpenNibbles(numbers, g->w);
    g->d = OpenHalves(scales);
  }
  static RIPPLEKV_INLINE __m512i Start(const QuantizedGroup& x) {
    return _mm512_set1_epi32(x.offset_8);
  }
};

template <>
struct Integers<TensorType::kQ4_1> : PanelQ4_1 {
  static constexpr bool kHasMinima = true;
  static RIPPLEKV_INLINE void Open(const std::byte* numbers, const std::byte* scales,
                                   IntegerGroup* g) {
    OpenNibbles(numbers, g->w);
    g->d = OpenHalves(scales);
    g->m = OpenHalves(scales + 32);
  }
  static RIPPLEKV_INLINE __m512i Start(const QuantizedGroup&) { return _mm512_setzero_si512(); }
};

template <>
struct Integers<TensorType::kQ8_0> : PanelQ8_0 {
  static constexpr bool kHasMinima = false;
  static RIPPLEKV_INLINE void Open(const std::byte* numbers, const std::byte* scales,
                                   IntegerGroup* g) {
    const __m512i sign = _mm512_set1_epi8(-128);
    Unroll<8>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
      g->w[v.value] = _mm512_xor_si512(_mm512_load_si512(numbers + v.value * 64), sign);
    });
    g->d = OpenHalves(scales);
  }
  static RIPPLEKV_INLINE __m512i Start(const QuantizedGroup& x) {
    return _mm512_set1_epi32(x.offset_128);
  }
};

/// total[i] += the group's part of rows [0, rows) of the activations.
template <typename T, int rows>
RIPPLEKV_INLINE void AddGroup(const IntegerGroup& g, const QuantizedGroup* x,
                              float (*total)[kLanes]) {
  __m512i high[rows], low[rows];
  Unroll<rows>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
    high[i.value] = _mm512_setzero_si512();
    low[i.value] = T::Start(x[i.value]);
  });
  Unroll<8>([&](auto v) RIPPLEKV_INLINE_LAMBDA {
    Unroll<rows>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      Dot(high[i.value], g.w[v.value], x[i.value].high + 4 * v.value);
      Dot(low[i.value], g.w[v.value], x[i.value].low + 4 * v.value);
    });
  });
  Unroll<rows>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
    const __m512 sum =
        _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[i.value], 8), low[i.value]));
    const __m512 scale = _mm512_mul_ps(g.d, _mm512_set1_ps(x[i.value].scale));
    __m512 y = _mm512_fmadd_ps(sum, scale, _mm512_load_ps(total[i.value]));
    if constexpr (T::kHasMinima) y = _mm512_fmadd_ps(g.m, _mm512_set1_ps(x[i.value].sum), y);
    _mm512_store_ps(total[i.value], y);
  });
}

template <typename T>
void Linear(const PanelMatrix& w, const LinearInput& input, float* y, int64_t y_stride, bool add,
            int64_t panel_begin, int64_t panel_end) {
  const int m = input.m;
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const Panel panel = PanelAt<T>(w, p);
    const QuantizedGroup* x = reinterpret_cast<const QuantizedGroup*>(input.quantized);
    alignas(64) float total[kPanelLinearMaxRows][kLanes];
    for (int i = 0; i < m; ++i) Store(total[i], Zero());
    for (int64_t g = 0; g < panel.groups; ++g, x += m) {
      const std::byte* numbers = panel.numbers + g * T::kNumberBytes;
      const std::byte* scales = panel.scales + g * T::kScaleBytes;
      PrefetchAfterGroup<T>(panel, g);
      IntegerGroup group;
      T::Open(numbers, scales, &group);
      int i = 0;
      for (; i + kTile <= m; i += kTile) AddGroup<T, kTile>(group, x + i, total + i);
      switch (m - i) {
        case 1:
          AddGroup<T, 1>(group, x + i, total + i);
          break;
        case 2:
          AddGroup<T, 2>(group, x + i, total + i);
          break;
        case 3:
          AddGroup<T, 3>(group, x + i, total + i);
          break;
      }
    }
    StorePanel(total, m, p, w.rows, y, y_stride, add);
  }
}

}  // namespace

void QuantizeInput(const LinearInput& input, int row_begin, int row_end, int64_t group_begin,
                   int64_t group_end) {
  QuantizedGroup* out = reinterpret_cast<QuantizedGroup*>(input.quantized);
  for (int i = row_begin; i < row_end; ++i) {
    for (int64_t g = group_begin; g < group_end; ++g) {
      QuantizeGroup(input.x + i * input.x_stride + g * kPanelGroup, out + g * input.m + i);
    }
  }
}

void PanelLinearInt16(const PanelMatrix& w, const LinearInput& input, float* y, int64_t y_stride,
                      bool add, int64_t panel_begin, int64_t panel_end) {
  switch (w.type) {
    case TensorType::kQ4_0:
      return Linear<Integers<TensorType::kQ4_0>>(w, input, y, y_stride, add, panel_begin,
                                                 panel_end);
    case TensorType::kQ4_1:
      return Linear<Integers<TensorType::kQ4_1>>(w, input, y, y_stride, add, panel_begin,
                                                 panel_end);
    case TensorType::kQ8_0:
      return Linear<Integers<TensorType::kQ8_0>>(w, input, y, y_stride, add, panel_begin,
                                                 panel_end);
    default:
      __builtin_unreachable();
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
