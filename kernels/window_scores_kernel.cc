#include "kernels/isa_functions.h"
#include "kernels/kv_load.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

// Queries lie in the lanes and keys are broadcast, so that nothing is summed across lanes but the
// mean over the window.
#if defined(__AVX512F__)
constexpr int kQueryVecs = 2;
constexpr int kKeys = 8;
#elif defined(__AVX2__)
constexpr int kQueryVecs = 1;
constexpr int kKeys = 4;
#else
constexpr int kQueryVecs = 1;
constexpr int kKeys = 4;
#endif
constexpr int kQueries = kQueryVecs * kLanes;
constexpr int kMaxDim = kWindowScoresMaxHeadDim;

/// kQueries queries from `first` on against all keys of a head.
template <typename T>
class Block {
 public:
  Block(const WindowScoresArgs& args, int head, int first)
      : args_(args),
        k_(static_cast<const T*>(args.k) +
           head / (args.heads / args.kv_heads) * args.kv_head_stride) {
    const T* q = static_cast<const T*>(args.q);
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(args.head_dim));
    if (ByPairs()) {
      for (int i = 0; i < kQueries; ++i) {
        const bool exists = first + i < args.window;
        const T* row = q + (static_cast<int64_t>(first + i) * args.heads + head) * args.head_dim;
        for (int c = 0; c < args.head_dim; ++c) {
          const T value = exists ? row[c] : T{};
          __builtin_memcpy(reinterpret_cast<char*>(query_ + c / 2 * kQueries + i) +
                               static_cast<uint64_t>(c % 2) * sizeof(T),
                           &value, sizeof value);
        }
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      const bool exists = first + i < args.window;
      const T* row = q + (static_cast<int64_t>(first + i) * args.heads + head) * args.head_dim;
      for (int c = 0; c < args.head_dim && !ByPairs(); ++c) {
        query_[c * kQueries + i] = exists ? ToFloat(row[c]) * scale : 0.0f;
      }
      position_[i] = static_cast<float>(first + i);
      exists_[i] = exists ? 1.0f : 0.0f;
    }
    for (int j = 0; j < kQueryVecs; ++j) {
      max_[j] = Set(-__builtin_inff());
      sum_[j] = Zero();
    }
  }

  /// Maximum and sum of every query's row.
  void Normalize() {
    const int64_t before = args_.rows - args_.window;
    const Vec lowest = Set(-__builtin_inff());
    for (int64_t u = 0; u < args_.rows; u += kKeys) {
      Vec s[kKeys][kQueryVecs];
      Scores(u, s);
      if (u + kKeys > before) {
        // Key u is row u - before of the window: hidden from the queries before it. There is none
        // beyond the last row.
        for (int i = 0; i < kKeys; ++i) {
          const Vec row = Set(static_cast<float>(u + i - before));
          for (int j = 0; j < kQueryVecs; ++j) {
            s[i][j] = u + i < args_.rows
                          ? IfLess(Load(position_ + j * kLanes), row, lowest, s[i][j])
                          : lowest;
          }
        }
      }
      Unroll<kQueryVecs>([&](auto j) RIPPLEKV_INLINE_LAMBDA {
        Vec max = max_[j.value];
        Unroll<kKeys>([&](auto i) RIPPLEKV_INLINE_LAMBDA { max = Max(max, s[i.value][j.value]); });
        Vec sum = Zero();
        Unroll<kKeys>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
          sum = Add(sum, Exp(Sub(s[i.value][j.value], max)));
        });
        sum_[j.value] = Fma(sum_[j.value], Exp(Sub(max_[j.value], max)), sum);
        max_[j.value] = max;
      });
    }
  }

  /// scores[u] += sum of the queries' attention to u, for u before the window.
  void Accumulate(float* scores) {
    const int64_t before = args_.rows - args_.window;
    Vec factor[kQueryVecs];
    for (int j = 0; j < kQueryVecs; ++j) factor[j] = Div(Load(exists_ + j * kLanes), sum_[j]);
    for (int64_t u = 0; u < before; u += kKeys) {
      Vec s[kKeys][kQueryVecs];
      Scores(u, s);
      Vec weight[kKeys];
      Unroll<kKeys>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        weight[i.value] = Zero();
        Unroll<kQueryVecs>([&](auto j) RIPPLEKV_INLINE_LAMBDA {
          weight[i.value] =
              Fma(Exp(Sub(s[i.value][j.value], max_[j.value])), factor[j.value], weight[i.value]);
        });
      });
      float sums[kKeys];
      for (int i = 0; i < kKeys; i += 4) {
        StoreSums(sums + i, weight[i], weight[i + 1], weight[i + 2], weight[i + 3]);
      }
      for (int i = 0; i < kKeys && u + i < before; ++i) scores[u + i] += sums[i];
    }
  }

 private:
  static RIPPLEKV_INLINE float ToFloat(float x) { return x; }
  static RIPPLEKV_INLINE float ToFloat(uint16_t x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    return LoadAs<float>(&bits);
  }

  /// Whether scores come from dot products of bf16 pairs: query_ then holds the queries' columns c
  /// and c + 1 side by side, unscaled.
  RIPPLEKV_INLINE bool ByPairs() const {
#if defined(__AVX512BF16__)
    return sizeof(T) == sizeof(uint16_t) && args_.head_dim % 2 == 0;
#else
    return false;
#endif
  }

