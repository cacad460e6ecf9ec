#include "server/kv_types.h"

#include "absl/strings/str_cat.h"
#include "calibration/policy/plan.h"

namespace ripplekv {
namespace {

std::optional<KvType> TypeNamed(std::string_view name) {
  for (KvType type : kKvTypes) {
    if (name == KvTypeName(type)) return type;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::optional<KvTypes>> ParseKvTypes(std::string_view text) {
  if (text == "compute") return std::optional<KvTypes>();
  if (text == kKvTypeAuto) return kDearestChosen;
  const size_t colon = text.find(':');
  const std::string_view values = colon == std::string_view::npos ? text : text.substr(colon + 1);
  const std::optional<KvType> k = TypeNamed(text.substr(0, colon)), v = TypeNamed(values);
  if (k.has_value() && v.has_value()) return KvTypes(*k, *v);
  return absl::InvalidArgumentError(absl::StrCat("'", std::string(text), "' is not one of ",
                                                 kKvTypeChoices,
                                                 " (KEYS and VALUES: fp32, bf16, int8 or int4)"));
}

std::string KvTypesName(KvTypes types) {
  if (types.k == types.v) return KvTypeName(types.k);
  return absl::StrCat(KvTypeName(types.k), ":", KvTypeName(types.v));
}

}  // namespace ripplekv
