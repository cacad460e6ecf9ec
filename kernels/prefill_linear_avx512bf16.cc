// Outputs are the lanes, a panel a vector; tokens are broadcast to them as pairs of bf16, so
// nothing is summed across lanes. A tile of twelve tokens and two panels holds 24 accumulators; its
// panels stay in the second-level cache while all tokens pass.
#include "kernels/isa_functions.h"
#include "kernels/prefill_linear_panels.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

constexpr int kTokenTile = 12;
/// Of panels, in elements. The processor itself looks ahead within 4 KiB only.
constexpr int kPrefetchAhead = 768;

/// out[t][p] = panel w[p] times token t, for `tokens` tokens from x on, one `stride` elements after
/// the other.
template <int tokens, int panels>
RIPPLEKV_INLINE void Multiply(const uint16_t* const (&w)[panels], const uint16_t* x, int64_t stride,
                              int64_t cols, __m512 (&out)[tokens][panels]) {
  Unroll<tokens>([&](auto t) RIPPLEKV_INLINE_LAMBDA {
    Unroll<panels>([&](auto p)
                       RIPPLEKV_INLINE_LAMBDA { out[t.value][p.value] = _mm512_setzero_ps(); });
  });
  // Three tokens to an address.
  constexpr int kAddresses = (tokens + 2) / 3;
  const uint16_t* row[kAddresses];
  Unroll<kAddresses>([&](auto a)
                         RIPPLEKV_INLINE_LAMBDA { row[a.value] = x + 3 * a.value * stride; });
  const uint16_t* weights[panels];
  Unroll<panels>([&](auto p) RIPPLEKV_INLINE_LAMBDA { weights[p.value] = w[p.value]; });
  const uint16_t* const end = x + cols;
  while (row[0] != end) {
    __m512bh panel[panels];
    Unroll<panels>([&](auto p) RIPPLEKV_INLINE_LAMBDA {
      panel[p.value] = (__m512bh)_mm512_loadu_si512(weights[p.value]);
      _mm_prefetch(reinterpret_cast<const char*>(weights[p.value] + kPrefetchAhead), _MM_HINT_T0);
      weights[p.value] += 2 * kPrefillLinearRows;
    });
    Unroll<tokens>([&](auto t) RIPPLEKV_INLINE_LAMBDA {
      const __m512bh pair =
          (__m512bh)_mm512_set1_epi32(LoadAs<int32_t>(row[t.value / 3] + t.value % 3 * stride));
      Unroll<panels>([&](auto p) RIPPLEKV_INLINE_LAMBDA {
        out[t.value][p.value] = _mm512_dpbf16_ps(out[t.value][p.value], panel[p.value], pair);
      });
    });
    Unroll<kAddresses>([&](auto a) RIPPLEKV_INLINE_LAMBDA { row[a.value] += 2; });
  }
}

/// finish(first token, sums[tokens][panels]) for all tokens.
template <int panels, typename Finish>
RIPPLEKV_INLINE void MultiplyTokens(const PrefillLinearArgs& args,
                                    const uint16_t* const (&w)[panels], const Finish& finish) {
  int t = 0;
  const auto tile = [&](auto size) RIPPLEKV_INLINE_LAMBDA {
    __m512 sums[size.value][panels];
    Multiply<size.value, panels>(w, args.x + t * args.cols, args.cols, args.cols, sums);
    Unroll<size.value>([&](auto i) RIPPLEKV_INLINE_LAMBDA { finish(t + i.value, sums[i.value]); });
    t += size.value;
  };
  while (t + kTokenTile <= args.tokens) tile(Int<kTokenTile>());
  if (t + 8 <= args.tokens) tile(Int<8>());
  if (t + 4 <= args.tokens) tile(Int<4>());
  if (t + 2 <= args.tokens) tile(Int<2>());
  if (t < args.tokens) tile(Int<1>());
}

RIPPLEKV_INLINE void StoreRounded(uint16_t* out, __m512 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), (__m256i)_mm512_cvtneps_pbh(x));
}

/// Sums of a panel to where its head's token lies, rotated.
struct HeadPanel {
  RIPPLEKV_INLINE HeadPanel(const PrefillHeads& heads, int64_t panel) : heads_(heads) {
    const int64_t row = panel * kPrefillLinearRows;
    column_ = row % heads.head_dim;
    out_ = heads.out + row / heads.head_dim * heads.head_stride + column_;
  }
  RIPPLEKV_INLINE void Store(int64_t t, __m512 x) const {
    if (heads_.rope != nullptr) {
      const float* angles = heads_.rope + t * heads_.head_dim + column_ / 2;
      const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
      const auto load = [&](const float* p) RIPPLEKV_INLINE_LAMBDA {
        return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
      };
      const __m512 cosines = load(angles), sines = load(angles + heads_.head_dim / 2);
      x = _mm512_fmaddsub_ps(x, cosines, _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), sines));
    }
    StoreRounded(out_ + t * heads_.token_stride, x);
  }

 private:
  const PrefillHeads& heads_;
  int64_t column_;
  uint16_t* out_;
};

