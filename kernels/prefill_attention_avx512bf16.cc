// Query rows are the lanes: row r of a KV head's group is (query r / group, head r % group), 16 a
// vector and up to three vectors a tile. Keys and values are broadcast to them as pairs of bf16, so
// nothing is ever summed across lanes.
#include "kernels/prefill_attention_avx512bf16.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

constexpr int kMaxVectors = 3;
constexpr int kTileRows = kMaxVectors * kLanes;
constexpr int kTiles = kPrefillAttentionItemRows / kTileRows;
constexpr int kKeyTile = 8;    // keys times vectors: 24 accumulators
constexpr int kValueTile = 8;  // columns times vectors: the same
constexpr int kBlock = 128;    // keys between two rescalings
constexpr int kMaxPairs = kPrefillAttentionMaxHeadDim / 2;
constexpr float kMasked = -1e38f;

/// One tile's queries and what its rows have gathered so far.
struct alignas(64) Tile {
  uint32_t q[kMaxPairs][kTileRows];                   // columns 2 i and 2 i + 1
  float out[kPrefillAttentionMaxHeadDim][kTileRows];  // of sum(p v)
  float max[kTileRows];                               // of score * log2(e) / sqrt(d)
  float sum[kTileRows];                               // of p
  int32_t visible[kTileRows];                         // keys a row sees
  int64_t first_row;
  int rows;
  int32_t least_visible, most_visible;
};

/// A block's probabilities and values, both as pairs of keys.
struct alignas(64) Block {
  uint32_t v[kBlock / 2][kPrefillAttentionMaxHeadDim];
  float scores[kBlock][kTileRows];
  uint32_t p[kBlock / 2][kTileRows];
};

/// The rows of one KV head.
struct Head {
  const PrefillAttentionArgs& args;
  int kv_head;
  int group;
  const uint16_t* k;
  const uint16_t* v;
};

RIPPLEKV_INLINE __m512bh LoadPairs(const uint32_t* p) { return (__m512bh)_mm512_loadu_si512(p); }
RIPPLEKV_INLINE __m512bh BroadcastPair(const void* p) {
  return (__m512bh)_mm512_set1_epi32(LoadAs<int32_t>(p));
}

/// 2^x, relative error 3e-6 (a minimax polynomial on [0, 1) that is exact in 0). 0 for very small
/// x.
RIPPLEKV_INLINE __m512 Exp2(__m512 x) {
  const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(0.013426682911813259f);
  p = _mm512_fmadd_ps(p, fraction, _mm512_set1_ps(0.052242476493120193f));
  p = _mm512_fmadd_ps(p, fraction, _mm512_set1_ps(0.241280198097229f));
  p = _mm512_fmadd_ps(p, fraction, _mm512_set1_ps(0.6930448412895203f));
  p = _mm512_fmadd_ps(p, fraction, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);  // rounds x down
}

