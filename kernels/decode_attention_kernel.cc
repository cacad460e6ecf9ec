#include "kernels/isa_functions.h"
#include "kernels/kv_chunk.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

constexpr int kSplit = kDecodeAttentionSplitRows;
constexpr int kMaxChunks = kDecodeAttentionMaxHeadDim / kChunk;

#if defined(__AVX512F__)
constexpr int kMaxQueries = 3;   // of a group at a time
constexpr int kRowTile = 4;      // keys at a time
constexpr int kValueChunks = 2;  // chunks of a value row at a time
#elif defined(__AVX2__)
constexpr int kMaxQueries = 3;
constexpr int kRowTile = 2;
constexpr int kValueChunks = 1;
#else
constexpr int kMaxQueries = 1;
constexpr int kRowTile = 1;
constexpr int kValueChunks = 1;
#endif

/// The rows of one split of one KV head.
struct Rows {
  const KvPageLayout* layout;
  const PagedSequence* sequence;
  int kv_head;
  int64_t first;
  int count;
};

/// Walks over a split's rows as runs of consecutive ones in a page.
struct Runs {
  const Rows& rows;
  int64_t page, in_page;
  int row = 0;  // from the split's start

  RIPPLEKV_INLINE explicit Runs(const Rows& r)
      : rows(r),
        page(r.first / r.layout->rows_per_page),
        in_page(r.first % r.layout->rows_per_page) {}
  RIPPLEKV_INLINE int count() const {
    const int64_t room = rows.layout->rows_per_page - in_page;
    const int left = rows.count - row;
    return room < left ? static_cast<int>(room) : left;
  }
  RIPPLEKV_INLINE int64_t index() const {
    return rows.kv_head * static_cast<int64_t>(rows.layout->rows_per_page) + in_page;
  }
  RIPPLEKV_INLINE const std::byte* data(const KvSide& side) const {
    return rows.sequence->pages[page] + side.offset + index() * side.row_bytes;
  }
  /// The rows' scales and minima.
  RIPPLEKV_INLINE const std::byte* params(const KvSide& side) const {
    return rows.sequence->pages[page] + side.param_offset + index() * side.param_bytes;
  }
  RIPPLEKV_INLINE void Advance(int count) {
    row += count;
    in_page = 0;
    ++page;
  }
};

/// Asks for a split's rows a few at a time: pages lie anywhere, so the processor cannot guess.
struct Ahead {
  Runs runs;
  KvSide side;
  const std::byte* at = nullptr;
  int left = 0;  // rows of the run

  RIPPLEKV_INLINE Ahead(const Rows& rows, const KvSide& s) : runs(rows), side(s) { Start(); }
  RIPPLEKV_INLINE void Start() {
    if (runs.row >= runs.rows.count) return;
    at = runs.data(side);
    left = runs.count();
    if (side.param_bytes > 0) {
      const std::byte* params = runs.params(side);
      const int64_t bytes = static_cast<int64_t>(left * side.param_bytes);
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(params + i, 0, 2);
    }
    runs.Advance(left);
  }
  RIPPLEKV_INLINE void Next(int n) {
    while (n > 0 && left > 0) {
      const int now = n < left ? n : left;
      const int64_t bytes = static_cast<int64_t>(now) * side.row_bytes;
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
      at += bytes;
      left -= now;
      n -= now;
      if (left == 0) Start();
    }
  }
};

/// Queries times the scale, in the keys' order of lanes, zeros behind the head's channels.
struct Queries {
  alignas(64) float q[kMaxQueries][kMaxChunks][2][kLanes];
};

void ArrangeQueries(const float* q, int queries, int head_dim, KvType keys, Queries* out) {
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(head_dim));
  for (int g = 0; g < queries; ++g) {
    for (int c = 0; c * kChunk < head_dim; ++c) {
      for (int half = 0; half < 2; ++half) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const int channel = c * kChunk + ChunkChannel(keys, half, lane);
          out->q[g][c][half][lane] = channel < head_dim ? q[g * head_dim + channel] * scale : 0;
        }
      }
    }
  }
}

/// Consecutive rows of a page.
struct Run {
  const std::byte* data;
  const std::byte* params;
  int64_t row_bytes, param_bytes;

