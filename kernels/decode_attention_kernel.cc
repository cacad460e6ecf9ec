#include "kernels/isa_functions.h"
#include "kernels/kv_load.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

constexpr int kSplit = kDecodeAttentionSplitRows;
constexpr int kMaxVecs = kDecodeAttentionMaxHeadDim / kLanes;
constexpr int kMaxQueries = 4;  // of a group at a time

#if defined(__AVX512F__)
constexpr int kRowTile = 4;    // keys at a time
constexpr int kValueVecs = 4;  // vectors of a value row at a time
#elif defined(__AVX2__)
constexpr int kRowTile = 2;
constexpr int kValueVecs = 1;
#else
constexpr int kRowTile = 1;
constexpr int kValueVecs = 1;
#endif

/// The rows of one split of one KV head.
struct Rows {
  const KvPageLayout& layout;
  const PagedSequence& sequence;
  int kv_head;
  int64_t first;
  int count;
};

/// f(data, next, row, count) for each run of consecutive rows in a page; `next` is where the run
/// after it starts (the same run again for the last one); row counts from the split's start.
template <typename T, typename F>
RIPPLEKV_INLINE void ForRuns(const Rows& rows, size_t region, const F& f) {
  const int64_t per_page = rows.layout.rows_per_page;
  const int64_t page_start = rows.kv_head * per_page * rows.layout.head_dim;
  const auto at = [&](int64_t page) RIPPLEKV_INLINE_LAMBDA {
    return reinterpret_cast<const T*>(rows.sequence.pages[page] + region) + page_start;
  };
  int64_t page = rows.first / per_page;
  int64_t in_page = rows.first % per_page;
  for (int row = 0; row < rows.count;) {
    const int64_t room = per_page - in_page;
    const int left = rows.count - row;
    const int run = room < left ? static_cast<int>(room) : left;
    const T* data = at(page) + in_page * rows.layout.head_dim;
    f(data, row + run < rows.count ? at(page + 1) : data, row, run);
    row += run;
    in_page = 0;
    ++page;
  }
}

/// Asks for `bytes` from p on: pages lie anywhere, so the processor cannot guess the next one.
RIPPLEKV_INLINE void Prefetch(const void* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(p) + i);
}

/// scores[g][row + r] = q[g] . key r for `keys` consecutive rows.
template <typename T, int queries, int keys>
RIPPLEKV_INLINE void Dot(const T* k, int head_dim, const Vec (*q)[kMaxVecs],
                         float (*scores)[kSplit], int row) {
  Vec sum[keys][queries];
  Unroll<keys>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA { sum[r.value][g.value] = Zero(); });
  });
  const int whole = head_dim / kLanes;
  const int tail = head_dim % kLanes;
  for (int c = 0; c < whole; ++c) {
    Unroll<keys>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
      const Vec key = LoadKv(k + r.value * head_dim + c * kLanes);
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        sum[r.value][g.value] = Fma(q[g.value][c], key, sum[r.value][g.value]);
      });
    });
  }
  if (tail > 0) {
    Unroll<keys>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
      const Vec key = LoadKvUpTo(k + r.value * head_dim + whole * kLanes, tail);
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        sum[r.value][g.value] = Fma(q[g.value][whole], key, sum[r.value][g.value]);
      });
    });
  }
  Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
    float* out = scores[g.value] + row;
    if constexpr (keys == 4) {
      StoreSums(out, sum[0][g.value], sum[1][g.value], sum[2][g.value], sum[3][g.value]);
    } else {
      Unroll<keys>([&](auto r)
                       RIPPLEKV_INLINE_LAMBDA { out[r.value] = Sum(sum[r.value][g.value]); });
    }
  });
}

