// A split's rows in blocks, all KV heads of an item range at a time: the scores of a block's keys,
// their exponentials, the weighted values.
#include "kernels/decode_attention_float.h"
#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#include "kernels/decode_attention_bf16_dot.h"
#include "kernels/decode_attention_int4_dot.h"
#include "kernels/decode_attention_int8_dot.h"
#endif
#include "kernels/decode_attention_items.h"
#include "kernels/isa_functions.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

constexpr int kSplit = kDecodeAttentionSplitRows;
// What is at work at once stays in the cache.
constexpr int kQueriesAtOnce = 128;
constexpr int kFloatsAtOnce = 16384;  // of queries, channels rounded up to 64
/// A score may pass the number that the softmax subtracts by so much before it is raised.
constexpr float kMostAbove = 30;
constexpr int kAtOnce = 3;  // heads whose exponentials do not wait for each other
constexpr float kLowest = -3.4028234663852886e38f;

// What a block of rows of a type is scored and weighed by.
#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)
template <KvType type>
using RowsOf = DotRows<type>;
#else
template <KvType type>
using RowsOf = FloatRows<type>;
template <int n>
RIPPLEKV_INLINE void ExpOfScores(Vec (&x)[n]) {
  for (Vec& v : x) v = Exp(v);
}
#endif

struct KeyFunctions {
  bool whole_blocks;
  int (*query_floats)(int head_dim);
  void (*prepare)(const float* q, int head_dim, float scale, float* out);
  void (*score[kMaxQueries])(const Block& keys, int head_dim, const float* q,
                             float (*scores)[kBlockRows], Ahead& ahead);
};
struct ValueFunctions {
  bool whole_blocks;
  int (*sum_floats)(int head_dim);
  void (*weigh[kMaxQueries])(const Block& values, int head_dim, const float (*p)[kBlockRows],
                             float* sums, Ahead& ahead);
  void (*finish)(const float* sums, int head_dim, float* out);
};

template <typename Rows>
KeyFunctions KeysAs() {
  KeyFunctions f;
  f.whole_blocks = Rows::kWholeBlocks;
  f.query_floats = Rows::QueryFloats;
  f.prepare = Rows::PrepareQuery;
  Unroll<kMaxQueries>([&](auto i) { f.score[i.value] = Rows::template Score<i.value + 1>; });
  return f;
}
template <typename Rows>
ValueFunctions ValuesAs() {
  ValueFunctions f;
  f.whole_blocks = Rows::kWholeBlocks;
  f.sum_floats = Rows::SumFloats;
  Unroll<kMaxQueries>([&](auto i) { f.weigh[i.value] = Rows::template Weigh<i.value + 1>; });
  f.finish = Rows::Finish;
  return f;
}

KeyFunctions KeysOf(KvType type) {
  switch (type) {
    case KvType::kF32:
      return KeysAs<FloatRows<KvType::kF32>>();
    case KvType::kBf16:
      return KeysAs<RowsOf<KvType::kBf16>>();
    case KvType::kInt8:
      return KeysAs<RowsOf<KvType::kInt8>>();
    case KvType::kInt4:
      break;
  }
  return KeysAs<RowsOf<KvType::kInt4>>();
}
ValueFunctions ValuesOf(KvType type) {
  switch (type) {
    case KvType::kF32:
      return ValuesAs<FloatRows<KvType::kF32>>();
    case KvType::kBf16:
      return ValuesAs<RowsOf<KvType::kBf16>>();
    case KvType::kInt8:
      return ValuesAs<RowsOf<KvType::kInt8>>();
    case KvType::kInt4:
      break;
  }
  return ValuesAs<RowsOf<KvType::kInt4>>();
}

/// Query heads of KV heads [kv_head, kv_head + kv_heads) of one split.
struct Part {
  int kv_head, kv_heads;
  int group;    // query heads of a KV head
  int queries;  // of them, from `first_query` on
  int first_query;
};

/// What the query heads of a part have gathered.
struct alignas(64) Work {
  float q[kFloatsAtOnce];
  float sums[kFloatsAtOnce * 3 / 2];
  float p[kQueriesAtOnce][kBlockRows];  // a block's scores, then exponentials
  float sum[kQueriesAtOnce][kLanes];    // of exponentials
  float reference[kQueriesAtOnce];      // p = e^(score - reference)
  GatheredBlock gathered;
};

