#pragma once

#include <cstddef>
#include <cstdint>

namespace ripplekv {

/// How cached keys or values are stored.
///
/// kInt8: each row of a KV head has a scale, fp32: value = scale * q, q in [-127, 127], scale = the
/// row's largest magnitude / 127.
/// kInt4: each group of 32 channels of a row has a scale and a minimum, bf16: value = scale * q +
/// minimum, q in [0, 15]. Keys are stored so after a Hadamard transform (kernels/hadamard.h): a few
/// of their channels are far larger than the others, and would take the steps of all their group.
/// Both take a row of channels rounded up to 32 (kernels/kv_codec.h).
enum class KvType : uint8_t { kF32, kBf16, kInt8, kInt4 };

inline constexpr KvType kKvTypes[] = {KvType::kF32, KvType::kBf16, KvType::kInt8, KvType::kInt4};
/// Those a model computes in.
inline constexpr KvType kFloatKvTypes[] = {KvType::kF32, KvType::kBf16};

/// What a cached row holds.
enum class KvRole : uint8_t { kKey, kValue };

/// Keys of this type are stored transformed, and so must be the queries that they meet.
inline constexpr KvType kTransformedKeys = KvType::kInt4;

constexpr bool IsTransformed(KvRole role, KvType type) {
  return role == KvRole::kKey && type == kTransformedKeys;
}

inline constexpr int kKvGroup = 32;  // channels

/// Bytes of one element of a type that models compute in.
constexpr size_t KvTypeBytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }

constexpr int KvGroups(int head_dim) { return (head_dim + kKvGroup - 1) / kKvGroup; }

/// Bytes of one row of one KV head, without its scales and minima.
constexpr size_t KvRowBytes(KvType type, int head_dim) {
  return type == KvType::kInt8   ? static_cast<size_t>(KvGroups(head_dim)) * kKvGroup
         : type == KvType::kInt4 ? static_cast<size_t>(KvGroups(head_dim)) * kKvGroup / 2
                                 : static_cast<size_t>(head_dim) * KvTypeBytes(type);
}

/// Bytes of its scales and minima: an fp32 scale a row for kInt8; for kInt4 a scale and a minimum a
/// group, a 32-bit word with the scale below and the minimum above.
constexpr size_t KvParamBytes(KvType type, int head_dim) {
  return type == KvType::kInt8   ? 4
         : type == KvType::kInt4 ? static_cast<size_t>(KvGroups(head_dim)) * 4
                                 : 0;
}

constexpr const char* KvTypeName(KvType type) {
  return type == KvType::kF32    ? "fp32"
         : type == KvType::kBf16 ? "bf16"
         : type == KvType::kInt8 ? "int8"
                                 : "int4";
}

/// Of keys and of values.
struct KvTypes {
  KvType k = KvType::kF32;
  KvType v = KvType::kF32;

  constexpr KvTypes() = default;
  constexpr KvTypes(KvType keys, KvType values) : k(keys), v(values) {}
  constexpr KvTypes(KvType both) : k(both), v(both) {}  // NOLINT: a type says both
  friend constexpr bool operator==(KvTypes a, KvTypes b) { return a.k == b.k && a.v == b.v; }
};

}  // namespace ripplekv
