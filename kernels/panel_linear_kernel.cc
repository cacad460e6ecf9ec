#include "kernels/isa_functions.h"
#include "kernels/panel_decode.h"
#include "kernels/panel_store.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

// Rows of x that share one decoding of a group; every row has two accumulators in registers.
#if defined(__AVX512F__)
constexpr int kTile = 8;
#elif defined(__AVX2__)
constexpr int kTile = 2;
#else
constexpr int kTile = 1;
#endif

/// total[i] += the group's part of rows [0, rows) of x (at the group's first column).
template <typename D, int rows>
RIPPLEKV_INLINE void AddGroup(const typename D::Group& group, const float* x, int64_t x_stride,
                              float (*total)[kLanes]) {
  Vec even[rows], odd[rows];
  Unroll<rows>([&](auto i) RIPPLEKV_INLINE_LAMBDA { even[i.value] = odd[i.value] = Zero(); });
  for (int step = 0; step < D::kSteps; ++step) {
    D::Step(group, step, [&](auto, int column, Vec w0, Vec w1) RIPPLEKV_INLINE_LAMBDA {
      Unroll<rows>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        const float* xi = x + i.value * x_stride + column;
        even[i.value] = Fma(w0, Set(xi[0]), even[i.value]);
        odd[i.value] = Fma(w1, Set(xi[1]), odd[i.value]);
      });
    });
  }
  Unroll<rows>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
    Store(total[i.value], Add(Load(total[i.value]), Add(even[i.value], odd[i.value])));
  });
}

/// AddGroup for `rows` rows, below 2 * tile, in tiles of powers of two.
template <typename D, int tile>
RIPPLEKV_INLINE void AddGroupRows(const typename D::Group& group, const float* x, int64_t x_stride,
                                  int rows, float (*total)[kLanes]) {
  while (rows >= tile) {
    AddGroup<D, tile>(group, x, x_stride, total);
    x += tile * x_stride;
    total += tile;
    rows -= tile;
  }
  if constexpr (tile > 1) AddGroupRows<D, tile / 2>(group, x, x_stride, rows, total);
}

template <typename D>
void Linear(const PanelMatrix& w, const LinearInput& input, float* y, int64_t y_stride, bool add,
            int64_t panel_begin, int64_t panel_end) {
  const int m = input.m;
  const int64_t tail = w.cols % kPanelGroup;
  float padded[kPanelLinearMaxRows][kPanelGroup];  // the last columns of x, then zeros
  if (tail > 0) {
    for (int i = 0; i < m; ++i) {
      const float* row = input.x + i * input.x_stride + (w.cols - tail);
      for (int k = 0; k < kPanelGroup; ++k) padded[i][k] = k < tail ? row[k] : 0;
    }
  }
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const Panel panel = PanelAt<D>(w, p);
    alignas(64) float total[kPanelLinearMaxRows][kLanes];
    for (int i = 0; i < m; ++i) Store(total[i], Zero());
    for (int64_t g = 0; g < panel.groups; ++g) {
      PrefetchAfterGroup<D>(panel, g);
      const bool last = tail > 0 && g == panel.groups - 1;
      AddGroupRows<D, kTile>(OpenGroup<D>(panel, g), last ? padded[0] : input.x + g * kPanelGroup,
                             last ? kPanelGroup : input.x_stride, m, total);
    }
    StorePanel(total, m, p, w.rows, y, y_stride, add);
  }
}

}  // namespace

void PanelLinearF32(const PanelMatrix& w, const LinearInput& input, float* y, int64_t y_stride,
                    bool add, int64_t panel_begin, int64_t panel_end) {
  WithPanelDecoder(w.type, [&](auto d) RIPPLEKV_INLINE_LAMBDA {
    Linear<decltype(d)>(w, input, y, y_stride, add, panel_begin, panel_end);
  });
}

}  // namespace ripplekv::RIPPLEKV_ISA
