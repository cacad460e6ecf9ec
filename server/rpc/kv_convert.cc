#include "server/rpc/kv_convert.h"

#include "absl/strings/str_cat.h"
#include "server/rpc/allocator_convert.h"
#include "server/rpc/kv_type_convert.h"
#include "server/rpc/selector_convert.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

absl::Status CheckGrowthCap(int32_t cap, bool grows) {
  if (!grows) {
    return InvalidField("kv.growth_cap",
                        absl::StrCat("is ", cap, ": must be absent, since nothing is generated"));
  }
  if (cap == 0 || (cap >= KvParams::kMinGrowthCap && cap <= KvParams::kMaxGrowthCap)) {
    return absl::OkStatus();
  }
  return InvalidField("kv.growth_cap",
                      absl::StrCat("is ", cap, ": must be 0 (no limit) or ",
                                   KvParams::kMinGrowthCap, " to ", KvParams::kMaxGrowthCap));
}

absl::Status FixedByContext(absl::string_view field) {
  return InvalidField(field, "is given over a context: must be absent, CreateContext fixed it");
}

}  // namespace

absl::StatusOr<KvParams> KvParamsFromProto(const v1::KvParams& proto, const PlanDefaults& defaults,
                                           KvUse use) {
  KvParams kv;
  absl::StatusOr<std::optional<Size>> size = SizeFromProto(proto.size(), "kv.size.");
  if (!size.ok()) return size.status();
  kv.size = *size;
  absl::StatusOr<std::optional<Allocator>> allocator =
      AllocatorFromProto(proto.allocator(), defaults.allocators, "kv.allocator.");
  if (!allocator.ok()) return allocator.status();
  kv.allocator = *allocator;
  if (kv.allocator.has_value()) {
    absl::Status status = CheckGivenOnce(*kv.allocator, kv.size.has_value(), "kv.size");
    if (status.ok() && defaults.layers > 0) {
      status = CheckOneALayer(*kv.allocator, defaults.layers, "kv.allocator.");
    }
    if (!status.ok()) return status;
  }
  absl::StatusOr<std::optional<SelectorSpec>> selector =
      SelectorFromProto(proto.selector(), defaults.selectors, "kv.selector.");
  if (!selector.ok()) return selector.status();
  kv.selector = *selector;
  absl::StatusOr<std::optional<KvType>> keys = KvTypeFromProto(proto.key_type(), "kv.key_type");
  if (!keys.ok()) return keys.status();
  kv.key_type = *keys;
  absl::StatusOr<std::optional<KvType>> values =
      KvTypeFromProto(proto.value_type(), "kv.value_type");
  if (!values.ok()) return values.status();
  kv.value_type = *values;
  if (use == KvUse::kGenerateOverContext || use == KvUse::kPrefillOverContext) {
    if (kv.size.has_value()) return FixedByContext("kv.size");
    if (kv.allocator.has_value()) return FixedByContext("kv.allocator");
    if (kv.selector.has_value()) return FixedByContext("kv.selector");
    if (kv.key_type.has_value()) return FixedByContext("kv.key_type");
    if (kv.value_type.has_value()) return FixedByContext("kv.value_type");
  }
  if (proto.has_growth_cap()) {
    const bool grows = use == KvUse::kGenerate || use == KvUse::kGenerateOverContext;
    if (absl::Status status = CheckGrowthCap(proto.growth_cap(), grows); !status.ok())
      return status;
    kv.growth_cap = proto.growth_cap();
  }
  return kv;
}

}  // namespace ripplekv
