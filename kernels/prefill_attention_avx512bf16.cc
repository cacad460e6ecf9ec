// Query rows are the lanes: row r of a KV head's group is (query r / group, head r % group), 16 a
// vector and three vectors a tile. Keys and values are broadcast to them as pairs of bf16, so
// nothing is ever summed across lanes. A tile's scores become probabilities as soon as they are
// there: the number that the softmax subtracts is not the running maximum but one that the first
// keys give.
#include "kernels/prefill_attention_avx512bf16.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

constexpr int kVectors = 3;
constexpr int kTileRows = kVectors * kLanes;
static_assert(kTileRows == kPrefillAttentionTileRows);
constexpr int kKeyTile = 8;    // keys times vectors: 24 accumulators
constexpr int kValueTile = 8;  // columns times vectors: the same
constexpr int kBlock = 256;    // keys whose probabilities are held at once
constexpr int kMaxDim = kPrefillAttentionMaxHeadDim;
constexpr int kLinePairs = 2;  // so that columns do not fall on the same cache lines
constexpr float kUnit = 256;   // of the powers of two's fixed point numbers
constexpr float kHalf = 128;
/// A row whose sum of probabilities passes it gets a new reference.
constexpr float kLargestSum = 0x1p80f;

/// One tile's queries and what its rows have gathered so far.
struct alignas(64) Tile {
  uint32_t q[kMaxDim / 2][kTileRows];  // columns 2 i and 2 i + 1
  float out[kMaxDim][kTileRows];       // sum of p v
  float reference[kTileRows];          // p = 2^((score * scale - reference) / kUnit - kHalf)
  float sum[kTileRows];                // of p
  int32_t visible[kTileRows];          // keys a row sees
  int64_t first_row;
  int rows;
  int32_t least_visible, most_visible;
};

/// Of one tile and a block of keys.
struct alignas(64) Block {
  uint32_t v[kMaxDim / kValueTile][kBlock / 2 + kLinePairs][kValueTile];  // pairs of keys
  uint32_t p[kBlock / 2][kTileRows];  // pairs of keys, [pair][vector][lane]
  float sum[kTileRows];               // the tile's with this block
  float scores[2][kKeyTile * kTileRows];
  uint16_t rest[kKeyTile * kMaxDim];  // the last keys and zeros, where a key tile is not full
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

/// 2^(even / kUnit - kHalf) and 2^(odd / kUnit - kHalf) as the low and high bf16 of 32 bits. The
/// argument rounded to a fixed point number nearly is the result's exponent and mantissa: a table
/// corrects the mantissa, to 0.2 % (root mean square; 0.6 % at most). 0 for arguments below 1, the
/// largest finite number for those that are too large.
RIPPLEKV_INLINE __m512i Exp2Pair(__m512 even, __m512 odd) {
  // kUnit (f - 2^f + 1) by the top six bits of the fraction f, and kUnit, by which the exponent's
  // bias is less than kHalf.
  alignas(64) static constexpr int16_t kCorrection[64] = {
      256, 257, 258, 260, 260, 262, 263, 264, 265, 266, 266, 268, 268, 269, 270, 271,
      271, 272, 273, 273, 274, 274, 275, 275, 276, 276, 276, 277, 277, 277, 277, 277,
      277, 278, 278, 277, 277, 277, 277, 277, 277, 276, 276, 275, 275, 275, 274, 273,
      273, 272, 271, 271, 269, 269, 268, 267, 265, 265, 263, 262, 261, 259, 258, 257};
  const __m512i interleave = _mm512_set4_epi32(0x0f0e0706, 0x0d0c0504, 0x0b0a0302, 0x09080100);
  const __m512i x = _mm512_shuffle_epi8(
      _mm512_packus_epi32(_mm512_cvtps_epi32(even), _mm512_cvtps_epi32(odd)), interleave);
  const __m512i correction = _mm512_permutex2var_epi16(
      _mm512_load_si512(kCorrection), _mm512_srli_epi16(x, 2), _mm512_load_si512(kCorrection + 32));
  return _mm512_srli_epi16(_mm512_subs_epu16(x, correction), 1);
}

/// a[lane] and b[lane] as the low and high bf16 of 32 bits.
RIPPLEKV_INLINE __m512i PairOf(__m512 a, __m512 b) {
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

/// x[i][j] becomes x[j][i].
RIPPLEKV_INLINE void Transpose(__m512i (&x)[kLanes]) {
  __m512i y[kLanes];
  Unroll<8>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
    constexpr int i = 2 * n.value;
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  });
  Unroll<4>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
    constexpr int i = 4 * n.value;
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  });
  // x[4 a + b] holds, in quarter c, rows 4 a ... 4 a + 3 of column 4 c + b.
  Unroll<4>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
    constexpr int b = n.value;
    const __m512i low = _mm512_shuffle_i32x4(x[b], x[4 + b], 0x44);
    const __m512i high = _mm512_shuffle_i32x4(x[b], x[4 + b], 0xee);
    const __m512i low2 = _mm512_shuffle_i32x4(x[8 + b], x[12 + b], 0x44);
    const __m512i high2 = _mm512_shuffle_i32x4(x[8 + b], x[12 + b], 0xee);
    y[b] = _mm512_shuffle_i32x4(low, low2, 0x88);
    y[4 + b] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    y[8 + b] = _mm512_shuffle_i32x4(high, high2, 0x88);
    y[12 + b] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  });
  Unroll<kLanes>([&](auto i) RIPPLEKV_INLINE_LAMBDA { x[i.value] = y[i.value]; });
}

