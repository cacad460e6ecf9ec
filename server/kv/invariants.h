#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/kv/layer_pool.h"
#include "server/kv/page_arena.h"
#include "server/kv/sequence_cache.h"

namespace ripplekv {

/// Page accounting of the arena, its pools and every live sequence over them: each page is free or
/// one sequence's own, in exactly one place; a shared page is the same full page of the same layer
/// and layout of a sequence that owns it; the pools' and the arena's counts are the sums of what
/// sequences own and were promised; a page table covers its rows and no more; positions ascend
/// strictly in every KV head. INTERNAL names the first broken rule.
absl::Status CheckKvInvariants(const PageArena& arena, absl::Span<const LayerPool> pools,
                               absl::Span<const SequenceCache* const> sequences);

}  // namespace ripplekv
