#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/kv_type.h"

namespace ripplekv {

inline constexpr char kKvTypeChoices[] = "compute|auto|fp32|bf16|int8|int4|KEYS:VALUES";
// int8, or less where the plan finds that rows are worth more than bits, layer by layer.
inline constexpr char kKvTypeAuto[] = "auto";

// What --kv-type takes: a type for both, or one for keys and one for values ("int8:int4"). Null for
// "compute", the type the model computes in. int8 for "auto", which loses next to nothing.
// INVALID_ARGUMENT names the text and the choices.
absl::StatusOr<std::optional<KvTypes>> ParseKvTypes(std::string_view text);

// "int8", or "int8:int4" where they differ.
std::string KvTypesName(KvTypes types);

}  // namespace ripplekv