  RIPPLEKV_INLINE Run(const Runs& runs, const KvSide& side)
      : data(runs.data(side)),
        params(runs.params(side)),
        row_bytes(static_cast<int64_t>(side.row_bytes)),
        param_bytes(static_cast<int64_t>(side.param_bytes)) {}
  template <KvType type>
  RIPPLEKV_INLINE Chunk Load(int64_t row, int chunk) const {
    return LoadChunk<type>(data + row * row_bytes + chunk * kChunkBytes<type>,
                           params + row * param_bytes + chunk * kChunkParamBytes<type>);
  }
  template <KvType type>
  RIPPLEKV_INLINE Chunk LoadUpTo(int64_t row, int chunk, int channels) const {
    return LoadChunkUpTo<type>(data + row * row_bytes + chunk * kChunkBytes<type>,
                               params + row * param_bytes + chunk * kChunkParamBytes<type>,
                               channels);
  }
  /// x[0 ... n) *= the scales of the rows from `row` on.
  RIPPLEKV_INLINE void Scale(int64_t row, int n, const float* x, float* out) const {
    const float* scales = reinterpret_cast<const float*>(params) + row;
    for (int i = 0; i < n; ++i) out[i] = x[i] * scales[i];
  }
};

/// scores[g][r] = q[g] . key `row` + r for `keys` rows of `chunks` whole chunks (0: any).
template <KvType type, int queries, int keys, int chunks>
RIPPLEKV_INLINE void Dot(const Run& run, int row, int head_dim, const Queries& q,
                         float (*scores)[kSplit]) {
  Vec sum[keys][queries];
  Unroll<keys>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA { sum[r.value][g.value] = Zero(); });
  });
  const auto add = [&](int c, auto load) RIPPLEKV_INLINE_LAMBDA {
    Unroll<keys>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
      const Chunk key = load(row + r.value, c);
      Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
        Vec& s = sum[r.value][g.value];
        s = Fma(Load(q.q[g.value][c][0]), key.a, s);
        s = Fma(Load(q.q[g.value][c][1]), key.b, s);
      });
    });
  };
  const auto load = [&](int64_t r, int c) RIPPLEKV_INLINE_LAMBDA { return run.Load<type>(r, c); };
  if constexpr (chunks > 0) {
    Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA { add(c.value, load); });
  } else {
    const int whole = head_dim / kChunk;
    const int tail = head_dim % kChunk;
    for (int c = 0; c < whole; ++c) add(c, load);
    if (tail > 0) {
      add(whole,
          [&](int64_t r, int c) RIPPLEKV_INLINE_LAMBDA { return run.LoadUpTo<type>(r, c, tail); });
    }
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

/// The scores of a split's rows; `ahead` goes along.
template <KvType type, int queries, int chunks>
void ScoresOfChunks(const Rows& rows, const Queries& q, float (*scores)[kSplit], Ahead& ahead) {
  const int head_dim = rows.layout->head_dim;
  for (Runs runs(rows); runs.row < rows.count;) {
    const int count = runs.count();
    const Run run(runs, rows.layout->k);
    const auto here = reinterpret_cast<float (*)[kSplit]>(scores[0] + runs.row);
    int r = 0;
    for (; r + kRowTile <= count; r += kRowTile) {
      ahead.Next(kRowTile);
      Dot<type, queries, kRowTile, chunks>(run, r, head_dim, q, here);
    }
    for (; r < count; ++r) {
      ahead.Next(1);
      Dot<type, queries, 1, chunks>(run, r, head_dim, q, here);
    }
    if constexpr (kRowScale<type>) {
      for (int g = 0; g < queries; ++g) run.Scale(0, count, here[g], here[g]);
    }
    runs.Advance(count);
  }
}

template <KvType type, int queries>
void Scores(const Rows& rows, const Queries& q, float (*scores)[kSplit], Ahead& ahead) {
  if (rows.layout->head_dim == 2 * kChunk) {
    return ScoresOfChunks<type, queries, 2>(rows, q, scores, ahead);
  }
  ScoresOfChunks<type, queries, 0>(rows, q, scores, ahead);
}

/// The softmax of a split's scores so far: they become exponentials 16 at a time, while the values
/// are on their way.
template <int queries>
struct Softmax {
  float (*p)[kSplit];
  Vec max[queries];
  Vec sum[queries];

  /// Pads the scores and finds the maxima.
  RIPPLEKV_INLINE void Start(int count) {
    const float lowest = -__builtin_inff();
    const int padded = (count + kLanes - 1) / kLanes * kLanes;
    for (int g = 0; g < queries; ++g) {
      for (int r = count; r < padded; ++r) p[g][r] = lowest;
      Vec high = Set(lowest);
      for (int r = 0; r < padded; r += kLanes) high = Max(high, Load(p[g] + r));
      max[g] = Set(MaxLane(high));
      sum[g] = Zero();
    }
  }
  RIPPLEKV_INLINE void Exponentials(int row) {
    Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
      const Vec e = Exp(Sub(Load(p[g.value] + row), max[g.value]));
      Store(p[g.value] + row, e);
      sum[g.value] = Add(sum[g.value], e);
    });
  }
};

