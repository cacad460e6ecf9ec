// Decoding 32 consecutive weights of a row to two vectors, for each tensor type. Per instruction
// set, like simd.h.
#pragma once

#include "kernels/packed_matrix.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

inline constexpr int kDecodeElements = 32;

struct DecodeF32 {
  static constexpr int kBytes = 128;
  static RIPPLEKV_INLINE void Decode(const std::byte* p, Vec* low, Vec* high) {
    const float* x = reinterpret_cast<const float*>(p);
    *low = Load(x);
    *high = Load(x + kLanes);
  }
};

struct DecodeF16 {
  static constexpr int kBytes = 64;
  static RIPPLEKV_INLINE void Decode(const std::byte* p, Vec* low, Vec* high) {
    const uint16_t* x = reinterpret_cast<const uint16_t*>(p);
    *low = LoadHalf(x);
    *high = LoadHalf(x + kLanes);
  }
};

struct DecodeBf16 {
  static constexpr int kBytes = 64;
  static RIPPLEKV_INLINE void Decode(const std::byte* p, Vec* low, Vec* high) {
    const uint16_t* x = reinterpret_cast<const uint16_t*>(p);
    *low = LoadBf16(x);
    *high = LoadBf16(x + kLanes);
  }
};

struct DecodeQ8_0 {
  static constexpr int kBytes = 34;
  static RIPPLEKV_INLINE void Decode(const std::byte* p, Vec* low, Vec* high) {
    const Vec d = Set(HalfToFloat(LoadAs<uint16_t>(p)));
    *low = Mul(LoadInt8(p + 2), d);
    *high = Mul(LoadInt8(p + 2 + kLanes), d);
  }
};

// d * q and d * (q - 8) need 19 bits at most, so no product or sum here rounds but Q4_1's last one.
struct DecodeQ4_0 {
  static constexpr int kBytes = 18;
  static RIPPLEKV_INLINE void Decode(const std::byte* p, Vec* low, Vec* high) {
    const float d = HalfToFloat(LoadAs<uint16_t>(p));
    LookUp(MakeNibbleTable(d, -8 * d), p + 2, low, high);
  }
};

struct DecodeQ4_1 {
  static constexpr int kBytes = 20;
  static RIPPLEKV_INLINE void Decode(const std::byte* p, Vec* low, Vec* high) {
    const float d = HalfToFloat(LoadAs<uint16_t>(p));
    const float m = HalfToFloat(LoadAs<uint16_t>(p + 2));
    LookUp(MakeNibbleTable(d, m), p + 4, low, high);
  }
};

/// The last `n` (below 32) elements of a row of a plain type, zeros after them.
template <typename D>
RIPPLEKV_INLINE void DecodePart(const std::byte* p, int64_t n, Vec* low, Vec* high) {
  std::byte padded[D::kBytes] = {};
  __builtin_memcpy(padded, p, static_cast<size_t>(n * D::kBytes / kDecodeElements));
  D::Decode(padded, low, high);
}

/// f(D()) with the decoder of the type.
template <typename F>
RIPPLEKV_INLINE void WithDecoder(TensorType type, const F& f) {
  switch (type) {
    case TensorType::kF32:
      return f(DecodeF32());
    case TensorType::kF16:
      return f(DecodeF16());
    case TensorType::kBF16:
      return f(DecodeBf16());
    case TensorType::kQ8_0:
      return f(DecodeQ8_0());
    case TensorType::kQ4_0:
      return f(DecodeQ4_0());
    case TensorType::kQ4_1:
      return f(DecodeQ4_1());
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
