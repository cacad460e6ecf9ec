// Outputs are the lanes, a panel a vector; tokens are broadcast to them. Tokens and weights are
// widened to fp32 a block at a time, which the products of all of a block's tokens share.
#include "kernels/isa_functions.h"
#include "kernels/outer_products.h"
#include "kernels/prefill_linear_panels.h"
#include "kernels/silu.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

static_assert(kPrefillLinearRows == kLanes);
constexpr int kTokens = 132;             // of a block; a multiple of every kRowTile
constexpr int kCols = 256;               // of a block: a panel's fit the first-level cache
constexpr int kStride = kCols + kLanes;  // so that rows do not fall on the same cache lines

/// A block of tokens and inputs at work on one panel after the other.
struct alignas(64) Block {
  float x[kTokens][kStride];
  float panel[kCols][kLanes];
};

/// panel[c] = inputs c of the panel's outputs.
RIPPLEKV_INLINE void WidenPanel(const uint16_t* w, int64_t cols, float (*panel)[kLanes]) {
  for (int64_t c = 0; c < cols; c += 2) {
    Vec even, odd;
    LoadBf16Pairs(w + c * kLanes, &even, &odd);
    Store(panel[c], even);
    Store(panel[c + 1], odd);
  }
}

/// finish(token, sums[0], ..., sums[panels - 1]) for all tokens, of which w points to panels.
template <int panels, typename Finish>
RIPPLEKV_INLINE void MultiplyTokens(const PrefillLinearArgs& args,
                                    const uint16_t* const (&w)[panels], const Finish& finish) {
  Block block;
  alignas(64) float sums[panels][kTokens][kLanes];
  for (int first = 0; first < args.tokens; first += kTokens) {
    const int tokens = args.tokens - first < kTokens ? args.tokens - first : kTokens;
    for (int p = 0; p < panels; ++p) {
      for (int t = 0; t < tokens; ++t) Store(sums[p][t], Zero());
    }
    for (int64_t c = 0; c < args.cols; c += kCols) {
      const int64_t cols = args.cols - c < kCols ? args.cols - c : kCols;
      for (int t = 0; t < tokens; ++t) {
        WidenBf16(args.x + (first + t) * args.cols + c, cols, block.x[t]);
      }
      for (int p = 0; p < panels; ++p) {
        WidenPanel(w[p] + c * kLanes, cols, block.panel);
        AddOuterProducts(block.panel[0], cols, block.x[0], kStride, 1, tokens, sums[p]);
      }
    }
    for (int t = 0; t < tokens; ++t) {
      Vec row[panels];
      Unroll<panels>([&](auto p) RIPPLEKV_INLINE_LAMBDA { row[p.value] = Load(sums[p.value][t]); });
      finish(first + t, row);
    }
  }
}

/// finish(panel, token, sums) for panels [panel_begin, panel_end) of w.
template <typename Finish>
RIPPLEKV_INLINE void MultiplyPanels(const PrefillLinearArgs& args, const uint16_t* w,
                                    int64_t panel_begin, int64_t panel_end, const Finish& finish) {
  ForPanels<Vec>(
      args, w, panel_begin, panel_end,
      [&](const auto& panels, const auto& take)
          RIPPLEKV_INLINE_LAMBDA { MultiplyTokens(args, panels, take); },
      finish);
}

/// Lanes 2 i and 2 i + 1 of x turned by angle i.
RIPPLEKV_INLINE Vec Rotate(Vec x, const float* cosines, const float* sines) {
  alignas(64) float c[kLanes], s[kLanes];
  for (int i = 0; i < kLanes / 2; ++i) {
    c[2 * i] = c[2 * i + 1] = cosines[i];
    s[2 * i] = -sines[i];
    s[2 * i + 1] = sines[i];
  }
  return Fma(x, Load(c), Mul(SwapPairs(x), Load(s)));
}

}  // namespace

void PrefillLinear(const PrefillLinearArgs& args, const uint16_t* w, int64_t rows, float* out,
                   int64_t out_stride, int64_t panel_begin, int64_t panel_end) {
  MultiplyPanels(args, w, panel_begin, panel_end,
                 [&](int64_t panel, int64_t t, Vec sum) RIPPLEKV_INLINE_LAMBDA {
                   float* const target = out + t * out_stride + panel * kLanes;
                   const int64_t left = rows - panel * kLanes;
                   if (left >= kLanes) {
                     Store(target, sum);
                   } else {
                     StorePart(target, left, sum);
                   }
                 });
}

void PrefillLinearAdd(const PrefillLinearArgs& args, const uint16_t* w, float* out,
                      int64_t out_stride, int64_t panel_begin, int64_t panel_end) {
  MultiplyPanels(args, w, panel_begin, panel_end,
                 [&](int64_t panel, int64_t t, Vec sum) RIPPLEKV_INLINE_LAMBDA {
                   float* const target = out + t * out_stride + panel * kLanes;
                   Store(target, Add(Load(target), sum));
                 });
}

void PrefillLinearSwiGlu(const PrefillLinearArgs& args, const uint16_t* gate, const uint16_t* up,
                         uint16_t* out, int64_t out_stride, int64_t panel_begin,
                         int64_t panel_end) {
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const uint16_t* const pair[] = {PanelAt(args, gate, panel), PanelAt(args, up, panel)};
    MultiplyTokens<2>(args, pair, [&](int64_t t, const Vec(&sums)[2]) RIPPLEKV_INLINE_LAMBDA {
      StoreBf16(out + t * out_stride + panel * kLanes, SiluTimes(sums[0], sums[1]));
    });
  }
}

void PrefillLinearHeads(const PrefillLinearArgs& args, const uint16_t* w, const PrefillHeads& heads,
                        int64_t panel_begin, int64_t panel_end) {
  MultiplyPanels(args, w, panel_begin, panel_end,
                 [&](int64_t panel, int64_t t, Vec sum) RIPPLEKV_INLINE_LAMBDA {
                   const int64_t row = panel * kLanes;
                   const int64_t column = row % heads.head_dim;
                   if (heads.rope != nullptr) {
                     const float* const angles = heads.rope + t * heads.head_dim + column / 2;
                     sum = Rotate(sum, angles, angles + heads.head_dim / 2);
                   }
                   StoreBf16(heads.out + row / heads.head_dim * heads.head_stride +
                                 t * heads.token_stride + column,
                             sum);
                 });
}

}  // namespace ripplekv::RIPPLEKV_ISA
