#include "kernels/isa_functions.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

constexpr int kSplit = kDecodeAttentionSplitRows;

int64_t Splits(int64_t rows) { return (rows + kSplit - 1) / kSplit; }

/// e^(from - to), the factor that brings a split's sums from its own reference to the highest.
RIPPLEKV_INLINE float Rescale(float from, float to) {
  alignas(64) float factor[kLanes];
  Store(factor, Exp(Set(from - to)));
  return factor[0];
}

/// The parts of one query head that its splits left.
struct Parts {
  const float* first;  // of split 0: [d] values, reference, sum
  int64_t step;        // to the next split's
  int64_t splits;
  int head_dim;
  float reference(int64_t split) const { return first[split * step + head_dim]; }
  float sum(int64_t split) const { return first[split * step + head_dim + 1]; }
};

RIPPLEKV_INLINE float Highest(const Parts& parts) {
  float max = -__builtin_inff();
  for (int64_t i = 0; i < parts.splits; ++i) {
    max = parts.reference(i) > max ? parts.reference(i) : max;
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
  for (int64_t i = 0; i < parts.splits; ++i) sum += Rescale(parts.reference(i), max) * parts.sum(i);
  for (int64_t i = sequence.mass_first_row / kSplit; i < parts.splits; ++i) {
    const int64_t row = i * kSplit;
    const int64_t left = sequence.rows - row;
    const int count = left < kSplit ? static_cast<int>(left) : kSplit;
    const int64_t before = sequence.mass_first_row - row;
    const int skip = before > 0 ? static_cast<int>(before) : 0;
    if (skip >= count) continue;
    AddMass(weights + i * weights_step + skip, Rescale(parts.reference(i), max) / sum, count - skip,
            add, mass + (row + skip - sequence.mass_first_row));
  }
}

}  // namespace

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
        const float weight = Rescale(parts.reference(i), max);
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