/// out[g][0 ... vecs * 16) = sum over rows of p[g][row] * value row from `column` on.
template <typename T, int queries, int vecs>
RIPPLEKV_INLINE void WeighValues(const Rows& rows, const float (*p)[kSplit], int column, float* out,
                                 int64_t out_stride) {
  const int head_dim = rows.layout.head_dim;
  const int lanes = head_dim - column < kLanes ? head_dim - column : kLanes;  // of the last vector
  Vec sum[queries][vecs];
  Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
    Unroll<vecs>([&](auto c) RIPPLEKV_INLINE_LAMBDA { sum[g.value][c.value] = Zero(); });
  });
  ForRuns<T>(rows, rows.layout.v_offset,
             [&](const T* v, const T*, int row, int count) RIPPLEKV_INLINE_LAMBDA {
               for (int r = 0; r < count; ++r) {
                 Vec value[vecs];
                 Unroll<vecs>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
                   const T* at = v + static_cast<int64_t>(r) * head_dim + column + c.value * kLanes;
                   value[c.value] = vecs == 1 ? LoadKvUpTo(at, lanes) : LoadKv(at);
                 });
                 Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
                   const Vec weight = Set(p[g.value][row + r]);
                   Unroll<vecs>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
                     sum[g.value][c.value] = Fma(weight, value[c.value], sum[g.value][c.value]);
                   });
                 });
               }
             });
  Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
    float* o = out + g.value * out_stride + column;
    if constexpr (vecs == 1) {
      if (lanes < kLanes) return StorePart(o, lanes, sum[g.value][0]);
    }
    Unroll<vecs>(
        [&](auto c) RIPPLEKV_INLINE_LAMBDA { Store(o + c.value * kLanes, sum[g.value][c.value]); });
  });
}

/// `queries` query heads of the group over one split. out: per query [d] values, then maximum and
/// sum. weights: per query [kSplit] exponentials of the scores minus the maximum, or null.
template <typename T, int queries>
void AttendSplit(const Rows& rows, const float* q, float* out, int64_t out_stride, float* weights) {
  const int head_dim = rows.layout.head_dim;
  const int whole = head_dim / kLanes;
  const int tail = head_dim % kLanes;
  Vec scaled[queries][kMaxVecs];
  const Vec scale = Set(1.0f / __builtin_sqrtf(static_cast<float>(head_dim)));
  for (int g = 0; g < queries; ++g) {
    const float* qg = q + g * head_dim;
    for (int c = 0; c < whole; ++c) scaled[g][c] = Mul(Load(qg + c * kLanes), scale);
    if (tail > 0) scaled[g][whole] = Mul(LoadPart(qg + whole * kLanes, tail), scale);
  }

  alignas(64) float p[queries][kSplit];
  // While keys are read, the next run's keys and these rows' values are on their way.
  const int64_t tile_bytes = static_cast<int64_t>(sizeof(T)) * kRowTile * head_dim;
  const int64_t to_values =
      static_cast<int64_t>((rows.layout.v_offset - rows.layout.k_offset) / sizeof(T));
  ForRuns<T>(rows, rows.layout.k_offset,
             [&](const T* k, const T* next, int row, int count) RIPPLEKV_INLINE_LAMBDA {
               int r = 0;
               for (; r + kRowTile <= count; r += kRowTile) {
                 const int64_t element = static_cast<int64_t>(r) * head_dim;
                 Prefetch(next + element, tile_bytes);
                 Prefetch(k + to_values + element, tile_bytes);
                 Dot<T, queries, kRowTile>(k + element, head_dim, scaled, p, row + r);
               }
               for (; r < count; ++r) {
                 Dot<T, queries, 1>(k + static_cast<int64_t>(r) * head_dim, head_dim, scaled, p,
                                    row + r);
               }
             });

  const float lowest = -__builtin_inff();
  const int padded = (rows.count + kLanes - 1) / kLanes * kLanes;
  for (int g = 0; g < queries; ++g) {
    for (int r = rows.count; r < padded; ++r) p[g][r] = lowest;
    Vec high = Set(lowest);
    for (int r = 0; r < padded; r += kLanes) high = Max(high, Load(p[g] + r));
    const float max = MaxLane(high);
    Vec sum = Zero();
    for (int r = 0; r < padded; r += kLanes) {
      const Vec e = Exp(Sub(Load(p[g] + r), Set(max)));
      Store(p[g] + r, e);
      sum = Add(sum, e);
    }
    out[g * out_stride + head_dim] = max;
    out[g * out_stride + head_dim + 1] = Sum(sum);
    if (weights != nullptr) {
      for (int r = 0; r < padded; r += kLanes) Store(weights + g * kSplit + r, Load(p[g] + r));
    }
  }

  int column = 0;
  if constexpr (kValueVecs > 1) {
    for (; column + kValueVecs * kLanes <= head_dim; column += kValueVecs * kLanes) {
      WeighValues<T, queries, kValueVecs>(rows, p, column, out, out_stride);
    }
  }
  for (; column < head_dim; column += kLanes) {
    WeighValues<T, queries, 1>(rows, p, column, out, out_stride);
  }
}