/// Chunks [chunk, chunk + chunks) of out[g] = sum over rows of p[g][row] * value row; the last
/// chunk may be part of one. The first call makes the exponentials.
template <KvType type, int queries, int chunks, bool first>
RIPPLEKV_INLINE void WeighChunks(const Rows& rows, Softmax<queries>& softmax, int chunk, float* out,
                                 int64_t out_stride, Ahead& ahead) {
  const int channels = rows.layout->head_dim - chunk * kChunk;
  Vec sum[queries][chunks][2];
  Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
    Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
      sum[g.value][c.value][0] = Zero();
      sum[g.value][c.value][1] = Zero();
    });
  });
  alignas(64) float scaled[queries][kLanes];
  for (Runs runs(rows); runs.row < rows.count;) {
    const int count = runs.count();
    const Run run(runs, rows.layout->v);
    for (int r = 0; r < count;) {  // up to the next multiple of 16
      const int row = runs.row + r;
      if (first && row % kLanes == 0) softmax.Exponentials(row);
      const int room = kLanes - row % kLanes;
      const int end = count - r < room ? count : r + room;
      const float* weights = softmax.p[0] + row;
      int64_t stride = kSplit;
      if constexpr (kRowScale<type>) {
        Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
          run.Scale(r, end - r, softmax.p[g.value] + row, scaled[g.value]);
        });
        weights = scaled[0];
        stride = kLanes;
      }
      for (; r < end; ++r, ++weights) {
        if (first) ahead.Next(1);
        Chunk value[chunks];
        Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
          value[c.value] = chunks == 1 ? run.LoadUpTo<type>(r, chunk, channels)
                                       : run.Load<type>(r, chunk + c.value);
        });
        Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
          const Vec weight = Set(weights[g.value * stride]);
          Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
            Vec(&s)[2] = sum[g.value][c.value];
            s[0] = Fma(weight, value[c.value].a, s[0]);
            s[1] = Fma(weight, value[c.value].b, s[1]);
          });
        });
      }
    }
    runs.Advance(count);
  }
  Unroll<queries>([&](auto g) RIPPLEKV_INLINE_LAMBDA {
    Unroll<chunks>([&](auto c) RIPPLEKV_INLINE_LAMBDA {
      float lanes[2][kLanes];
      Store(lanes[0], sum[g.value][c.value][0]);
      Store(lanes[1], sum[g.value][c.value][1]);
      float* o = out + g.value * out_stride + (chunk + c.value) * kChunk;
      for (int half = 0; half < 2; ++half) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const int channel = ChunkChannel(type, half, lane);
          if (c.value * kChunk + channel < channels) o[channel] = lanes[half][lane];
        }
      }
    });
  });
}

template <KvType type, int queries>
void WeighValues(const Rows& rows, Softmax<queries>& softmax, float* out, int64_t out_stride,
                 Ahead& ahead) {
  const int chunks = (rows.layout->head_dim + kChunk - 1) / kChunk;
  int chunk = 0;
  if (kValueChunks == 1 || rows.layout->head_dim < kValueChunks * kChunk) {
    WeighChunks<type, queries, 1, true>(rows, softmax, 0, out, out_stride, ahead);
    chunk = 1;
  } else {
    WeighChunks<type, queries, kValueChunks, true>(rows, softmax, 0, out, out_stride, ahead);
    chunk = kValueChunks;
    for (; (chunk + kValueChunks) * kChunk <= rows.layout->head_dim; chunk += kValueChunks) {
      WeighChunks<type, queries, kValueChunks, false>(rows, softmax, chunk, out, out_stride, ahead);
    }
  }
  for (; chunk < chunks; ++chunk) {
    WeighChunks<type, queries, 1, false>(rows, softmax, chunk, out, out_stride, ahead);
  }
}

