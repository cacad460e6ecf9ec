// A tile of queries of prefill attention (prefill_attention_avx512bf16.cc).
#pragma once

#include "kernels/bf16_pairs.h"
#include "kernels/prefill_attention_items.h"

namespace ripplekv::RIPPLEKV_ISA {

constexpr int kVectors = 3;
constexpr int kTileRows = kVectors * kLanes;
static_assert(kTileRows == kPrefillAttentionTileRows);
constexpr int kMaxDim = kPrefillAttentionMaxHeadDim;

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

inline void LoadTile(const Head& head, int64_t first_row, int rows, Tile* tile) {
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

inline void StoreTile(const Head& head, const Tile& tile) {
  const int d = head.args.head_dim;
  for (int first = 0; first < tile.rows; first += kLanes) {
    const int lanes = tile.rows - first < kLanes ? tile.rows - first : kLanes;
    const __m512 factor = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_load_ps(tile.sum + first));
    for (int c = 0; c < d; c += 2 * kLanes) {
      __m512i x[kLanes];
      Unroll<kLanes>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        const float(*out)[kTileRows] = tile.out + c + 2 * i.value;
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

}  // namespace ripplekv::RIPPLEKV_ISA
