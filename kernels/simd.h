// Sixteen fp32 lanes. Included by the files that CMake compiles once per instruction set, with
// RIPPLEKV_ISA naming the inner namespace; everything here is always inlined, so nothing compiled
// for a wide machine can be linked into a plain one. For the same reason those files call no inline
// function or template from outside their namespace.
//
// All widths do the same operations on the same lanes in the same order. Built with
// -ffp-contract=off.
#pragma once

#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef RIPPLEKV_ISA
#error "Only for files that are compiled per instruction set"
#endif

#define RIPPLEKV_INLINE inline __attribute__((always_inline))
#define RIPPLEKV_INLINE_LAMBDA __attribute__((always_inline))

namespace ripplekv::RIPPLEKV_ISA {

inline constexpr int kLanes = 16;

template <typename T>
RIPPLEKV_INLINE T LoadAs(const void* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

template <int kValue>
struct Int {
  static constexpr int value = kValue;
};

/// f(Int<0>), f(Int<1>), ..., f(Int<n - 1>), expanded before the compiler chooses registers.
template <int n, typename F>
RIPPLEKV_INLINE void Unroll(const F& f) {
  if constexpr (n > 0) {
    Unroll<n - 1>(f);
    f(Int<n - 1>());
  }
}

#if defined(__AVX512F__)

struct Vec {
  __m512 v;
};

RIPPLEKV_INLINE Vec Zero() { return {_mm512_setzero_ps()}; }
RIPPLEKV_INLINE Vec Set(float x) { return {_mm512_set1_ps(x)}; }
RIPPLEKV_INLINE Vec Load(const float* p) { return {_mm512_loadu_ps(p)}; }
RIPPLEKV_INLINE void Store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
RIPPLEKV_INLINE Vec Add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
RIPPLEKV_INLINE Vec Sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
RIPPLEKV_INLINE Vec Mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
RIPPLEKV_INLINE Vec Div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
RIPPLEKV_INLINE Vec Fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
/// The second operand where either is a NaN.
RIPPLEKV_INLINE Vec Max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
RIPPLEKV_INLINE Vec Min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
/// yes where a < b, else no.
RIPPLEKV_INLINE Vec IfLess(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
/// Whether any lane of a is greater than b's.
RIPPLEKV_INLINE bool AnyGreater(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0;
}
/// Lanes 1, 0, 3, 2, ...
RIPPLEKV_INLINE Vec SwapPairs(Vec a) { return {_mm512_permute_ps(a.v, 0xb1)}; }
/// 2^n from 1.5 * 2^23 + n.
RIPPLEKV_INLINE Vec PowerOfTwo(Vec t) {
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(t.v), 23),
                                               _mm512_set1_epi32(0x3f800000)))};
}
RIPPLEKV_INLINE Vec LoadBf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
}
/// 32 numbers: those with even and those with odd numbers, which takes no shuffling.
RIPPLEKV_INLINE void LoadBf16Pairs(const uint16_t* p, Vec* even, Vec* odd) {
  const __m512i pairs = _mm512_loadu_si512(p);
  *even = {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
  *odd = {_mm512_castsi512_ps(
      _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
RIPPLEKV_INLINE Vec LoadHalf(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
RIPPLEKV_INLINE Vec LoadInt8(const void* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
RIPPLEKV_INLINE void StoreBf16(uint16_t* p, Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  const __m512i chosen =
      _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), rounded, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(chosen));
}

/// The 16 values d * q + m of a 4-bit group.
struct NibbleTable {
  Vec values;
};
RIPPLEKV_INLINE NibbleTable MakeNibbleTable(float d, float m) {
  const Vec q = {_mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)};
  return {Fma(q, Set(d), Set(m))};
}
RIPPLEKV_INLINE void LookUp(NibbleTable table, const void* bytes, Vec* low, Vec* high) {
  const __m512i q = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  *low = {_mm512_permutexvar_ps(q, table.values.v)};  // reads the low four bits only
  *high = {_mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), table.values.v)};
}

/// The four lanes left after adding lane + 8 and lane + 4, of four vectors side by side.
RIPPLEKV_INLINE __m512 FoldFour(Vec a, Vec b, Vec c, Vec d) {
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xee));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
/// out[0 ... 3] = Sum of each.
RIPPLEKV_INLINE void StoreSums(float* out, Vec a, Vec b, Vec c, Vec d) {
  __m512 x = FoldFour(a, b, c, d);
  x = _mm512_add_ps(x, _mm512_permute_ps(x, 0x4e));
  x = _mm512_add_ps(x, _mm512_permute_ps(x, 0xb1));
  const __m512i every_fourth = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(every_fourth, x)));
}
RIPPLEKV_INLINE __m256 LowHalf(Vec a) { return _mm512_castps512_ps256(a.v); }
RIPPLEKV_INLINE __m256 HighHalf(Vec a) { return _mm512_extractf32x8_ps(a.v, 1); }

