// A block of keys and values of prefill attention at work on a tile
// (prefill_attention_avx512bf16.cc).
#pragma once

#include "kernels/exp2_pairs.h"
#include "kernels/prefill_attention_tile.h"

namespace ripplekv::RIPPLEKV_ISA {

constexpr int kKeyTile = 8;    // keys times vectors: 24 accumulators
constexpr int kValueTile = 8;  // columns times vectors: the same
constexpr int kBlock = 256;    // keys whose probabilities are held at once
constexpr int kLinePairs = 2;  // so that columns do not fall on the same cache lines
/// A row whose sum of probabilities passes it gets a new reference.
constexpr float kLargestSum = 0x1p80f;

/// Of one tile and a block of keys.
struct alignas(64) KeyBlock {
  uint32_t v[kMaxDim / kValueTile][kBlock / 2 + kLinePairs][kValueTile];  // pairs of keys
  uint32_t p[kBlock / 2][kTileRows];  // pairs of keys, [pair][vector][lane]
  float sum[kTileRows];               // the tile's with this block
  float scores[2][kKeyTile * kTileRows];
  uint16_t rest[kKeyTile * kMaxDim];  // the last keys and zeros, where a key tile is not full
};

/// block->v from `keys` rows; rows up to the next multiple of kKeyTile are zeros.
inline void PackValues(const uint16_t* v, int keys, int d, KeyBlock* block) {
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
                            float scale, KeyBlock* block, Tile* tile)
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
  KeyBlock* block_;
  Tile* tile_;
};

}  // namespace ripplekv::RIPPLEKV_ISA
