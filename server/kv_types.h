#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/kv_type.h"

namespace ripplekv {

inline constexpr char kKvTypeChoices[] = "auto|fp32|bf16|int8|int4|KEYS:VALUES";

// What --kv-type takes: a type for both, or one for keys and one for values ("int8:int4"). Null for
// "auto", the type the model computes in. INVALID_ARGUMENT names the text and the choices.
absl::StatusOr<std::optional<KvTypes>> ParseKvTypes(std::string_view text);

// "int8", or "int8:int4" where they differ.
std::string KvTypesName(KvTypes types);

}  // namespace ripplekv
