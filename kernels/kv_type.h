#pragma once

#include <cstddef>
#include <cstdint>

namespace ripplekv {

/// Element type of cached keys and values.
enum class KvType : uint8_t { kF32, kBf16 };

inline constexpr KvType kKvTypes[] = {KvType::kF32, KvType::kBf16};

constexpr size_t KvTypeBytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }

constexpr const char* KvTypeName(KvType type) { return type == KvType::kF32 ? "fp32" : "bf16"; }

}  // namespace ripplekv
