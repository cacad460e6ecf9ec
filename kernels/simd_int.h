// Sixteen lanes of 32 bits that hold packed small numbers, and their conversion to fp32 lanes. Per
// instruction set, like simd.h.
#pragma once

#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

#if defined(__AVX512F__)

struct IntVec {
  __m512i v;
};

RIPPLEKV_INLINE IntVec LoadInts(const void* p) { return {_mm512_loadu_si512(p)}; }
/// Bits [shift, shift + 4) of every lane as an unsigned number.
template <int shift>
RIPPLEKV_INLINE Vec Nibble(IntVec a) {
  const __m512 numbers = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  // Reads the low four bits only.
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(a.v, shift), numbers)};
}
/// Bits [shift, shift + 8) as a signed number.
template <int shift>
RIPPLEKV_INLINE Vec SignedByte(IntVec a) {
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(a.v, 24 - shift), 24))};
}
/// The low and the high half of every lane as bf16.
RIPPLEKV_INLINE Vec LowBf16(IntVec a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
RIPPLEKV_INLINE Vec HighBf16(IntVec a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(-0x10000)))};
}
/// The number in the upper half of every lane, rounded to bf16; what is below it is not cleared.
RIPPLEKV_INLINE __m512i RoundToBf16(Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), bits,
                              _mm512_set1_epi32(0x400000));
}
/// Lane i at p + 4 i: a[i], then b[i] as bf16 (nearest even).
RIPPLEKV_INLINE void StoreBf16Pairs(uint16_t* p, Vec a, Vec b) {
  const __m512i low = _mm512_srli_epi32(RoundToBf16(a), 16);
  const __m512i high = _mm512_and_si512(RoundToBf16(b), _mm512_set1_epi32(-0x10000));
  _mm512_storeu_si512(p, _mm512_or_si512(low, high));
}

#if defined(__AVX512BF16__)
/// StoreBf16Pairs of numbers that are not subnormal (the instruction would make them zero).
RIPPLEKV_INLINE void StoreNormalBf16Pairs(uint16_t* p, Vec a, Vec b) {
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512bh pairs = _mm512_cvtne2ps_pbh(b.v, a.v);
  _mm512_storeu_si512(p, _mm512_permutexvar_epi16(interleave, LoadAs<__m512i>(&pairs)));
}
#else
RIPPLEKV_INLINE void StoreNormalBf16Pairs(uint16_t* p, Vec a, Vec b) { StoreBf16Pairs(p, a, b); }
#endif

#elif defined(__AVX2__)

struct IntVec {
  __m256i lo, hi;
};

RIPPLEKV_INLINE IntVec LoadInts(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
template <int shift>
RIPPLEKV_INLINE __m256 Nibble8(__m256i a) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(a, shift), _mm256_set1_epi32(15)));
}
template <int shift>
RIPPLEKV_INLINE Vec Nibble(IntVec a) {
  return {Nibble8<shift>(a.lo), Nibble8<shift>(a.hi)};
}
template <int shift>
RIPPLEKV_INLINE __m256 SignedByte8(__m256i a) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(a, 24 - shift), 24));
}
template <int shift>
RIPPLEKV_INLINE Vec SignedByte(IntVec a) {
  return {SignedByte8<shift>(a.lo), SignedByte8<shift>(a.hi)};
}
RIPPLEKV_INLINE Vec LowBf16(IntVec a) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(a.lo, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(a.hi, 16))};
}
RIPPLEKV_INLINE Vec HighBf16(IntVec a) {
  const __m256i mask = _mm256_set1_epi32(-0x10000);
  return {_mm256_castsi256_ps(_mm256_and_si256(a.lo, mask)),
          _mm256_castsi256_ps(_mm256_and_si256(a.hi, mask))};
}
RIPPLEKV_INLINE __m256i Bf16Pairs8(__m256 a, __m256 b) {
  return _mm256_or_si256(RoundToBf16(a), _mm256_slli_epi32(RoundToBf16(b), 16));
}
RIPPLEKV_INLINE void StoreBf16Pairs(uint16_t* p, Vec a, Vec b) {
  __m256i* q = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(q, Bf16Pairs8(a.lo, b.lo));
  _mm256_storeu_si256(q + 1, Bf16Pairs8(a.hi, b.hi));
}

RIPPLEKV_INLINE void StoreNormalBf16Pairs(uint16_t* p, Vec a, Vec b) { StoreBf16Pairs(p, a, b); }

#else

struct IntVec {
  Int4 q[4];
};

RIPPLEKV_INLINE IntVec LoadInts(const void* p) {
  IntVec a;
  __builtin_memcpy(a.q, p, sizeof a.q);
  return a;
}
template <int shift>
RIPPLEKV_INLINE Vec Nibble(IntVec a) {
  Vec b;
  for (int i = 0; i < 4; ++i) b.q[i] = __builtin_convertvector((a.q[i] >> shift) & 15, Float4);
  return b;
}
typedef uint32_t UnsignedInt4 __attribute__((vector_size(16)));
template <int shift>
RIPPLEKV_INLINE Vec SignedByte(IntVec a) {
  Vec b;
  for (int i = 0; i < 4; ++i) {
    const UnsignedInt4 top = LoadAs<UnsignedInt4>(&a.q[i]) << (24 - shift);
    b.q[i] = __builtin_convertvector(LoadAs<Int4>(&top) >> 24, Float4);
  }
  return b;
}
RIPPLEKV_INLINE Vec LowBf16(IntVec a) {
  Vec b;
  for (int i = 0; i < 4; ++i) {
    const UnsignedInt4 bits = LoadAs<UnsignedInt4>(&a.q[i]) << 16;
    b.q[i] = LoadAs<Float4>(&bits);
  }
  return b;
}
RIPPLEKV_INLINE Vec HighBf16(IntVec a) {
  Vec b;
  for (int i = 0; i < 4; ++i) {
    const Int4 bits = a.q[i] & -0x10000;
    b.q[i] = LoadAs<Float4>(&bits);
  }
  return b;
}
RIPPLEKV_INLINE void StoreBf16Pairs(uint16_t* p, Vec a, Vec b) {
  uint16_t low[kLanes], high[kLanes];
  StoreBf16(low, a);
  StoreBf16(high, b);
  for (int i = 0; i < kLanes; ++i) {
    p[2 * i] = low[i];
    p[2 * i + 1] = high[i];
  }
}

RIPPLEKV_INLINE void StoreNormalBf16Pairs(uint16_t* p, Vec a, Vec b) { StoreBf16Pairs(p, a, b); }

#endif

}  // namespace ripplekv::RIPPLEKV_ISA