/// Where row `row` of a KV head lies in q and out.
RIPPLEKV_INLINE int64_t RowOffset(const Head& head, int64_t row) {
  const int64_t query_head = head.kv_head * head.group + row % head.group;
  return (row / head.group * head.args.heads + query_head) * head.args.head_dim;
}

void LoadTile(const Head& head, int64_t first_row, int rows, Tile* tile) {
  const int d = head.args.head_dim;
  tile->first_row = first_row;
  tile->rows = rows;
  for (int first = 0; first < rows; first += kLanes) {
    const uint16_t* q[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      // Lanes without a row compute what the last one does and are not stored.
      const int64_t row = first_row + (first + lane < rows ? first + lane : rows - 1);
      q[lane] = head.args.q + RowOffset(head, row);
      tile->visible[first + lane] = static_cast<int32_t>(head.args.cached + row / head.group + 1);
    }
    for (int c = 0; c < d; c += 2 * kLanes) {
      __m512i x[kLanes];
      Unroll<kLanes>(
          [&](auto i) RIPPLEKV_INLINE_LAMBDA { x[i.value] = _mm512_loadu_si512(q[i.value] + c); });
      Transpose(x);
      Unroll<kLanes>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        _mm512_store_si512(tile->q[c / 2 + i.value] + first, x[i.value]);
      });
    }
    for (int c = 0; c < d; ++c) _mm512_store_ps(tile->out[c] + first, _mm512_setzero_ps());
    _mm512_store_ps(tile->sum + first, _mm512_setzero_ps());
  }
  tile->least_visible = tile->visible[0];
  tile->most_visible = tile->visible[rows - 1];
}