/// Brings what a query head has gathered down to a higher reference.
void Rescale(float reference, int sum_floats, float* sums, float* weights, int rows, float* sum,
             float* old_reference) {
  const Vec factor = Exp(Set(*old_reference - reference));
  for (int i = 0; i < sum_floats; i += kLanes) Store(sums + i, Mul(Load(sums + i), factor));
  Store(sum, Mul(Load(sum), factor));
  if (weights != nullptr) {
    for (int r = 0; r < rows; r += kLanes) Store(weights + r, Mul(Load(weights + r), factor));
  }
  *old_reference = reference;
}

struct Attention {
  const DecodeAttentionArgs& args;
  KeyFunctions keys;
  ValueFunctions values;
  int sum_floats;
  float scale;
  Work& work;
  const float* prepared = nullptr;  // the queries in work.q are those from here on
  int prepared_heads = 0;

  /// The rows of a split that begins at `split`. out, weights: of the part's first query head, as
  /// the items' in the workspace lie; weights may be null. `next`: the first block that is read
  /// after this part.
  void Attend(const BlockRows& split, const BlockRows& next, const Part& part, const float* q,
              float* out, float* weights) {
    const KvPageLayout& layout = args.layout;
    const int d = layout.head_dim;
    const int64_t query_floats = keys.query_floats(d);
    const int heads = part.kv_heads * part.queries;
    const auto in_group = [&](int i) RIPPLEKV_INLINE_LAMBDA {
      return static_cast<int64_t>(i / part.queries * part.group + i % part.queries);
    };
    // Splits of a sequence follow one another.
    if (prepared != q || prepared_heads != heads) {
      for (int i = 0; i < heads; ++i) {
        keys.prepare(q + in_group(i) * d, d, scale, work.q + i * query_floats);
      }
      prepared = q;
      prepared_heads = heads;
    }
    for (int i = 0; i < heads; ++i) Store(work.sum[i], Zero());
    for (int64_t i = 0; i < static_cast<int64_t>(heads) * sum_floats; i += kLanes) {
      Store(work.sums + i, Zero());
    }
    for (int row = 0; row < split.count; row += kBlockRows) {
      BlockRows rows = split;
      rows.first += row;
      rows.count = split.count - row < kBlockRows ? split.count - row : kBlockRows;
      BlockRows after = next;
      if (row + kBlockRows < split.count) {
        const int left = split.count - row - kBlockRows;
        after = split;
        after.first = rows.first + kBlockRows;
        after.count = left < kBlockRows ? left : kBlockRows;
      }
      for (int h = 0; h < part.kv_heads; ++h) {
        const Block block = rows.Of(layout.k, part.kv_head + h, keys.whole_blocks, &work.gathered);
        Ahead ahead(after, layout.k, part.kv_head + h);
        for (int g = 0; g < part.queries; g += kMaxQueries) {
          const int n = part.queries - g < kMaxQueries ? part.queries - g : kMaxQueries;
          const int i = h * part.queries + g;
          keys.score[n - 1](block, d, work.q + i * query_floats, work.p + i, ahead);
        }
      }
      const auto weights_of = [&](int i) RIPPLEKV_INLINE_LAMBDA {
        return weights == nullptr ? nullptr : weights + in_group(i) * kSplit;
      };
      int i = 0;
      for (; i + kAtOnce <= heads; i += kAtOnce) {
        Exponentials<kAtOnce>(i, rows.count, row, weights_of);
      }
      for (; i < heads; ++i) Exponentials<1>(i, rows.count, row, weights_of);
      for (int h = 0; h < part.kv_heads; ++h) {
        const Block block =
            rows.Of(layout.v, part.kv_head + h, values.whole_blocks, &work.gathered);
        Ahead ahead(after, layout.v, part.kv_head + h);
        for (int g = 0; g < part.queries; g += kMaxQueries) {
          const int n = part.queries - g < kMaxQueries ? part.queries - g : kMaxQueries;
          const int i = h * part.queries + g;
          values.weigh[n - 1](block, d, work.p + i,
                              work.sums + static_cast<int64_t>(i) * sum_floats, ahead);
        }
      }
    }
    for (int i = 0; i < heads; ++i) {
      float* const to = out + in_group(i) * (d + 2);
      values.finish(work.sums + static_cast<int64_t>(i) * sum_floats, d, to);
      to[d] = work.reference[i];
      to[d + 1] = Sum(Load(work.sum[i]));
    }
  }

