// Query rows are the lanes, 16 a vector and three vectors a tile. Keys and values are broadcast to
// them as pairs of bf16, so nothing is ever summed across lanes. A tile's scores become
// probabilities as soon as they are there: the number that the softmax subtracts is not the running
// maximum but one that the first keys give.
#include "kernels/isa_functions.h"
#include "kernels/prefill_attention_block.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

void Item(const Head& head, int64_t first_row, int rows, float scale) {
  const int d = head.args.head_dim;
  Tile tiles[kPrefillAttentionMaxTiles];
  KeyBlock block;
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
  const float scale =
      kUnit * 1.44269504088896341f / __builtin_sqrtf(static_cast<float>(args.head_dim));
  ForItems(args, item_rows, item_begin, item_end,
           [&](const Head& head, int64_t first_row, int rows)
               RIPPLEKV_INLINE_LAMBDA { Item(head, first_row, rows, scale); });
}

}  // namespace ripplekv::RIPPLEKV_ISA