/// block->v from `keys` rows; rows up to the next multiple of kKeyTile are zeros.
void PackValues(const uint16_t* v, int keys, int d, Block* block) {
  alignas(64) static constexpr uint16_t kZeros[kMaxDim] = {};
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  const auto put = [&](int tile, int pair, __m256i x) RIPPLEKV_INLINE_LAMBDA {
    _mm256_store_si256(reinterpret_cast<__m256i*>(block->v[tile][pair]), x);
  };
  const int padded = (keys + kKeyTile - 1) / kKeyTile * kKeyTile;
  for (int r = 0; r < padded; r += 2) {
    const uint16_t* even = r < keys ? v + static_cast<int64_t>(r) * d : kZeros;
    const uint16_t* odd = r + 1 < keys ? even + d : kZeros;
    for (int c = 0; c < d; c += 32) {
      const __m512i a = _mm512_loadu_si512(even + c);
      const __m512i b = _mm512_loadu_si512(odd + c);
      const __m512i x = _mm512_permutex2var_epi16(a, low, b);
      const __m512i y = _mm512_permutex2var_epi16(a, high, b);
      put(c / kValueTile, r / 2, _mm512_castsi512_si256(x));
      put(c / kValueTile + 1, r / 2, _mm512_extracti64x4_epi64(x, 1));
      put(c / kValueTile + 2, r / 2, _mm512_castsi512_si256(y));
      put(c / kValueTile + 3, r / 2, _mm512_extracti64x4_epi64(y, 1));
    }
  }
}

/// A block of keys and a tile at work.
template <int vectors>
class TileBlock {
 public:
  /// `keys` rows at k and v (packed in `block`), the first of which has the number `key` in its
  /// sequence.
  RIPPLEKV_INLINE TileBlock(const uint16_t* k, const uint16_t* v, int keys, int d, int64_t key,
                            float scale, Block* block, Tile* tile)
      : k_(k), v_(v), keys_(keys), d_(d), key_(key), scale_(scale), block_(block), tile_(tile) {}