#if defined(__AVX512BF16__)
  RIPPLEKV_INLINE void PairScores(int64_t u, Vec (&s)[kKeys][kQueryVecs]) {
    const int d = args_.head_dim;
    const T* keys = k_ + u * d;
    alignas(64) T rest[kKeys * kMaxDim];
    if (u + kKeys > args_.rows) {
      const uint64_t bytes = static_cast<uint64_t>((args_.rows - u) * d) * sizeof(T);
      __builtin_memset(rest, 0, sizeof rest);
      __builtin_memcpy(rest, keys, bytes);
      keys = rest;
    }
    __m512 sums[kKeys][kQueryVecs];
    Unroll<kKeys>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      Unroll<kQueryVecs>([&](auto j) RIPPLEKV_INLINE_LAMBDA { sums[i.value][j.value] = Zero().v; });
    });
    for (int64_t c = 0; c < d; c += 2) {
      __m512bh q[kQueryVecs];
      Unroll<kQueryVecs>([&](auto j) RIPPLEKV_INLINE_LAMBDA {
        q[j.value] = (__m512bh)_mm512_loadu_si512(query_ + c / 2 * kQueries + j.value * kLanes);
      });
      Unroll<kKeys>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        const __m512bh key =
            (__m512bh)_mm512_set1_epi32(LoadAs<int32_t>(keys + i.value * int64_t{d} + c));
        Unroll<kQueryVecs>([&](auto j) RIPPLEKV_INLINE_LAMBDA {
          sums[i.value][j.value] = _mm512_dpbf16_ps(sums[i.value][j.value], key, q[j.value]);
        });
      });
    }
    const Vec scale = Set(1.0f / __builtin_sqrtf(static_cast<float>(d)));
    Unroll<kKeys>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      Unroll<kQueryVecs>([&](auto j) RIPPLEKV_INLINE_LAMBDA {
        s[i.value][j.value] = Mul({sums[i.value][j.value]}, scale);
      });
    });
  }
#endif

  /// Scores of keys u ... u + kKeys - 1; rows that do not exist count as zeros.
  RIPPLEKV_INLINE void Scores(int64_t u, Vec (&s)[kKeys][kQueryVecs]) {
#if defined(__AVX512BF16__)
    if (ByPairs()) return PairScores(u, s);
#endif
    const int d = args_.head_dim;
    alignas(64) float keys[kKeys][kMaxDim];
    for (int i = 0; i < kKeys; ++i) {
      if (u + i >= args_.rows) {
        for (int c = 0; c < d; ++c) keys[i][c] = 0;
        continue;
      }
      const T* row = k_ + (u + i) * d;
      int c = 0;
      for (; c + kLanes <= d; c += kLanes) Store(keys[i] + c, LoadKv(row + c));
      for (; c < d; ++c) keys[i][c] = ToFloat(row[c]);
    }
    Unroll<kKeys>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      Unroll<kQueryVecs>([&](auto j) RIPPLEKV_INLINE_LAMBDA { s[i.value][j.value] = Zero(); });
    });
    for (int c = 0; c < d; ++c) {
      Vec q[kQueryVecs];
      Unroll<kQueryVecs>([&](auto j) RIPPLEKV_INLINE_LAMBDA {
        q[j.value] = Load(query_ + c * kQueries + j.value * kLanes);
      });
      Unroll<kKeys>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        const Vec key = Set(keys[i.value][c]);
        Unroll<kQueryVecs>([&](auto j) RIPPLEKV_INLINE_LAMBDA {
          s[i.value][j.value] = Fma(key, q[j.value], s[i.value][j.value]);
        });
      });
    }
  }

  const WindowScoresArgs& args_;
  const T* k_;
  alignas(64) float query_[kMaxDim * kQueries];  // [d, queries], scaled
  float position_[kQueries];                     // in the window
  float exists_[kQueries];                       // 1 or 0
  Vec max_[kQueryVecs], sum_[kQueryVecs];
};

void Pool(Pooling pooling, int kernel, int64_t n, float* scores) {
  constexpr int kRing = 128;
  static_assert(kRing >= kWindowScoresMaxKernel / 2);
  float original[kRing];  // of the positions behind u that are already pooled
  const int half = kernel / 2;
  for (int64_t u = 0; u < n; ++u) {
    const int64_t from = u - half < 0 ? 0 : u - half;
    const int64_t to = u + half < n ? u + half : n - 1;
    const bool max = pooling == Pooling::kMax;
    float pooled = max ? -__builtin_inff() : 0.0f;
    for (int64_t j = from; j <= to; ++j) {
      const float x = j < u ? original[j % kRing] : scores[j];
      pooled = !max ? pooled + x : x > pooled ? x : pooled;
    }
    original[u % kRing] = scores[u];
    scores[u] = max ? pooled : pooled / static_cast<float>(kernel);
  }
}

template <typename T>
void ScoreHead(const WindowScoresArgs& args, int head) {
  const int64_t n = args.rows - args.window;
  float* scores = args.scores + head * n;
  for (int64_t u = 0; u < n; ++u) scores[u] = 0;
  for (int first = 0; first < args.window; first += kQueries) {
    Block<T> block(args, head, first);
    block.Normalize();
    block.Accumulate(scores);
  }
  for (int64_t u = 0; u < n; ++u) scores[u] /= static_cast<float>(args.window);
  if (args.pooling != Pooling::kNone && args.kernel > 1) Pool(args.pooling, args.kernel, n, scores);
}

}  // namespace

void WindowScores(const WindowScoresArgs& args, int head_begin, int head_end) {
  for (int head = head_begin; head < head_end; ++head) {
    if (args.type == KvType::kF32) {
      ScoreHead<float>(args, head);
    } else {
      ScoreHead<uint16_t>(args, head);
    }
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
