// Cached rows of one KV head a block at a time. Per instruction set, like simd.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/decode_attention.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {

/// Rows of a split that are scored, weighed and forgotten together, so that memory is read in the
/// order of its addresses: keys, then values, page after page. The processor's own prefetching
/// follows that; what programs ask for ahead of time is limited by how much may be under way.
inline constexpr int kBlockRows = kKvBlockRows;
static_assert(kDecodeAttentionSplitRows % kBlockRows == 0 && kBlockRows == 2 * kLanes);

/// Keys or values of up to kBlockRows rows of a KV head, one after the other.
struct Block {
  const std::byte* data;
  const std::byte* params;  // scales and minima
  int count;
};

/// Where a block's rows lie that are not all in one page.
struct alignas(64) GatheredBlock {
  std::byte data[kBlockRows * kDecodeAttentionMaxHeadDim * sizeof(float)];
  std::byte params[kBlockRows * kDecodeAttentionMaxHeadDim / kKvGroup * 4];
};

/// Rows [first, first + count) of a sequence.
struct BlockRows {
  const KvPageLayout* layout;
  const PagedSequence* sequence;
  int64_t first;
  int count;

  RIPPLEKV_INLINE int64_t page() const { return first / layout->rows_per_page; }
  RIPPLEKV_INLINE int64_t in_page() const { return first % layout->rows_per_page; }
  RIPPLEKV_INLINE const std::byte* Data(const KvSide& side, int kv_head, int64_t page,
                                        int64_t in_page) const {
    return sequence->pages[page] + side.offset + Index(kv_head, in_page) * side.row_bytes;
  }
  RIPPLEKV_INLINE const std::byte* Params(const KvSide& side, int kv_head, int64_t page,
                                          int64_t in_page) const {
    return sequence->pages[page] + side.param_offset + Index(kv_head, in_page) * side.param_bytes;
  }
  /// Rows from in_page on that lie in the same page, `left` at most.
  RIPPLEKV_INLINE int Run(int64_t in_page, int left) const {
    const int64_t room = layout->rows_per_page - in_page;
    return room < left ? static_cast<int>(room) : left;
  }

  /// `whole`: a block of kBlockRows, zeros behind the last row.
  RIPPLEKV_INLINE Block Of(const KvSide& side, int kv_head, bool whole,
                           GatheredBlock* gathered) const {
    if (Run(in_page(), count) == count && (!whole || count == kBlockRows)) {
      return {Data(side, kv_head, page(), in_page()), Params(side, kv_head, page(), in_page()),
              count};
    }
    std::byte* data = gathered->data;
    std::byte* params = gathered->params;
    int64_t p = page(), r = in_page();
    for (int done = 0; done < count; ++p, r = 0) {
      const int run = Run(r, count - done);
      const uint64_t bytes = static_cast<uint64_t>(run) * side.row_bytes;
      const uint64_t param_bytes = static_cast<uint64_t>(run) * side.param_bytes;
      __builtin_memcpy(data, Data(side, kv_head, p, r), bytes);
      __builtin_memcpy(params, Params(side, kv_head, p, r), param_bytes);
      data += bytes;
      params += param_bytes;
      done += run;
    }
    if (!whole) return {gathered->data, gathered->params, count};
    const uint64_t missing = static_cast<uint64_t>(kBlockRows - count);
    __builtin_memset(data, 0, missing * side.row_bytes);
    __builtin_memset(params, 0, missing * side.param_bytes);
    return {gathered->data, gathered->params, kBlockRows};
  }

 private:
  RIPPLEKV_INLINE uint64_t Index(int kv_head, int64_t in_page) const {
    return static_cast<uint64_t>(kv_head * static_cast<int64_t>(layout->rows_per_page) + in_page);
  }
};

/// Asks for a block's rows a few at a time: where the next page lies, the processor cannot guess.
struct Ahead {
  const std::byte* at = nullptr;
  int64_t row_bytes = 0;
  int left = 0;  // rows

  Ahead() = default;
  /// Of the rows in the first one's page.
  RIPPLEKV_INLINE Ahead(const BlockRows& rows, const KvSide& side, int kv_head) {
    if (rows.count == 0) return;
    at = rows.Data(side, kv_head, rows.page(), rows.in_page());
    row_bytes = static_cast<int64_t>(side.row_bytes);
    left = rows.Run(rows.in_page(), rows.count);
    const std::byte* params = rows.Params(side, kv_head, rows.page(), rows.in_page());
    Prefetch(params, left * static_cast<int64_t>(side.param_bytes));
  }
  RIPPLEKV_INLINE void Next(int rows) {
    if (left <= 0) return;
    const int64_t bytes = (rows < left ? rows : left) * row_bytes;
    Prefetch(at, bytes);
    at += bytes;
    left -= rows;
  }
  static RIPPLEKV_INLINE void Prefetch(const std::byte* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
  }
};

}  // namespace ripplekv::RIPPLEKV_ISA