  /// Takes the block into the tile.
  void Add() {
    Weigh(key_ == 0);
    __mmask16 over[vectors];
    unsigned any = 0;
    Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      over[i.value] = _mm512_cmp_ps_mask(_mm512_load_ps(block_->sum + i.value * kLanes),
                                         _mm512_set1_ps(kLargestSum), _CMP_NLE_UQ);
      any |= over[i.value];
    });
    if (any != 0) {
      Rescale(over);
      Weigh(false);
    }
    Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      _mm512_store_ps(tile_->sum + i.value * kLanes,
                      _mm512_load_ps(block_->sum + i.value * kLanes));
    });
    AddValues();
  }

 private:
  static constexpr int kUnits = kKeyTile / 2 * vectors;  // pairs of vectors of a key tile

  /// Turns the scores of a key tile into probabilities, a pair of vectors (two keys of 16 rows) a
  /// step, so that the steps can hide among the next key tile's multiplications.
  struct Steps {
    const float* scores;  // [kUnits][2][kLanes]
    uint32_t* p;          // [kUnits][kLanes]
    int left;
    int vector;
  };
  RIPPLEKV_INLINE void Step(Steps* steps) {
    Put(steps, block_->sum + steps->vector, Weights(*steps, tile_->reference + steps->vector));
    steps->scores += 2 * kLanes;
    steps->vector = steps->vector == (vectors - 1) * kLanes ? 0 : steps->vector + kLanes;
  }
  RIPPLEKV_INLINE __m512i Weights(const Steps& steps, const float* references) const {
    const __m512 scale = _mm512_set1_ps(scale_);
    const __m512 reference = _mm512_load_ps(references);
    return Exp2Pair(_mm512_fmsub_ps(_mm512_load_ps(steps.scores), scale, reference),
                    _mm512_fmsub_ps(_mm512_load_ps(steps.scores + kLanes), scale, reference));
  }
  RIPPLEKV_INLINE void Put(Steps* steps, float* sum, __m512i pair) {
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    _mm512_store_si512(steps->p, pair);
    _mm512_store_ps(sum, _mm512_dpbf16_ps(_mm512_load_ps(sum), (__m512bh)pair, ones));
    steps->p += kLanes;
    --steps->left;
  }

  /// scores = q . key for the key tile at `first`, while `steps` are taken.
  RIPPLEKV_INLINE void Score(int first, float* scores, Steps* steps) {
    const uint16_t* k = k_ + static_cast<int64_t>(first) * d_;
    if (first + kKeyTile > keys_) {
      // The rows after the last one may not exist.
      const uint64_t bytes = static_cast<uint64_t>((keys_ - first) * d_) * sizeof(uint16_t);
      __builtin_memset(block_->rest, 0, sizeof block_->rest);
      __builtin_memcpy(block_->rest, k, bytes);
      k = block_->rest;
    }
    __m512 s[kKeyTile][vectors];
    Unroll<kKeyTile>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
      Unroll<vectors>([&](auto i)
                          RIPPLEKV_INLINE_LAMBDA { s[r.value][i.value] = _mm512_setzero_ps(); });
    });
    const int64_t d = d_;
    const uint32_t* q = tile_->q[0];
    const uint16_t* const end = k + d;
    const auto multiply = [&]() RIPPLEKV_INLINE_LAMBDA {
      __m512bh rows[vectors];
      Unroll<vectors>(
          [&](auto i) RIPPLEKV_INLINE_LAMBDA { rows[i.value] = LoadPairs(q + i.value * kLanes); });
      Unroll<kKeyTile>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
        const __m512bh pair = BroadcastPair(k + r.value * d);
        Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
          s[r.value][i.value] = _mm512_dpbf16_ps(s[r.value][i.value], rows[i.value], pair);
        });
      });
      q += kTileRows;
      k += 2;
    };
    while (k != end) {
      multiply();
      multiply();
      if (steps->left > 0) Step(steps);
    }
    Unroll<kKeyTile>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
      Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        _mm512_store_ps(ScoresOf(scores, r.value, i.value), s[r.value][i.value]);
      });
    });
  }
  static RIPPLEKV_INLINE float* ScoresOf(float* scores, int key, int vector) {
    return scores + ((key / 2 * vectors + vector) * 2 + key % 2) * kLanes;
  }

  /// The lanes of vector i that see key r of the key tile at `first`.
  RIPPLEKV_INLINE __mmask16 Seen(int first, int r, int i) const {
    return _mm512_cmpgt_epi32_mask(_mm512_load_si512(tile_->visible + i * kLanes),
                                   _mm512_set1_epi32(static_cast<int32_t>(key_) + first + r));
  }

  /// max = at least the key tile's visible scores times scale_.
  void RaiseToScores(int first, float* scores, __m512 (&max)[vectors]) const {
    for (int r = 0; r < kKeyTile; ++r) {
      Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        const __m512 s =
            _mm512_mul_ps(_mm512_load_ps(ScoresOf(scores, r, i.value)), _mm512_set1_ps(scale_));
        max[i.value] = _mm512_mask_max_ps(max[i.value], Seen(first, r, i.value), max[i.value], s);
      });
    }
  }

  /// All steps of a key tile of which not every row sees all.
  void StepMasked(int first, Steps* steps) {
    for (int r = 0; r < kKeyTile; r += 2) {
      for (int i = 0; i < vectors; ++i) {
        const __m512i seen =
            _mm512_or_si512(_mm512_maskz_set1_epi32(Seen(first, r, i), 0xffff),
                            _mm512_maskz_set1_epi32(Seen(first, r + 1, i), 0xffff << 16));
        Put(steps, block_->sum + i * kLanes,
            _mm512_and_si512(seen, Weights(*steps, tile_->reference + i * kLanes)));
        steps->scores += 2 * kLanes;
      }
    }
  }

  /// block_->p from all of the block's scores; block_->sum = the rows' sums with them.
  void Weigh(bool set_reference) {
    Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      _mm512_store_ps(block_->sum + i.value * kLanes,
                      _mm512_load_ps(tile_->sum + i.value * kLanes));
    });
    Steps steps = {nullptr, block_->p[0], 0, 0};
    for (int first = 0; first < keys_; first += kKeyTile) {
      float* const scores = block_->scores[first / kKeyTile % 2];
      PrefetchValues(first);
      Score(first, scores, &steps);
      while (steps.left > 0) Step(&steps);
      if (set_reference && first == 0) SetReference(scores);
      steps.scores = scores;
      steps.left = kUnits;
      if (key_ + first + kKeyTile > tile_->least_visible) StepMasked(first, &steps);
    }
    while (steps.left > 0) Step(&steps);
  }

  /// The rows that are packed next and lie as far into the next block as the key tile into this
  /// one.
  RIPPLEKV_INLINE void PrefetchValues(int first) const {
    const uint64_t next = reinterpret_cast<uint64_t>(v_) +
                          static_cast<uint64_t>((kBlock + first) * d_) * sizeof(uint16_t);
    for (int i = 0; i < kKeyTile * d_ / 32; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(next + static_cast<uint64_t>(i) * 64),
                   _MM_HINT_T1);
    }
  }

  void SetReference(float* scores) {
    __m512 reference[vectors];
    Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      reference[i.value] = _mm512_set1_ps(-__builtin_inff());
    });
    RaiseToScores(0, scores, reference);
    Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      _mm512_store_ps(tile_->reference + i.value * kLanes,
                      _mm512_sub_ps(reference[i.value], _mm512_set1_ps(kHalf * kUnit)));
    });
  }

  /// Rows in `over` get a reference that no score of the block passes.
  void Rescale(const __mmask16 (&over)[vectors]) {
    __m512 max[vectors], factor[vectors];
    Unroll<vectors>(
        [&](auto i) RIPPLEKV_INLINE_LAMBDA { max[i.value] = _mm512_set1_ps(-__builtin_inff()); });
    Steps none = {nullptr, nullptr, 0, 0};
    for (int first = 0; first < keys_; first += kKeyTile) {
      Score(first, block_->scores[0], &none);
      RaiseToScores(first, block_->scores[0], max);
    }
    Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      float* const reference = tile_->reference + i.value * kLanes;
      float* const sum = tile_->sum + i.value * kLanes;
      const __m512 old = _mm512_load_ps(reference);
      // By whole powers of two, which nothing is rounded by.
      const __m512 excess =
          _mm512_mul_ps(_mm512_sub_ps(max[i.value], old), _mm512_set1_ps(1.0f / kUnit));
      const __m512 powers =
          _mm512_maskz_roundscale_ps(over[i.value], _mm512_sub_ps(excess, _mm512_set1_ps(kHalf)),
                                     _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
      factor[i.value] =
          _mm512_scalef_ps(_mm512_set1_ps(1.0f), _mm512_sub_ps(_mm512_setzero_ps(), powers));
      _mm512_store_ps(reference, _mm512_fmadd_ps(powers, _mm512_set1_ps(kUnit), old));
      _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), factor[i.value]));
    });
    for (int c = 0; c < d_; ++c) {
      Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        float* const out = tile_->out[c] + i.value * kLanes;
        _mm512_store_ps(out, _mm512_mul_ps(_mm512_load_ps(out), factor[i.value]));
      });
    }
  }

  /// tile_->out += p v.
  void AddValues() {
    const int64_t pairs = (keys_ + kKeyTile - 1) / kKeyTile * kKeyTile / 2;
    for (int c = 0; c < d_; c += kValueTile) {
      __m512 out[kValueTile][vectors];
      Unroll<kValueTile>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
        Unroll<vectors>(
            [&](auto i) RIPPLEKV_INLINE_LAMBDA { out[n.value][i.value] = _mm512_setzero_ps(); });
      });
      const uint32_t* v = block_->v[c / kValueTile][0];
      const uint32_t* probabilities = block_->p[0];
      const uint32_t* const end = v + pairs * kValueTile;
      for (; v != end; v += kValueTile, probabilities += vectors * kLanes) {
        __m512bh p[vectors];
        Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
          p[i.value] = LoadPairs(probabilities + i.value * kLanes);
        });
        Unroll<kValueTile>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
          const __m512bh pair = BroadcastPair(v + n.value);
          Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
            out[n.value][i.value] = _mm512_dpbf16_ps(out[n.value][i.value], p[i.value], pair);
          });
        });
      }
      Unroll<kValueTile>([&](auto n) RIPPLEKV_INLINE_LAMBDA {
        Unroll<vectors>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
          float* const total = tile_->out[c + n.value] + i.value * kLanes;
          _mm512_store_ps(total, _mm512_add_ps(_mm512_load_ps(total), out[n.value][i.value]));
        });
      });
    }
  }

  const uint16_t* k_;
  const uint16_t* v_;
  int keys_;
  int d_;
  int64_t key_;
  float scale_;
  Block* block_;
  Tile* tile_;
};

