// Sixteen queries lie in the lanes and keys are broadcast, so that only the sums over the queries
// go across lanes. The block's scores of all keys are kept in the second-level cache from the
// products to the sums, so nothing is computed twice.
#include "kernels/isa_functions.h"
#include "kernels/kv_load.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

static_assert(kLanes == kKeyScoresLanes);
constexpr int kMaxDim = kKeyScoresMaxHeadDim;
#if defined(__AVX512F__)
constexpr int kKeys = 16;  // accumulators; with more, storing them holds the next products up
#else
constexpr int kKeys = 4;
#endif

/// Up to kLanes queries from `first` on against the keys that they see.
template <typename T>
class Block {
 public:
  Block(const KeyScoresArgs& args, int head, int first, int count, float* scores)
      : args_(args),
        d_(args.head_dim),
        k_(static_cast<const T*>(args.k) +
           head / (args.heads / args.kv_heads) * args.kv_head_stride),
        everyone_sees_(args.positions[first] + 1),
        keys_(args.positions[first + count - 1] + 1),
        scores_(scores) {
    for (int i = 0; i < kLanes; ++i) {
      // Lanes without a query compute with zeros and count as 0.
      const bool exists = i < count;
      const T* row = static_cast<const T*>(args.q) +
                     (static_cast<int64_t>(first + i) * args.heads + head) * d_;
      for (int64_t c = 0; c < d_; ++c) {
        const T value = exists ? row[c] : T{};
        if (ByPairs()) {
          __builtin_memcpy(reinterpret_cast<char*>(query_ + c / 2 * kLanes + i) +
                               static_cast<uint64_t>(c % 2) * sizeof(T),
                           &value, sizeof value);
        } else {
          query_[c * kLanes + i] = ToFloat(value);
        }
      }
      position_[i] = static_cast<float>(args.positions[exists ? first + i : first]);
      exists_[i] = exists ? 1.0f : 0.0f;
    }
  }

  /// sums[u] += the queries' attention to u, for u < end.
  void AddTo(float* sums) {
    max_ = Set(-__builtin_inff());
    int64_t u = 0;
    for (; u + kKeys <= keys_; u += kKeys) Multiply<kKeys>(u);
    for (; u + 4 <= keys_; u += 4) Multiply<4>(u);
    for (; u < keys_; ++u) Multiply<1>(u);
    Exponentiate();
    AddAttention(sums);
  }

 private:
  static RIPPLEKV_INLINE float ToFloat(float x) { return x; }
  static RIPPLEKV_INLINE float ToFloat(uint16_t x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    return LoadAs<float>(&bits);
  }

  /// Whether products come from bf16 pairs: query_ then holds columns c and c + 1 side by side.
  RIPPLEKV_INLINE bool ByPairs() const {
#if defined(__AVX512BF16__)
    return sizeof(T) == sizeof(uint16_t) && d_ % 2 == 0;
#else
    return false;
#endif
  }

  /// q k of n keys from u on, -inf where a query does not see the key, and the maximum with them.
  template <int n>
  RIPPLEKV_INLINE void Multiply(int64_t u) {
    Vec s[n];
    Unroll<n>([&](auto i) RIPPLEKV_INLINE_LAMBDA { s[i.value] = Zero(); });
    if (ByPairs()) {
      MultiplyPairs(k_ + u * d_, s);
    } else {
      const float* keys = Floats<n>(k_ + u * d_);
      for (int64_t c = 0; c < d_; ++c) {
        const Vec q = Load(query_ + c * kLanes);
        Unroll<n>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
          s[i.value] = Fma(Set(keys[i.value * d_ + c]), q, s[i.value]);
        });
      }
    }
    if (u + n > everyone_sees_) {
      const Vec lowest = Set(-__builtin_inff());
      const Vec position = Load(position_);
      Unroll<n>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        s[i.value] = IfLess(position, Set(static_cast<float>(u + i.value)), lowest, s[i.value]);
      });
    }
    Unroll<n>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      Store(scores_ + (u + i.value) * kLanes, s[i.value]);
      max_ = Max(max_, s[i.value]);
    });
  }

  template <int n>
  RIPPLEKV_INLINE void MultiplyPairs([[maybe_unused]] const T* keys,
                                     [[maybe_unused]] Vec (&s)[n]) const {
#if defined(__AVX512BF16__)
    // Three keys to an address.
    constexpr int kAddresses = (n + 2) / 3;
    const T* row[kAddresses];
    Unroll<kAddresses>([&](auto a)
                           RIPPLEKV_INLINE_LAMBDA { row[a.value] = keys + 3 * a.value * d_; });
    const float* query = query_;
    const T* const end = keys + d_;
    while (row[0] != end) {
      const __m512bh q = (__m512bh)_mm512_load_si512(query);
      Unroll<n>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        const __m512bh key =
            (__m512bh)_mm512_set1_epi32(LoadAs<int32_t>(row[i.value / 3] + i.value % 3 * d_));
        s[i.value].v = _mm512_dpbf16_ps(s[i.value].v, q, key);
      });
      query += kLanes;
      Unroll<kAddresses>([&](auto a) RIPPLEKV_INLINE_LAMBDA { row[a.value] += 2; });
    }
