#include "kernels/isa_functions.h"
#include "kernels/panel_decode.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

RIPPLEKV_INLINE void Put(float* out, Vec a) { Store(out, a); }
RIPPLEKV_INLINE void Put(uint16_t* out, Vec a) { StoreBf16(out, a); }

/// Lane `lane` of `units` vectors of kUnit-byte numbers.
template <int kUnit>
RIPPLEKV_INLINE void GatherLane(const std::byte* vectors, int lane, int units, std::byte* out) {
  for (int u = 0; u < units; ++u) {
    __builtin_memcpy(out + u * kUnit, vectors + (u * kPanelRows + lane) * kUnit, kUnit);
  }
}

/// 32 numbers of one row as the checkpoint stores them (kernels/tensor_type.h).
template <typename P>
RIPPLEKV_INLINE void RebuildBlock(const Panel& panel, int64_t group, int lane, std::byte* out) {
  constexpr int kScaleBytes = P::kScaleBytes / kPanelRows;
  constexpr int kBytes = P::kNumberBytes / kPanelRows;
  GatherLane<2>(panel.scales + group * P::kScaleBytes, lane, kScaleBytes / 2, out);
  GatherLane<P::kUnitBytes>(panel.numbers + group * P::kNumberBytes, lane, kBytes / P::kUnitBytes,
                            out + kScaleBytes);
}

template <typename P, typename T>
void ExpandRow(const PanelMatrix& w, int64_t row, T* out) {
  using Block = typename P::Block;
  const Panel panel = PanelAt<P>(w, row / kPanelRows);
  const int lane = static_cast<int>(row % kPanelRows);
  for (int64_t g = 0; g < panel.groups; ++g, out += kPanelGroup) {
    std::byte block[Block::kBytes];
    RebuildBlock<P>(panel, g, lane, block);
    Vec low, high;
    Block::Decode(block, &low, &high);
    const int64_t left = w.cols - g * kPanelGroup;
    if (left >= kPanelGroup) {
      Put(out, low);
      Put(out + kLanes, high);
    } else {
      T padded[kPanelGroup];
      Put(padded, low);
      Put(padded + kLanes, high);
      for (int64_t i = 0; i < left; ++i) out[i] = padded[i];
    }
  }
}

template <typename T>
RIPPLEKV_INLINE void Expand(const PanelMatrix& w, int64_t row_begin, int64_t row_end, T* out) {
  WithPanelDecoder(w.type, [&](auto p) RIPPLEKV_INLINE_LAMBDA {
    for (int64_t r = row_begin; r < row_end; ++r, out += w.cols) ExpandRow<decltype(p)>(w, r, out);
  });
}

template <typename P>
void ExpandPanels(const PanelMatrix& w, int64_t panel_begin, int64_t panel_end, uint16_t* out) {
  const int64_t pairs = (w.cols + 1) / 2;
  for (int64_t i = panel_begin; i < panel_end; ++i, out += pairs * 2 * kPanelRows) {
    const Panel panel = PanelAt<P>(w, i);
    for (int64_t g = 0; g < panel.groups; ++g) {
      PrefetchAfterGroup<P>(panel, g);
      const typename P::Group group = OpenGroup<P>(panel, g);
      const int64_t first = g * (kPanelGroup / 2);
      for (int step = 0; step < P::kSteps; ++step) {
        P::Step(group, step, [&](auto, int column, Vec w0, Vec w1) RIPPLEKV_INLINE_LAMBDA {
          const int64_t pair = first + column / 2;
          uint16_t* to = out + pair * 2 * kPanelRows;
          if constexpr (P::kScaleBytes > 0) {
            // Multiples of 2^-24: never subnormal.
            StoreNormalBf16Pairs(to, w0, w1);
          } else if (pair < pairs) {
            StoreBf16Pairs(to, w0, w1);
          }
        });
      }
    }
  }
}

}  // namespace

void ExpandPanelRows(const PanelMatrix& w, int64_t row_begin, int64_t row_end, float* out) {
  Expand(w, row_begin, row_end, out);
}

void ExpandPanelRowsBf16(const PanelMatrix& w, int64_t row_begin, int64_t row_end, uint16_t* out) {
  Expand(w, row_begin, row_end, out);
}

void ExpandPanelsBf16(const PanelMatrix& w, int64_t panel_begin, int64_t panel_end, uint16_t* out) {
  WithPanelDecoder(w.type, [&](auto p) RIPPLEKV_INLINE_LAMBDA {
    ExpandPanels<decltype(p)>(w, panel_begin, panel_end, out);
  });
}

}  // namespace ripplekv::RIPPLEKV_ISA