template <typename T>
void AttendItem(const Rows& rows, int group, const float* q, float* out, int64_t out_stride,
                float* weights) {
  for (int g = 0; g < group; g += kMaxQueries) {
    const int queries = group - g < kMaxQueries ? group - g : kMaxQueries;
    Unroll<kMaxQueries>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      if (queries == i.value + 1) {
        AttendSplit<T, i.value + 1>(rows, q + g * rows.layout.head_dim, out + g * out_stride,
                                    out_stride,
                                    weights != nullptr ? weights + g * kSplit : nullptr);
      }
    });
  }
}

int64_t Splits(int64_t rows) { return (rows + kSplit - 1) / kSplit; }

/// e^(from - to), the factor that brings a split's sums from its own maximum to the common one.
RIPPLEKV_INLINE float Rescale(float from, float to) {
  alignas(64) float factor[kLanes];
  Store(factor, Exp(Set(from - to)));
  return factor[0];
}

/// The parts of one query head that its splits left.
struct Parts {
  const float* first;  // of split 0: [d] values, maximum, sum
  int64_t step;        // to the next split's
  int64_t splits;
  int head_dim;
  float maximum(int64_t split) const { return first[split * step + head_dim]; }
  float sum(int64_t split) const { return first[split * step + head_dim + 1]; }
};

RIPPLEKV_INLINE float Highest(const Parts& parts) {
  float max = -__builtin_inff();
  for (int64_t i = 0; i < parts.splits; ++i) {
    max = parts.maximum(i) > max ? parts.maximum(i) : max;
  }
  return max;
}

/// mass[0 ... n) = (or +=) scale * weights.
RIPPLEKV_INLINE void AddMass(const float* weights, float scale, int n, bool add, float* mass) {
  const Vec s = Set(scale);
  int r = 0;
  for (; r + kLanes <= n; r += kLanes) {
    const Vec before = add ? Load(mass + r) : Zero();
    Store(mass + r, Fma(s, Load(weights + r), before));
  }
  if (r < n) {
    const Vec before = add ? LoadPart(mass + r, n - r) : Zero();
    StorePart(mass + r, n - r, Fma(s, LoadPart(weights + r, n - r), before));
  }
}

/// One query head's share of its KV head's mass; `weights` of split 0, `weights_step` to the next.
void MergeMass(const Parts& parts, const float* weights, int64_t weights_step,
               const PagedSequence& sequence, bool add, float* mass) {
  const float max = Highest(parts);
  float sum = 0;
  for (int64_t i = 0; i < parts.splits; ++i) sum += Rescale(parts.maximum(i), max) * parts.sum(i);
  for (int64_t i = sequence.mass_first_row / kSplit; i < parts.splits; ++i) {
    const int64_t row = i * kSplit;
    const int64_t left = sequence.rows - row;
    const int count = left < kSplit ? static_cast<int>(left) : kSplit;
    const int64_t before = sequence.mass_first_row - row;
    const int skip = before > 0 ? static_cast<int>(before) : 0;
    if (skip >= count) continue;
    AddMass(weights + i * weights_step + skip, Rescale(parts.maximum(i), max) / sum, count - skip,
            add, mass + (row + skip - sequence.mass_first_row));
  }
}

}  // namespace

