// The build of prefill attention for AVX512-BF16, which x86-64-v4 does not include.
#pragma once

#include <cstdint>

#include "kernels/prefill_attention.h"

namespace ripplekv {

inline constexpr int kPrefillAttentionItemRows = 192;

namespace isa_v4dot {
void PrefillAttentionRange(const PrefillAttentionArgs& args, int64_t item_begin, int64_t item_end);
}

}  // namespace ripplekv