#endif
  }

  /// n rows as floats, one d_ after the other.
  template <int n>
  RIPPLEKV_INLINE const float* Floats(const float* rows) {
    return rows;
  }
  template <int n>
  RIPPLEKV_INLINE const float* Floats(const uint16_t* rows) {
    const int64_t count = n * d_;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) Store(keys_as_floats_ + i, LoadKv(rows + i));
    for (; i < count; ++i) keys_as_floats_[i] = ToFloat(rows[i]);
    return keys_as_floats_;
  }

  /// scores_ become e^(score - maximum), sum_ their sums.
  void Exponentiate() {
    constexpr int kChains = 4;  // a sum each, lest one waits for another
    const Vec scale = Set(1.0f / __builtin_sqrtf(static_cast<float>(d_)));
    const auto exponentiate = [&](int64_t u) RIPPLEKV_INLINE_LAMBDA {
      const Vec e = Exp(Mul(Sub(Load(scores_ + u * kLanes), max_), scale));
      Store(scores_ + u * kLanes, e);
      return e;
    };
    Vec sum[kChains];
    Unroll<kChains>([&](auto i) RIPPLEKV_INLINE_LAMBDA { sum[i.value] = Zero(); });
    int64_t u = 0;
    for (; u + kChains <= keys_; u += kChains) {
      Unroll<kChains>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        sum[i.value] = Add(sum[i.value], exponentiate(u + i.value));
      });
    }
    for (; u < keys_; ++u) sum[0] = Add(sum[0], exponentiate(u));
    sum_ = Add(Add(sum[0], sum[1]), Add(sum[2], sum[3]));
  }

  /// sums[u] += sum over the queries of e / sum_.
  void AddAttention(float* sums) const {
    const Vec factor = Div(Load(exists_), sum_);
    const int64_t n = keys_ < args_.end ? keys_ : args_.end;
    const auto weight = [&](int64_t u) RIPPLEKV_INLINE_LAMBDA {
      return Mul(Load(scores_ + u * kLanes), factor);
    };
    int64_t u = 0;
    for (; u + 4 <= n; u += 4) {
      float four[4];
      StoreSums(four, weight(u), weight(u + 1), weight(u + 2), weight(u + 3));
      for (int i = 0; i < 4; ++i) sums[u + i] += four[i];
    }
    for (; u < n; ++u) {
      float four[4];
      StoreSums(four, weight(u), Zero(), Zero(), Zero());
      sums[u] += four[0];
    }
  }

  const KeyScoresArgs& args_;
  const int64_t d_;
  const T* k_;
  const int64_t everyone_sees_;  // keys
  const int64_t keys_;           // that the last query sees
  float* scores_;                // [keys][lanes]
  Vec max_, sum_;
  alignas(64) float query_[kMaxDim * kLanes];  // [d, lanes], or [d / 2, lanes] pairs
  float position_[kLanes];
  float exists_[kLanes];  // 1 or 0
  alignas(64) float keys_as_floats_[sizeof(T) == sizeof(uint16_t) ? kKeys * kMaxDim : 1];
};

template <typename T>
void AddQueries(const KeyScoresArgs& args, int head, int query_begin, int query_end, float* scratch,
                float* sums) {
  for (int64_t u = 0; u < args.end; ++u) sums[u] = 0;
  for (int first = query_begin; first < query_end; first += kLanes) {
    const int left = query_end - first;
    Block<T>(args, head, first, left < kLanes ? left : kLanes, scratch).AddTo(sums);
  }
}

}  // namespace

void KeyScoresPart(const KeyScoresArgs& args, int head, int query_begin, int query_end,
                   float* scratch, float* sums) {
  if (args.type == KvType::kF32) {
    AddQueries<float>(args, head, query_begin, query_end, scratch, sums);
  } else {
    AddQueries<uint16_t>(args, head, query_begin, query_end, scratch, sums);
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