#elif defined(__AVX2__)

struct Vec {
  __m256 lo, hi;
};

RIPPLEKV_INLINE Vec Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
RIPPLEKV_INLINE Vec Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
RIPPLEKV_INLINE Vec Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
RIPPLEKV_INLINE void Store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
RIPPLEKV_INLINE Vec Add(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
RIPPLEKV_INLINE Vec Sub(Vec a, Vec b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
RIPPLEKV_INLINE Vec Mul(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
RIPPLEKV_INLINE Vec Div(Vec a, Vec b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
RIPPLEKV_INLINE Vec Fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
RIPPLEKV_INLINE Vec Max(Vec a, Vec b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
RIPPLEKV_INLINE Vec Min(Vec a, Vec b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
RIPPLEKV_INLINE Vec IfLess(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
RIPPLEKV_INLINE bool AnyGreater(Vec a, Vec b) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ),
                                         _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))) != 0;
}
RIPPLEKV_INLINE Vec SwapPairs(Vec a) {
  return {_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
}
RIPPLEKV_INLINE __m256 PowerOfTwo8(__m256 t) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(t), 23),
                                              _mm256_set1_epi32(0x3f800000)));
}
RIPPLEKV_INLINE Vec PowerOfTwo(Vec t) { return {PowerOfTwo8(t.lo), PowerOfTwo8(t.hi)}; }
RIPPLEKV_INLINE __m256 LoadBf16x8(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
RIPPLEKV_INLINE Vec LoadBf16(const uint16_t* p) { return {LoadBf16x8(p), LoadBf16x8(p + 8)}; }
RIPPLEKV_INLINE void LoadBf16Pairs(const uint16_t* p, Vec* even, Vec* odd) {
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  *even = {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
           _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
  *odd = {_mm256_castsi256_ps(_mm256_and_si256(lo, mask)),
          _mm256_castsi256_ps(_mm256_and_si256(hi, mask))};
}
RIPPLEKV_INLINE Vec LoadHalf(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
RIPPLEKV_INLINE Vec LoadInt8(const void* p) {
  const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(q, 8)))};
}
RIPPLEKV_INLINE __m256i RoundToBf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
RIPPLEKV_INLINE void StoreBf16(uint16_t* p, Vec a) {
  const __m256i packed = _mm256_packus_epi32(RoundToBf16(a.lo), RoundToBf16(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

struct NibbleTable {
  Vec d, m;
};
RIPPLEKV_INLINE NibbleTable MakeNibbleTable(float d, float m) { return {Set(d), Set(m)}; }
RIPPLEKV_INLINE Vec Scale(NibbleTable table, __m128i q) {
  const Vec x = {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(q)),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(q, 8)))};
  return Fma(x, table.d, table.m);
}
RIPPLEKV_INLINE void LookUp(NibbleTable table, const void* bytes, Vec* low, Vec* high) {
  const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  const __m128i mask = _mm_set1_epi8(15);
  *low = Scale(table, _mm_and_si128(q, mask));
  *high = Scale(table, _mm_and_si128(_mm_srli_epi16(q, 4), mask));
}

RIPPLEKV_INLINE __m256 LowHalf(Vec a) { return a.lo; }
RIPPLEKV_INLINE __m256 HighHalf(Vec a) { return a.hi; }
RIPPLEKV_INLINE void StoreSums(float* out, Vec a, Vec b, Vec c, Vec d) {
  const __m256 a8 = _mm256_add_ps(a.lo, a.hi), b8 = _mm256_add_ps(b.lo, b.hi);
  const __m256 c8 = _mm256_add_ps(c.lo, c.hi), d8 = _mm256_add_ps(d.lo, d.hi);
  const __m256 ab =
      _mm256_add_ps(_mm256_permute2f128_ps(a8, b8, 0x20), _mm256_permute2f128_ps(a8, b8, 0x31));
  const __m256 cd =
      _mm256_add_ps(_mm256_permute2f128_ps(c8, d8, 0x20), _mm256_permute2f128_ps(c8, d8, 0x31));
  // Lanes of each half: 0 + 2 and 1 + 3 of a (b), then of c (d).
  const __m256 x = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  const __m256 y = _mm256_add_ps(_mm256_shuffle_ps(x, x, 0x88), _mm256_shuffle_ps(x, x, 0xdd));
  // y = a c a c | b d b d
  _mm_storeu_ps(out, _mm_unpacklo_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
}

#else

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));

struct Vec {
  Float4 q[4];
};

