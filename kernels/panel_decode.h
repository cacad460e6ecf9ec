// Decoding a group of a panel (kernels/panel_matrix.h) column by column, for each tensor type. Per
// instruction set, like simd.h.
#pragma once

#include "kernels/packed_decode.h"
#include "kernels/panel_matrix.h"
#include "kernels/simd_int.h"

namespace ripplekv::RIPPLEKV_ISA {

// Every decoder goes through a group in kSteps steps. Step(group, step, f) calls f(Int<j>(),
// column, w, w_next) for the pairs j = 0, 1, ... of a step: w holds column `column` of the group,
// w_next the following column, both 16 rows.

// Block decodes 32 numbers of one row as the checkpoint stores them; lanes hold them in units of
// kUnitBytes.
template <TensorType type, typename B, int unit_bytes = 4>
struct PanelOf {
  using Block = B;
  static constexpr int kUnitBytes = unit_bytes;
  static constexpr int64_t kNumberBytes = panel_group_bytes(type);
  static constexpr int64_t kScaleBytes = panel_scale_bytes(type);
};

struct PanelF32 : PanelOf<TensorType::kF32, DecodeF32> {
  static constexpr int kSteps = 16;
  struct Group {
    const std::byte* numbers;
  };
  static RIPPLEKV_INLINE Group Open(const std::byte* numbers, const std::byte*) {
    return {numbers};
  }
  template <typename F>
  static RIPPLEKV_INLINE void Step(const Group& g, int step, const F& f) {
    const float* p = reinterpret_cast<const float*>(g.numbers) + step * 2 * kLanes;
    f(Int<0>(), 2 * step, Load(p), Load(p + kLanes));
  }
};

struct PanelF16 : PanelOf<TensorType::kF16, DecodeF16, 2> {
  static constexpr int kSteps = 16;
  struct Group {
    const std::byte* numbers;
  };
  static RIPPLEKV_INLINE Group Open(const std::byte* numbers, const std::byte*) {
    return {numbers};
  }
  template <typename F>
  static RIPPLEKV_INLINE void Step(const Group& g, int step, const F& f) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(g.numbers) + step * 2 * kLanes;
    f(Int<0>(), 2 * step, LoadHalf(p), LoadHalf(p + kLanes));
  }
};

struct PanelBf16 : PanelOf<TensorType::kBF16, DecodeBf16> {
  static constexpr int kSteps = 16;
  struct Group {
    const std::byte* numbers;
  };
  static RIPPLEKV_INLINE Group Open(const std::byte* numbers, const std::byte*) {
    return {numbers};
  }
  template <typename F>
  static RIPPLEKV_INLINE void Step(const Group& g, int step, const F& f) {
    const IntVec pairs = LoadInts(g.numbers + step * 64);
    f(Int<0>(), 2 * step, LowBf16(pairs), HighBf16(pairs));
  }
};

struct PanelQ8_0 : PanelOf<TensorType::kQ8_0, DecodeQ8_0> {
  static constexpr int kSteps = 8;
  struct Group {
    const std::byte* numbers;
    Vec d;
  };
  static RIPPLEKV_INLINE Group Open(const std::byte* numbers, const std::byte* scales) {
    return {numbers, LoadHalf(reinterpret_cast<const uint16_t*>(scales))};
  }
  template <typename F>
  static RIPPLEKV_INLINE void Step(const Group& g, int step, const F& f) {
    const IntVec q = LoadInts(g.numbers + step * 64);
    f(Int<0>(), 4 * step, Mul(SignedByte<0>(q), g.d), Mul(SignedByte<8>(q), g.d));
    f(Int<1>(), 4 * step + 2, Mul(SignedByte<16>(q), g.d), Mul(SignedByte<24>(q), g.d));
  }
};

