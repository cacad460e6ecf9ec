#pragma once

#include <cstdint>

#include "kernels/kv_page.h"
#include "kernels/kv_type.h"

namespace ripplekv {

// What a cached row of the model is: to count bytes.
struct KvShape {
  int kv_heads = 0;  // 0: not known
  int head_dim = 0;

  bool known() const { return kv_heads > 0; }
  // Of one row of all KV heads in one layer: keys, values and positions. 0 where not known.
  int64_t RowBytes(KvTypes types) const {
    return static_cast<int64_t>(KvPageLayout::RowBytes(types, kv_heads, head_dim));
  }

  bool operator==(const KvShape&) const = default;
};

}  // namespace ripplekv