RIPPLEKV_INLINE Vec Set(float x) {
  const Float4 q = {x, x, x, x};
  return {{q, q, q, q}};
}
RIPPLEKV_INLINE Vec Zero() { return Set(0); }
RIPPLEKV_INLINE Vec Load(const float* p) {
  return {
      {LoadAs<Float4>(p), LoadAs<Float4>(p + 4), LoadAs<Float4>(p + 8), LoadAs<Float4>(p + 12)}};
}
RIPPLEKV_INLINE void Store(float* p, Vec a) { __builtin_memcpy(p, a.q, sizeof a.q); }
RIPPLEKV_INLINE Vec Add(Vec a, Vec b) {
  return {{a.q[0] + b.q[0], a.q[1] + b.q[1], a.q[2] + b.q[2], a.q[3] + b.q[3]}};
}
RIPPLEKV_INLINE Vec Sub(Vec a, Vec b) {
  return {{a.q[0] - b.q[0], a.q[1] - b.q[1], a.q[2] - b.q[2], a.q[3] - b.q[3]}};
}
RIPPLEKV_INLINE Vec Mul(Vec a, Vec b) {
  return {{a.q[0] * b.q[0], a.q[1] * b.q[1], a.q[2] * b.q[2], a.q[3] * b.q[3]}};
}
RIPPLEKV_INLINE Vec Div(Vec a, Vec b) {
  return {{a.q[0] / b.q[0], a.q[1] / b.q[1], a.q[2] / b.q[2], a.q[3] / b.q[3]}};
}
RIPPLEKV_INLINE Vec Fma(Vec a, Vec b, Vec c) { return Add(Mul(a, b), c); }
RIPPLEKV_INLINE Vec Max(Vec a, Vec b) {
  Vec c;
  for (int i = 0; i < 4; ++i) c.q[i] = a.q[i] > b.q[i] ? a.q[i] : b.q[i];
  return c;
}
RIPPLEKV_INLINE Vec Min(Vec a, Vec b) {
  Vec c;
  for (int i = 0; i < 4; ++i) c.q[i] = a.q[i] < b.q[i] ? a.q[i] : b.q[i];
  return c;
}
RIPPLEKV_INLINE Vec IfLess(Vec a, Vec b, Vec yes, Vec no) {
  Vec c;
  for (int i = 0; i < 4; ++i) c.q[i] = a.q[i] < b.q[i] ? yes.q[i] : no.q[i];
  return c;
}
RIPPLEKV_INLINE bool AnyGreater(Vec a, Vec b) {
  for (int i = 0; i < kLanes; ++i) {
    if (a.q[i / 4][i % 4] > b.q[i / 4][i % 4]) return true;
  }
  return false;
}
RIPPLEKV_INLINE Vec SwapPairs(Vec a) {
  Vec b;
  for (int i = 0; i < 4; ++i) b.q[i] = __builtin_shuffle(a.q[i], Int4{1, 0, 3, 2});
  return b;
}
RIPPLEKV_INLINE Vec PowerOfTwo(Vec t) {
  Vec c;
  for (int i = 0; i < 4; ++i) {
    const Int4 bits = (LoadAs<Int4>(&t.q[i]) << 23) + 0x3f800000;
    c.q[i] = LoadAs<Float4>(&bits);
  }
  return c;
}
RIPPLEKV_INLINE float HalfToFloat(uint16_t h) {
  // Shifts exponent and mantissa into place and rebiases by a multiplication, which also normalises
  // subnormals.
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fff) << 13;
  float f = LoadAs<float>(&magnitude) * 0x1p112f;
  uint32_t bits = LoadAs<uint32_t>(&f);
  if ((h & 0x7c00) == 0x7c00) bits |= 0x7f800000u;  // infinity and NaN
  bits |= static_cast<uint32_t>(h & 0x8000) << 16;
  return LoadAs<float>(&bits);
}
RIPPLEKV_INLINE Vec LoadBf16(const uint16_t* p) {
  Vec a;
  for (int i = 0; i < 16; ++i) {
    const uint32_t bits = static_cast<uint32_t>(LoadAs<uint16_t>(p + i)) << 16;
    a.q[i / 4][i % 4] = LoadAs<float>(&bits);
  }
  return a;
}
RIPPLEKV_INLINE void LoadBf16Pairs(const uint16_t* p, Vec* even, Vec* odd) {
  for (int i = 0; i < 4; ++i) {
    const Int4 pairs = LoadAs<Int4>(p + 8 * i);
    const Int4 low = pairs << 16, high = pairs & static_cast<int32_t>(0xffff0000u);
    even->q[i] = LoadAs<Float4>(&low);
    odd->q[i] = LoadAs<Float4>(&high);
  }
}
RIPPLEKV_INLINE Vec LoadHalf(const uint16_t* p) {
  Vec a;
  for (int i = 0; i < 16; ++i) a.q[i / 4][i % 4] = HalfToFloat(LoadAs<uint16_t>(p + i));
  return a;
}
RIPPLEKV_INLINE Vec LoadInt8(const void* p) {
  Vec a;
  for (int i = 0; i < 16; ++i) a.q[i / 4][i % 4] = static_cast<const int8_t*>(p)[i];
  return a;
}
RIPPLEKV_INLINE void StoreBf16(uint16_t* p, Vec a) {
  for (int i = 0; i < 16; ++i) {
    const float f = a.q[i / 4][i % 4];
    const uint32_t bits = LoadAs<uint32_t>(&f);
    const uint16_t rounded =
        (bits & 0x7fffffffu) > 0x7f800000u
            ? static_cast<uint16_t>((bits >> 16) | 0x40u)
            : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    __builtin_memcpy(p + i, &rounded, sizeof rounded);
  }
}