void DecodeAttentionPartial(const DecodeAttentionArgs& args, int64_t begin, int64_t end) {
  const KvPageLayout& layout = args.layout;
  const int group = args.heads / layout.kv_heads;
  const int64_t stride = layout.head_dim + 2;
  float* const all_weights = args.workspace + DecodeAttentionItems(args) * group * stride;
  int64_t first_item = 0;  // of the sequence
  for (int s = 0; s < args.sequences && first_item < end; ++s) {
    const bool wanted = args.sequence[s].mass != nullptr;
    const int64_t rows = args.sequence[s].rows;
    const int64_t items = Splits(rows) * layout.kv_heads;
    const int64_t from = begin > first_item ? begin - first_item : 0;
    const int64_t to = end - first_item < items ? end - first_item : items;
    for (int64_t i = from; i < to; ++i) {
      const int kv_head = static_cast<int>(i % layout.kv_heads);
      const int64_t row = i / layout.kv_heads * kSplit;
      const int count = static_cast<int>(rows - row < kSplit ? rows - row : kSplit);
      const Rows split{layout, args.sequence[s], kv_head, row, count};
      const float* q =
          args.q + (static_cast<int64_t>(s) * args.heads + kv_head * group) * layout.head_dim;
      float* out = args.workspace + (first_item + i) * group * stride;
      float* weights = wanted && row + count > args.sequence[s].mass_first_row
                           ? all_weights + (first_item + i) * group * kSplit
                           : nullptr;
      if (layout.type == KvType::kF32) {
        AttendItem<float>(split, group, q, out, stride, weights);
      } else {
        AttendItem<uint16_t>(split, group, q, out, stride, weights);
      }
    }
    first_item += items;
  }
}

void DecodeAttentionMerge(const DecodeAttentionArgs& args, int64_t begin, int64_t end) {
  const KvPageLayout& layout = args.layout;
  const int d = layout.head_dim;
  const int group = args.heads / layout.kv_heads;
  const int64_t stride = d + 2;
  const int64_t step = layout.kv_heads * group * stride;  // from split to split
  const float* const all_weights = args.workspace + DecodeAttentionItems(args) * group * stride;
  int64_t first_item = 0;
  for (int s = 0; s < args.sequences; ++s) {
    const PagedSequence& sequence = args.sequence[s];
    const int64_t splits = Splits(sequence.rows);
    const int64_t first_head = static_cast<int64_t>(s) * args.heads;
    for (int h = 0; h < args.heads; ++h) {
      if (first_head + h < begin || first_head + h >= end) continue;
      const int64_t first_query = (first_item + h / group) * group;  // of the KV head's split 0
      const Parts parts{args.workspace + (first_query + h % group) * stride, step, splits, d};
      float* out = args.out + (first_head + h) * d;
      const float max = Highest(parts);
      for (int c = 0; c < d; ++c) out[c] = 0;
      float sum = 0;
      for (int64_t i = 0; i < splits; ++i) {
        const float* part = parts.first + i * step;
        const float weight = Rescale(parts.maximum(i), max);
        for (int c = 0; c < d; ++c) out[c] += weight * part[c];
        sum += weight * parts.sum(i);
      }
      if (splits > 0) {
        for (int c = 0; c < d; ++c) out[c] /= sum;
      }
      if (sequence.mass == nullptr || h % group != 0) continue;
      for (int g = 0; g < group; ++g) {
        const Parts query{args.workspace + (first_query + g) * stride, step, splits, d};
        MergeMass(query, all_weights + (first_query + g) * kSplit, layout.kv_heads * group * kSplit,
                  sequence, g > 0, sequence.mass + h / group * sequence.mass_stride);
      }
    }
    first_item += splits * layout.kv_heads;
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