/// a[lane] and b[lane] as the low and high half of 32 bits.
RIPPLEKV_INLINE __m512i PairOf(__m512 a, __m512 b) {
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

void LoadTile(const Head& head, int64_t first_row, int rows, Tile* tile) {
  const PrefillAttentionArgs& args = head.args;
  const int d = args.head_dim;
  tile->first_row = first_row;
  tile->rows = rows;
  for (int lane = 0; lane < kTileRows; ++lane) {
    // Lanes without a row compute on zeros and are not stored.
    const int64_t row = first_row + (lane < rows ? lane : 0);
    const int64_t query = row / head.group;
    const int64_t query_head = head.kv_head * head.group + row % head.group;
    const uint16_t* q = args.q + (query * args.heads + query_head) * d;
    for (int i = 0; i < d / 2; ++i)
      tile->q[i][lane] = lane < rows ? LoadAs<uint32_t>(q + 2 * i) : 0;
    tile->visible[lane] = static_cast<int32_t>(args.cached + query + 1);
    tile->max[lane] = kMasked;
    tile->sum[lane] = 0;
  }
  tile->least_visible = tile->visible[0];
  tile->most_visible = tile->visible[rows - 1];
  for (int c = 0; c < d; ++c) {
    for (int lane = 0; lane < kTileRows; ++lane) tile->out[c][lane] = 0;
  }
}

/// block->v from `keys` rows; rows up to the next multiple of kKeyTile are zeros.
void PackValues(const uint16_t* v, int keys, int d, Block* block) {
  alignas(64) const uint16_t zeros[kPrefillAttentionMaxHeadDim] = {};
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  const int padded = (keys + kKeyTile - 1) / kKeyTile * kKeyTile;
  for (int r = 0; r < padded; r += 2) {
    const uint16_t* even = r < keys ? v + static_cast<int64_t>(r) * d : zeros;
    const uint16_t* odd = r + 1 < keys ? even + d : zeros;
    uint32_t* out = block->v[r / 2];
    for (int c = 0; c < d; c += 32) {
      const __m512i a = _mm512_loadu_si512(even + c);
      const __m512i b = _mm512_loadu_si512(odd + c);
      _mm512_storeu_si512(out + c, _mm512_permutex2var_epi16(a, low, b));
      _mm512_storeu_si512(out + c + 16, _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

/// block->scores[first ... first + kKeyTile] = q . key, kMasked where a row does not see the key;
/// max takes them in. `key` is the number of the first one in its sequence.
template <int vectors>
RIPPLEKV_INLINE void ScoreKeys(const Tile& tile, const uint16_t* k, int d, int64_t key, int first,
                               Block* block, __m512 (&max)[vectors]) {
  __m512 s[kKeyTile][vectors];
  Unroll<kKeyTile>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
    Unroll<vectors>([&](auto i)
                        RIPPLEKV_INLINE_LAMBDA { s[r.value][i.value] = _mm512_setzero_ps(); });
  });
  for (int c = 0; c < d / 2; ++c) {
    __m512bh q[vectors];
    Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      q[i.value] = LoadPairs(tile.q[c] + i.value * kLanes);
    });
    Unroll<kKeyTile>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
      const __m512bh pair = BroadcastPair(k + r.value * d + 2 * c);
      Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        s[r.value][i.value] = _mm512_dpbf16_ps(s[r.value][i.value], q[i.value], pair);
      });
    });
  }
  if (key + kKeyTile > tile.least_visible) {
    Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      const __m512i visible = _mm512_loadu_si512(tile.visible + i.value * kLanes);
      Unroll<kKeyTile>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
        const __mmask16 seen = _mm512_cmpgt_epi32_mask(
            visible, _mm512_set1_epi32(static_cast<int32_t>(key) + r.value));
        s[r.value][i.value] =
            _mm512_mask_mov_ps(_mm512_set1_ps(kMasked), seen, s[r.value][i.value]);
      });
    });
  }
  Unroll<kKeyTile>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
    Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      max[i.value] = _mm512_max_ps(max[i.value], s[r.value][i.value]);
      _mm512_storeu_ps(block->scores[first + r.value] + i.value * kLanes, s[r.value][i.value]);
    });
  });
}

/// The scores of a block of `keys` rows at k, the first of which has the number `key`.
template <int vectors>
RIPPLEKV_INLINE void ScoreBlock(const Tile& tile, const uint16_t* k, int keys, int d, int64_t key,
                                Block* block, __m512 (&max)[vectors]) {
  int first = 0;
  for (; first + kKeyTile <= keys; first += kKeyTile) {
    ScoreKeys<vectors>(tile, k + static_cast<int64_t>(first) * d, d, key + first, first, block,
                       max);
  }
  if (first == keys) return;
  // The rows after the last one may not exist.
  alignas(64) uint16_t rest[kKeyTile * kPrefillAttentionMaxHeadDim];
  const int count = (keys - first) * d;
  __builtin_memcpy(rest, k + static_cast<int64_t>(first) * d,
                   static_cast<uint64_t>(count) * sizeof(uint16_t));
  __builtin_memset(rest + count, 0, static_cast<uint64_t>(kKeyTile * d - count) * sizeof(uint16_t));
  ScoreKeys<vectors>(tile, rest, d, key + first, first, block, max);
}

/// Takes a block of keys into a tile.
template <int vectors>
void AddBlock(const uint16_t* k, int keys, int d, int64_t key, float scale, Block* block,
              Tile* tile) {
  __m512 max[vectors], rescale[vectors], sum[vectors];
  Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA { max[i.value] = _mm512_set1_ps(kMasked); });
  ScoreBlock<vectors>(*tile, k, keys, d, key, block, max);

  const __m512 scales = _mm512_set1_ps(scale);
  Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
    float* const old = tile->max + i.value * kLanes;
    const __m512 before = _mm512_loadu_ps(old);
    max[i.value] = _mm512_max_ps(before, _mm512_mul_ps(max[i.value], scales));
    _mm512_storeu_ps(old, max[i.value]);
    rescale[i.value] = Exp2(_mm512_sub_ps(before, max[i.value]));  // exactly 1 where it stays
    sum[i.value] = _mm512_mul_ps(_mm512_loadu_ps(tile->sum + i.value * kLanes), rescale[i.value]);
  });
  const int pairs = (keys + kKeyTile - 1) / kKeyTile * kKeyTile / 2;
  const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  for (int j = 0; j < pairs; ++j) {
    Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      const __m512 even = _mm512_loadu_ps(block->scores[2 * j] + i.value * kLanes);
      const __m512 odd = _mm512_loadu_ps(block->scores[2 * j + 1] + i.value * kLanes);
      const __m512i pair = PairOf(Exp2(_mm512_fmsub_ps(even, scales, max[i.value])),
                                  Exp2(_mm512_fmsub_ps(odd, scales, max[i.value])));
      _mm512_storeu_si512(block->p[j] + i.value * kLanes, pair);
      sum[i.value] = _mm512_dpbf16_ps(sum[i.value], (__m512bh)pair, ones);
    });
  }
  Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
    _mm512_storeu_ps(tile->sum + i.value * kLanes, sum[i.value]);
  });

  for (int c = 0; c < d; c += kValueTile) {
    __m512 out[kValueTile][vectors];
    Unroll<kValueTile>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
      Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        out[n.value][i.value] = _mm512_mul_ps(
            _mm512_loadu_ps(tile->out[c + n.value] + i.value * kLanes), rescale[i.value]);
      });
    });
    for (int j = 0; j < pairs; ++j) {
      __m512bh p[vectors];
      Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        p[i.value] = LoadPairs(block->p[j] + i.value * kLanes);
      });
      Unroll<kValueTile>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
        const __m512bh pair = BroadcastPair(block->v[j] + c + n.value);
        Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
          out[n.value][i.value] = _mm512_dpbf16_ps(out[n.value][i.value], p[i.value], pair);
        });
      });
    }
    Unroll<kValueTile>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
      Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        _mm512_storeu_ps(tile->out[c + n.value] + i.value * kLanes, out[n.value][i.value]);
      });
    });
  }
}