struct NibbleTable {
  Vec d, m;
};
RIPPLEKV_INLINE NibbleTable MakeNibbleTable(float d, float m) { return {Set(d), Set(m)}; }
RIPPLEKV_INLINE void LookUp(NibbleTable table, const void* bytes, Vec* low, Vec* high) {
  const uint8_t* q = static_cast<const uint8_t*>(bytes);
  Vec l, h;
  for (int i = 0; i < 16; ++i) {
    l.q[i / 4][i % 4] = static_cast<float>(q[i] & 15);
    h.q[i / 4][i % 4] = static_cast<float>(q[i] >> 4);
  }
  *low = Fma(l, table.d, table.m);
  *high = Fma(h, table.d, table.m);
}

RIPPLEKV_INLINE float Sum(Vec a) {
  const Float4 x = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
  return (x[0] + x[2]) + (x[1] + x[3]);
}
RIPPLEKV_INLINE float MaxLane(Vec a) {
  const Vec half = Max({{a.q[0], a.q[1], a.q[0], a.q[1]}}, {{a.q[2], a.q[3], a.q[2], a.q[3]}});
  float m = half.q[0][0];
  for (int i = 1; i < 8; ++i) m = half.q[i / 4][i % 4] > m ? half.q[i / 4][i % 4] : m;
  return m;
}
RIPPLEKV_INLINE void StoreSums(float* out, Vec a, Vec b, Vec c, Vec d) {
  out[0] = Sum(a);
  out[1] = Sum(b);
  out[2] = Sum(c);
  out[3] = Sum(d);
}

#endif

#if defined(__AVX2__)
RIPPLEKV_INLINE float HalfToFloat(uint16_t h) { return _cvtsh_ss(h); }
/// Lane + 8, then + 4, + 2, + 1.
RIPPLEKV_INLINE float Sum(Vec a) {
  const __m256 x8 = _mm256_add_ps(LowHalf(a), HighHalf(a));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
RIPPLEKV_INLINE float MaxLane(Vec a) {
  const __m256 x8 = _mm256_max_ps(LowHalf(a), HighHalf(a));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
#endif

/// The first n (below 16) lanes from memory, the others `rest`.
RIPPLEKV_INLINE Vec LoadPart(const float* p, int64_t n, float rest = 0) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = rest;
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return Load(lanes);
}
RIPPLEKV_INLINE void StorePart(float* p, int64_t n, Vec a) {
  float lanes[kLanes];
  Store(lanes, a);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

/// exp by Cody and Waite's reduction and the Cephes polynomial, relative error about 1e-7. 0 below
/// -87.3, finite above 88.37; NaN stays.
RIPPLEKV_INLINE Vec Exp(Vec x) {
  const Vec magic = Set(12582912.0f);
  const Vec bounded = Max(Set(-87.3f), Min(Set(88.37f), x));
  const Vec t = Fma(bounded, Set(1.44269504088896341f), magic);
  const Vec n = Sub(t, magic);
  Vec r = Fma(n, Set(-0.693359375f), bounded);
  r = Fma(n, Set(2.12194440e-4f), r);
  Vec p = Set(1.9875691500e-4f);
  p = Fma(p, r, Set(1.3981999507e-3f));
  p = Fma(p, r, Set(8.3334519073e-3f));
  p = Fma(p, r, Set(4.1665795894e-2f));
  p = Fma(p, r, Set(1.6666665459e-1f));
  p = Fma(p, r, Set(5.0000001201e-1f));
  p = Fma(p, Mul(r, r), Add(r, Set(1.0f)));
  return IfLess(x, Set(-87.3f), Zero(), Mul(p, PowerOfTwo(t)));
}

}  // namespace ripplekv::RIPPLEKV_ISA
