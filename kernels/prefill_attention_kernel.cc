// Query rows are the lanes, 16 a vector. Keys and values are widened to fp32 a block at a time, for
// all vectors of an item, and broadcast to the lanes, so that nothing is summed across lanes. The
// softmax subtracts a running maximum.
#include "kernels/isa_functions.h"
#include "kernels/outer_products.h"
#include "kernels/prefill_attention_items.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

constexpr int kMaxDim = kPrefillAttentionMaxHeadDim;
constexpr int kVectors = kPrefillAttentionMaxTiles * kPrefillAttentionTileRows / kLanes;
constexpr int kBlock = 48;  // keys; a multiple of every kRowTile

/// 16 rows and what they have gathered so far.
struct alignas(64) Rows {
  float q[kMaxDim][kLanes];
  float out[kMaxDim][kLanes];  // sum of p v
  float max[kLanes];           // of score * scale
  float sum[kLanes];           // of p = exp(score * scale - max)
  int64_t visible[kLanes];     // keys a row sees
};

/// Keys and values, one row `stride` floats after the other.
struct alignas(64) Block {
  explicit Block(int d) : stride(d + kLanes) {}  // so that rows do not share few cache lines

  const int64_t stride;
  float k[kBlock * (kMaxDim + kLanes)];
  float v[kBlock * (kMaxDim + kLanes)];
  float p[kBlock][kLanes];  // scores, then probabilities, of 16 rows
};

inline void LoadRows(const Head& head, int64_t first, int count, Rows* rows) {
  const int d = head.args.head_dim;
  for (int lane = 0; lane < kLanes; ++lane) {
    // Lanes without a row compute what the last one does and are not stored.
    const int64_t row = first + (lane < count ? lane : count - 1);
    float q[kMaxDim];
    WidenBf16(head.args.q + RowOffset(head, row), d, q);
    for (int c = 0; c < d; ++c) rows->q[c][lane] = q[c];
    rows->visible[lane] = head.args.cached + row / head.group + 1;
  }
  for (int c = 0; c < d; ++c) Store(rows->out[c], Zero());
  Store(rows->max, Set(-__builtin_inff()));
  Store(rows->sum, Zero());
}

inline void StoreRows(const Head& head, int64_t first, int count, const Rows& rows) {
  const int d = head.args.head_dim;
  for (int lane = 0; lane < count; ++lane) {
    float x[kMaxDim];
    for (int c = 0; c < d; ++c) x[c] = rows.out[c][lane];
    uint16_t* const out = head.args.out + RowOffset(head, first + lane);
    const Vec sum = Set(rows.sum[lane]);
    for (int c = 0; c < d; c += kLanes) StoreBf16(out + c, Div(Load(x + c), sum));
  }
}

/// Takes the block's `keys` keys, the first of which has the number `key`, into 16 rows.
inline void AddBlock(int64_t key, int keys, int d, float scale, Block* block, Rows* rows) {
  for (int r = 0; r < keys; ++r) Store(block->p[r], Zero());
  AddOuterProducts(rows->q[0], d, block->k, block->stride, 1, keys, block->p);

  if (rows->visible[0] < key + keys) {
    float seen[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t n = rows->visible[lane] - key;
      seen[lane] = static_cast<float>(n < 0 ? 0 : n < keys ? n : keys);
    }
    for (int r = 0; r < keys; ++r) {
      Store(block->p[r], IfLess(Set(static_cast<float>(r)), Load(seen), Load(block->p[r]),
                                Set(-__builtin_inff())));
    }
  }
  Vec largest = Load(block->p[0]);
  for (int r = 1; r < keys; ++r) largest = Max(largest, Load(block->p[r]));
  // Every row sees the first key, so there is a maximum from the first block on.
  const Vec old = Load(rows->max);
  const Vec max = Max(old, Mul(largest, Set(scale)));
  if (AnyGreater(max, old)) {
    const Vec factor = Exp(Sub(old, max));
    Store(rows->max, max);
    Store(rows->sum, Mul(Load(rows->sum), factor));
    for (int c = 0; c < d; ++c) Store(rows->out[c], Mul(Load(rows->out[c]), factor));
  }
  const Vec negative = Sub(Zero(), max);
  Vec sum = Load(rows->sum);
  for (int r = 0; r < keys; ++r) {
    const Vec p = Exp(Fma(Load(block->p[r]), Set(scale), negative));
    sum = Add(sum, p);
    Store(block->p[r], p);
  }
  Store(rows->sum, sum);
  AddOuterProducts(block->p[0], keys, block->v, 1, block->stride, d, rows->out);
}

/// `count` rows from `first` on.
void Item(const Head& head, int64_t first, int count, float scale) {
  const int d = head.args.head_dim;
  const int vectors = (count + kLanes - 1) / kLanes;
  Rows rows[kVectors];
  Block block(d);
  const auto of_vector = [&](int i) RIPPLEKV_INLINE_LAMBDA {
    const int left = count - i * kLanes;
    return left < kLanes ? left : kLanes;
  };
  for (int i = 0; i < vectors; ++i) LoadRows(head, first + i * kLanes, of_vector(i), &rows[i]);
  const int64_t all = head.args.cached + (first + count - 1) / head.group + 1;
  for (int64_t key = 0; key < all; key += kBlock) {
    const int keys = all - key < kBlock ? static_cast<int>(all - key) : kBlock;
    for (int r = 0; r < keys; ++r) {
      WidenBf16(head.k + (key + r) * d, d, block.k + r * block.stride);
      WidenBf16(head.v + (key + r) * d, d, block.v + r * block.stride);
    }
    for (int i = 0; i < vectors; ++i) {
      const int64_t seen = rows[i].visible[kLanes - 1] - key;
      if (seen > 0) {
        AddBlock(key, seen < keys ? static_cast<int>(seen) : keys, d, scale, &block, &rows[i]);
      }
    }
  }
  for (int i = 0; i < vectors; ++i) StoreRows(head, first + i * kLanes, of_vector(i), rows[i]);
}

}  // namespace

void PrefillAttentionRange(const PrefillAttentionArgs& args, int item_rows, int64_t item_begin,
                           int64_t item_end) {
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(args.head_dim));
  ForItems(args, item_rows, item_begin, item_end,
           [&](const Head& head, int64_t first_row, int rows)
               RIPPLEKV_INLINE_LAMBDA { Item(head, first_row, rows, scale); });
}

}  // namespace ripplekv::RIPPLEKV_ISA