// d * q and d * (q - 8) need 19 bits at most, so no product or sum here rounds but Q4_1's last one.
struct PanelQ4 {
  static constexpr int kSteps = 4;
  struct Group {
    const std::byte* numbers;
    Vec d, m;
  };
  template <typename F>
  static RIPPLEKV_INLINE void Step(const Group& g, int step, const F& f) {
    const IntVec q = LoadInts(g.numbers + step * 64);
    f(Int<0>(), 4 * step, Fma(Nibble<0>(q), g.d, g.m), Fma(Nibble<8>(q), g.d, g.m));
    f(Int<1>(), 4 * step + 2, Fma(Nibble<16>(q), g.d, g.m), Fma(Nibble<24>(q), g.d, g.m));
    f(Int<2>(), 4 * step + 16, Fma(Nibble<4>(q), g.d, g.m), Fma(Nibble<12>(q), g.d, g.m));
    f(Int<3>(), 4 * step + 18, Fma(Nibble<20>(q), g.d, g.m), Fma(Nibble<28>(q), g.d, g.m));
  }
};

struct PanelQ4_0 : PanelOf<TensorType::kQ4_0, DecodeQ4_0>, PanelQ4 {
  static RIPPLEKV_INLINE Group Open(const std::byte* numbers, const std::byte* scales) {
    const Vec d = LoadHalf(reinterpret_cast<const uint16_t*>(scales));
    return {numbers, d, Mul(Set(-8), d)};
  }
};

struct PanelQ4_1 : PanelOf<TensorType::kQ4_1, DecodeQ4_1>, PanelQ4 {
  static RIPPLEKV_INLINE Group Open(const std::byte* numbers, const std::byte* scales) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(scales);
    return {numbers, LoadHalf(p), LoadHalf(p + kLanes)};
  }
};

/// Where a panel's parts lie.
struct Panel {
  const std::byte* numbers;
  const std::byte* scales;
  int64_t groups;
};

template <typename D>
RIPPLEKV_INLINE Panel PanelAt(const PanelMatrix& w, int64_t panel) {
  const int64_t groups = (w.cols + kPanelGroup - 1) / kPanelGroup;
  const int64_t bytes = (groups * (D::kNumberBytes + D::kScaleBytes) + 63) / 64 * 64;
  const std::byte* p = w.data + panel * bytes;
  return {p, p + groups * D::kNumberBytes, groups};
}

template <typename D>
RIPPLEKV_INLINE typename D::Group OpenGroup(const Panel& p, int64_t group) {
  return D::Open(p.numbers + group * D::kNumberBytes, p.scales + group * D::kScaleBytes);
}

/// Asks for what comes after the next `bytes` bytes of a panel: far ahead from memory to the second
/// level cache, which waits for more lines at once than the first, then from there to the first. A
/// prefetch beyond the weights does not fault.
template <int64_t bytes>
RIPPLEKV_INLINE void PrefetchAfter(const std::byte* p) {
  constexpr int64_t kFar = 16384, kNear = 2048;
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(p + kFar + i, 0, 1);
    __builtin_prefetch(p + kNear + i, 0, 3);
  }
}

/// PrefetchAfter for a group.
template <typename D>
RIPPLEKV_INLINE void PrefetchAfterGroup(const Panel& p, int64_t group) {
  PrefetchAfter<D::kNumberBytes>(p.numbers + group * D::kNumberBytes);
  PrefetchAfter<D::kScaleBytes>(p.scales + group * D::kScaleBytes);
}

/// f(D()) with the decoder of the type.
template <typename F>
RIPPLEKV_INLINE void WithPanelDecoder(TensorType type, const F& f) {
  switch (type) {
    case TensorType::kF32:
      return f(PanelF32());
    case TensorType::kF16:
      return f(PanelF16());
    case TensorType::kBF16:
      return f(PanelBf16());
    case TensorType::kQ8_0:
      return f(PanelQ8_0());
    case TensorType::kQ4_0:
      return f(PanelQ4_0());
    case TensorType::kQ4_1:
      return f(PanelQ4_1());
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