/// finish(panel, token, sums) for panels [panel_begin, panel_end) of w.
template <typename Finish>
RIPPLEKV_INLINE void MultiplyPanels(const PrefillLinearArgs& args, const uint16_t* w,
                                    int64_t panel_begin, int64_t panel_end, const Finish& finish) {
  ForPanels<__m512>(
      args, w, panel_begin, panel_end,
      [&](const auto& panels, const auto& take)
          RIPPLEKV_INLINE_LAMBDA { MultiplyTokens(args, panels, take); },
      finish);
}

/// silu(g) u = g u / (1 + 2^t), t = -g log2(e).
RIPPLEKV_INLINE __m512 SwiGluOf(__m512 g, __m512 u) {
  const auto set = [](float x) RIPPLEKV_INLINE_LAMBDA { return _mm512_set1_ps(x); };
  // Beyond these 1 + 2^t rounds to 1, or silu is subnormal.
  const __m512 t = _mm512_max_ps(
      _mm512_min_ps(_mm512_mul_ps(g, set(-1.44269504088896341f)), set(126.0f)), set(-126.0f));
  const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(t, n);
  __m512 p = set(1.326472725e-3f);
  p = _mm512_fmadd_ps(p, r, set(9.671512786e-3f));
  p = _mm512_fmadd_ps(p, r, set(5.550733744e-2f));
  p = _mm512_fmadd_ps(p, r, set(2.402224208e-1f));
  p = _mm512_fmadd_ps(p, r, set(6.931469776e-1f));
  p = _mm512_fmadd_ps(p, r, set(1.0f));
  const __m512 d = _mm512_add_ps(_mm512_scalef_ps(p, n), set(1.0f));
  __m512 y = _mm512_rcp14_ps(d);
  y = _mm512_mul_ps(y, _mm512_fnmadd_ps(d, y, set(2.0f)));
  return _mm512_mul_ps(_mm512_mul_ps(g, y), u);
}

}  // namespace

void PrefillLinear(const PrefillLinearArgs& args, const uint16_t* w, int64_t rows, float* out,
                   int64_t out_stride, int64_t panel_begin, int64_t panel_end) {
  MultiplyPanels(args, w, panel_begin, panel_end,
                 [&](int64_t panel, int64_t t, __m512 sum) RIPPLEKV_INLINE_LAMBDA {
                   const int64_t left = rows - panel * kPrefillLinearRows;
                   const unsigned lanes = left >= kPrefillLinearRows ? 0xffff : (1u << left) - 1;
                   _mm512_mask_storeu_ps(out + t * out_stride + panel * kPrefillLinearRows,
                                         static_cast<__mmask16>(lanes), sum);
                 });
}

void PrefillLinearAdd(const PrefillLinearArgs& args, const uint16_t* w, float* out,
                      int64_t out_stride, int64_t panel_begin, int64_t panel_end) {
  MultiplyPanels(args, w, panel_begin, panel_end,
                 [&](int64_t panel, int64_t t, __m512 sum) RIPPLEKV_INLINE_LAMBDA {
                   float* const target = out + t * out_stride + panel * kPrefillLinearRows;
                   _mm512_storeu_ps(target, _mm512_add_ps(_mm512_loadu_ps(target), sum));
                 });
}

void PrefillLinearSwiGlu(const PrefillLinearArgs& args, const uint16_t* gate, const uint16_t* up,
                         uint16_t* out, int64_t out_stride, int64_t panel_begin,
                         int64_t panel_end) {
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const uint16_t* const pair[] = {PanelAt(args, gate, panel), PanelAt(args, up, panel)};
    MultiplyTokens<2>(args, pair, [&](int64_t t, const __m512(&sums)[2]) RIPPLEKV_INLINE_LAMBDA {
      StoreRounded(out + t * out_stride + panel * kPrefillLinearRows, SwiGluOf(sums[0], sums[1]));
    });
  }
}

void PrefillLinearHeads(const PrefillLinearArgs& args, const uint16_t* w, const PrefillHeads& heads,
                        int64_t panel_begin, int64_t panel_end) {
  MultiplyPanels(args, w, panel_begin, panel_end,
                 [&](int64_t panel, int64_t t, __m512 sum)
                     RIPPLEKV_INLINE_LAMBDA { HeadPanel(heads, panel).Store(t, sum); });
}

}  // namespace ripplekv::RIPPLEKV_ISA