void StoreTile(const Head& head, const Tile& tile) {
  const PrefillAttentionArgs& args = head.args;
  const int d = args.head_dim;
  uint16_t* target[kTileRows];
  for (int lane = 0; lane < tile.rows; ++lane) {
    const int64_t row = tile.first_row + lane;
    const int64_t query_head = head.kv_head * head.group + row % head.group;
    target[lane] = args.out + (row / head.group * args.heads + query_head) * d;
  }
  for (int first = 0; first < tile.rows; first += kLanes) {
    const int lanes = tile.rows - first < kLanes ? tile.rows - first : kLanes;
    const __m512 sum = _mm512_loadu_ps(tile.sum + first);
    for (int c = 0; c < d; c += 2) {
      const __m512i pair = PairOf(_mm512_div_ps(_mm512_loadu_ps(tile.out[c] + first), sum),
                                  _mm512_div_ps(_mm512_loadu_ps(tile.out[c + 1] + first), sum));
      uint32_t columns[kLanes];
      _mm512_storeu_si512(columns, pair);
      for (int lane = 0; lane < lanes; ++lane) {
        __builtin_memcpy(target[first + lane] + c, columns + lane, sizeof(uint32_t));
      }
    }
  }
}

void Item(const Head& head, int64_t first_row, int rows, float scale) {
  const int d = head.args.head_dim;
  Tile tiles[kTiles];
  Block block;
  int count = 0;
  int64_t keys = 0;
  for (int row = 0; row < rows; row += kTileRows) {
    const int left = rows - row;
    LoadTile(head, first_row + row, left < kTileRows ? left : kTileRows, &tiles[count]);
    keys = tiles[count].most_visible;
    ++count;
  }
  for (int64_t key = 0; key < keys; key += kBlock) {
    const int in_block = keys - key < kBlock ? static_cast<int>(keys - key) : kBlock;
    PackValues(head.v + key * d, in_block, d, &block);
    const uint16_t* k = head.k + key * d;
    for (int t = 0; t < count; ++t) {
      Tile* const tile = &tiles[t];
      if (key >= tile->most_visible) continue;
      if (tile->rows > 2 * kLanes) {
        AddBlock<3>(k, in_block, d, key, scale, &block, tile);
      } else if (tile->rows > kLanes) {
        AddBlock<2>(k, in_block, d, key, scale, &block, tile);
      } else {
        AddBlock<1>(k, in_block, d, key, scale, &block, tile);
      }
    }
  }
  for (int t = 0; t < count; ++t) StoreTile(head, tiles[t]);
}

}  // namespace

void PrefillAttentionRange(const PrefillAttentionArgs& args, int64_t item_begin, int64_t item_end) {
  const int group = args.heads / args.kv_heads;
  const int64_t rows = static_cast<int64_t>(args.queries) * group;
  const int64_t per_head = (rows + kPrefillAttentionItemRows - 1) / kPrefillAttentionItemRows;
  const float scale = 1.44269504088896341f / __builtin_sqrtf(static_cast<float>(args.head_dim));
  for (int64_t item = item_begin; item < item_end; ++item) {
    const int64_t kv_head = item / per_head;
    const int64_t first_row = item % per_head * kPrefillAttentionItemRows;
    const int64_t left = rows - first_row;
    const Head head = {args, static_cast<int>(kv_head), group,
                       args.k + kv_head * args.kv_head_stride,
                       args.v + kv_head * args.kv_head_stride};
    Item(head, first_row,
         left < kPrefillAttentionItemRows ? static_cast<int>(left) : kPrefillAttentionItemRows,
         scale);
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