  /// Turns `count` scores of a block of query heads [i, i + n), the first one that of the split's
  /// row `row`, into exponentials. weights_of(head): where they are kept, may be null.
  template <int n, typename F>
  RIPPLEKV_INLINE void Exponentials(int i, int count, int row, const F& weights_of) {
    Unroll<n>([&](auto j) RIPPLEKV_INLINE_LAMBDA {
      const int head = i + j.value;
      float* const p = work.p[head];
      for (int r = count; r < kBlockRows; ++r) p[r] = -__builtin_inff();
      const Vec high = Max(Load(p), Load(p + kLanes));
      if (row == 0) {
        const float max = MaxLane(high);
        work.reference[head] = max > kLowest ? max : kLowest;
      } else if (AnyGreater(high, Set(work.reference[head] + kMostAbove))) {
        Rescale(MaxLane(high), sum_floats, work.sums + static_cast<int64_t>(head) * sum_floats,
                weights_of(head), row, work.sum[head], &work.reference[head]);
      }
    });
    Vec x[2 * n];
    Unroll<n>([&](auto j) RIPPLEKV_INLINE_LAMBDA {
      const float* const p = work.p[i + j.value];
      const Vec reference = Set(work.reference[i + j.value]);
      x[2 * j.value] = Sub(Load(p), reference);
      x[2 * j.value + 1] = Sub(Load(p + kLanes), reference);
    });
    ExpOfScores(x);
    Unroll<n>([&](auto j) RIPPLEKV_INLINE_LAMBDA {
      const int head = i + j.value;
      const Vec a = x[2 * j.value], b = x[2 * j.value + 1];
      Store(work.p[head], a);
      Store(work.p[head] + kLanes, b);
      Store(work.sum[head], Add(Load(work.sum[head]), Add(a, b)));
      if (float* const weights = weights_of(head); weights != nullptr) {
        Store(weights + row, a);
        Store(weights + row + kLanes, b);
      }
    });
  }
};

}  // namespace

void DecodeAttentionPartial(const DecodeAttentionArgs& args, int64_t begin, int64_t end) {
  const KvPageLayout& layout = args.layout;
  const int group = args.heads / layout.kv_heads;
  const int64_t stride = layout.head_dim + 2;
  float* const all_weights = args.workspace + DecodeAttentionItems(args) * group * stride;
  const int fit = kFloatsAtOnce / ((layout.head_dim + 63) / 64 * 64);
  const int most = fit < kQueriesAtOnce ? fit : kQueriesAtOnce;
  Work work;
  const ValueFunctions values = ValuesOf(layout.v.type);
  Attention attention = {args,
                         KeysOf(layout.k.type),
                         values,
                         values.sum_floats(layout.head_dim),
                         1.0f / __builtin_sqrtf(static_cast<float>(layout.head_dim)),
                         work};
  Items items{args};
  for (int64_t i = begin; i < end;) {
    items.Seek(i);
    const BlockRows split = items.rows(kSplit);
    const PagedSequence& s = *split.sequence;
    Part part{items.kv_head(), 1, group, group, 0};
    const int64_t left = end - i;
    // Of the same split.
    part.kv_heads = layout.kv_heads - part.kv_head;
    if (left < part.kv_heads) part.kv_heads = static_cast<int>(left);
    const int heads_at_once = group < most ? most / group : 1;
    if (heads_at_once < part.kv_heads) part.kv_heads = heads_at_once;
    // Most often the same thread goes on with the item that follows, whoever calls.
    Items following = items;
    const BlockRows next = following.Seek(i + part.kv_heads) ? following.rows(kBlockRows)
                                                             : BlockRows{&layout, &s, 0, 0};
    const bool weigh = s.mass != nullptr && split.first + split.count > s.mass_first_row;
    for (part.first_query = 0; part.first_query < group; part.first_query += most) {
      const int rest = group - part.first_query;
      part.queries = rest < most ? rest : most;
      const int64_t query = i * group + part.first_query;
      attention.Attend(split, next, part,
                       args.q + (static_cast<int64_t>(items.sequence) * args.heads +
                                 static_cast<int64_t>(part.kv_head) * group + part.first_query) *
                                    layout.head_dim,
                       args.workspace + query * stride,
                       weigh ? all_weights + query * kSplit : nullptr);
    }
    i += part.kv_heads;
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