void StoreTile(const Head& head, const Tile& tile) {
  const int d = head.args.head_dim;
  for (int first = 0; first < tile.rows; first += kLanes) {
    const int lanes = tile.rows - first < kLanes ? tile.rows - first : kLanes;
    const __m512 factor = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_load_ps(tile.sum + first));
    for (int c = 0; c < d; c += 2 * kLanes) {
      __m512i x[kLanes];
      Unroll<kLanes>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        const float (*out)[kTileRows] = tile.out + c + 2 * i.value;
        x[i.value] = PairOf(_mm512_mul_ps(_mm512_load_ps(out[0] + first), factor),
                            _mm512_mul_ps(_mm512_load_ps(out[1] + first), factor));
      });
      Transpose(x);
      for (int lane = 0; lane < lanes; ++lane) {
        _mm512_storeu_si512(head.args.out + RowOffset(head, tile.first_row + first + lane) + c,
                            x[lane]);
      }
    }
  }
}

void Item(const Head& head, int64_t first_row, int rows, float scale) {
  const int d = head.args.head_dim;
  Tile tiles[kPrefillAttentionMaxTiles];
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
    const uint16_t* v = head.v + key * d;
    for (int t = 0; t < count; ++t) {
      Tile* const tile = &tiles[t];
      const int64_t seen = tile->most_visible - key;
      if (seen <= 0) continue;
      const int n = seen < in_block ? static_cast<int>(seen) : in_block;
      if (tile->rows > 2 * kLanes) {
        TileBlock<3>(k, v, n, d, key, scale, &block, tile).Add();
      } else if (tile->rows > kLanes) {
        TileBlock<2>(k, v, n, d, key, scale, &block, tile).Add();
      } else {
        TileBlock<1>(k, v, n, d, key, scale, &block, tile).Add();
      }
    }
  }
  for (int t = 0; t < count; ++t) StoreTile(head, tiles[t]);
}

}  // namespace

void PrefillAttentionRange(const PrefillAttentionArgs& args, int item_rows, int64_t item_begin,
                           int64_t item_end) {
  const int group = args.heads / args.kv_heads;
  const int64_t rows = static_cast<int64_t>(args.queries) * group;
  const int64_t per_head = (rows + item_rows - 1) / item_rows;
  const float scale =
      kUnit * 1.44269504088896341f / __builtin_sqrtf(static_cast<float>(args.head_dim));
  for (int64_t item = item_begin; item < item_end; ++item) {
    // The later the rows, the more keys they see: the last ones, the first ones, the last but one,
    // ..., so that threads' shares are equally long.
    const int64_t kv_head = item % args.kv_heads;
    const int64_t turn = item / args.kv_heads;
    const int64_t first_row = (turn % 2 == 0 ? per_head - 1 - turn / 2 : turn / 2) * item_rows;
    const int64_t left = rows - first_row;
    const Head head = {args, static_cast<int>(kv_head), group,
                       args.k + kv_head * args.kv_head_stride,
                       args.v + kv_head * args.kv_head_stride};
    Item(head, first_row, left < item_rows ? static_cast<int>(left) : item_rows, scale);
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