/// `queries` query heads of the group over one split. out: per query [d] values, then maximum and
/// sum. weights: per query [kSplit] exponentials of the scores minus the maximum, or null.
template <int queries>
void AttendSplit(const Rows& rows, const Rows& next, const float* q, float* out, int64_t out_stride,
                 float* weights) {
  const KvPageLayout& layout = *rows.layout;
  const int head_dim = layout.head_dim;
  Queries arranged;
  ArrangeQueries(q, queries, head_dim, layout.k.type, &arranged);
  alignas(64) float p[queries][kSplit];
  Ahead values(rows, layout.v);
  switch (layout.k.type) {
    case KvType::kF32:
      Scores<KvType::kF32, queries>(rows, arranged, p, values);
      break;
    case KvType::kBf16:
      Scores<KvType::kBf16, queries>(rows, arranged, p, values);
      break;
    case KvType::kInt8:
      Scores<KvType::kInt8, queries>(rows, arranged, p, values);
      break;
    case KvType::kInt4:
      Scores<KvType::kInt4, queries>(rows, arranged, p, values);
      break;
  }
  Softmax<queries> softmax{p, {}, {}};
  softmax.Start(rows.count);
  Ahead keys(next, layout.k);
  switch (layout.v.type) {
    case KvType::kF32:
      WeighValues<KvType::kF32, queries>(rows, softmax, out, out_stride, keys);
      break;
    case KvType::kBf16:
      WeighValues<KvType::kBf16, queries>(rows, softmax, out, out_stride, keys);
      break;
    case KvType::kInt8:
      WeighValues<KvType::kInt8, queries>(rows, softmax, out, out_stride, keys);
      break;
    case KvType::kInt4:
      WeighValues<KvType::kInt4, queries>(rows, softmax, out, out_stride, keys);
      break;
  }
  for (int g = 0; g < queries; ++g) {
    out[g * out_stride + head_dim] = MaxLane(softmax.max[g]);
    out[g * out_stride + head_dim + 1] = Sum(softmax.sum[g]);
    if (weights != nullptr) {
      for (int r = 0; r < rows.count; r += kLanes) Store(weights + g * kSplit + r, Load(p[g] + r));
    }
  }
}

void AttendItem(const Rows& rows, const Rows& next, int group, const float* q, float* out,
                int64_t out_stride, float* weights) {
  for (int g = 0; g < group; g += kMaxQueries) {
    const int queries = group - g < kMaxQueries ? group - g : kMaxQueries;
    Rows then = next;
    if (g + queries < group) then.count = 0;
    Unroll<kMaxQueries>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      if (queries == i.value + 1) {
        AttendSplit<i.value + 1>(rows, then, q + g * rows.layout->head_dim, out + g * out_stride,
                                 out_stride, weights != nullptr ? weights + g * kSplit : nullptr);
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

/// Walks over all items in order.
struct Items {
  const DecodeAttentionArgs& args;
  int sequence = 0;
  int64_t first = 0;  // item of the sequence
  int64_t index = 0;  // of all

  RIPPLEKV_INLINE int64_t of_sequence() const {
    return Splits(args.sequence[sequence].rows) * args.layout.kv_heads;
  }
  /// Goes to item i, not before the present one; false beyond the last.
  RIPPLEKV_INLINE bool Seek(int64_t i) {
    index = i;
    for (; sequence < args.sequences; ++sequence) {
      const int64_t items = of_sequence();
      if (i < first + items) return true;
      first += items;
    }
    return false;
  }
  RIPPLEKV_INLINE Rows rows() const {
    const PagedSequence& s = args.sequence[sequence];
    const int64_t i = index - first;
    const int64_t row = i / args.layout.kv_heads * kSplit;
    const int64_t left = s.rows - row;
    return {&args.layout, &s, static_cast<int>(i % args.layout.kv_heads), row,
            static_cast<int>(left < kSplit ? left : kSplit)};
  }
};

}  // namespace

void DecodeAttentionPartial(const DecodeAttentionArgs& args, int64_t begin, int64_t end) {
  const KvPageLayout& layout = args.layout;
  const int group = args.heads / layout.kv_heads;
  const int64_t stride = layout.head_dim + 2;
  float* const all_weights = args.workspace + DecodeAttentionItems(args) * group * stride;
  Items items{args};
  for (int64_t i = begin; i < end; ++i) {
    items.Seek(i);
    const Rows rows = items.rows();
    const float* q = args.q + (static_cast<int64_t>(items.sequence) * args.heads +
                               static_cast<int64_t>(rows.kv_head) * group) *
                                  layout.head_dim;
    const PagedSequence& s = *rows.sequence;
    float* weights = s.mass != nullptr && rows.first + rows.count > s.mass_first_row
                         ? all_weights + i * group * kSplit
                         : nullptr;
    // Most often the same thread goes on with the item that follows, whoever calls.
    Items following = items;
    const Rows next =
        following.Seek(i + 1) ? following.rows() : Rows{rows.layout, rows.sequence, 0, 0, 0};
    AttendItem(rows, next, group, q, args.workspace + i * group * stride, stride, weights);
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
