#include "server/rpc/plan_convert.h"

#include "absl/strings/str_cat.h"
#include "server/rpc/allocator_convert.h"
#include "server/rpc/status.h"

namespace ripplekv {

absl::StatusOr<std::optional<Size>> SizeFromProto(const v1::CacheSize& proto,
                                                  const std::string& path) {
  Size size;
  switch (proto.size_case()) {
    case v1::CacheSize::kRetention:
      size = Retention{proto.retention()};
      break;
    case v1::CacheSize::kTotalPositions:
      size = TotalPositions{proto.total_positions()};
      break;
    case v1::CacheSize::kFull:
      size = Full{};
      break;
    case v1::CacheSize::kTotalBytes:
      size = TotalBytes{proto.total_bytes()};
      break;
    case v1::CacheSize::kTargetMeanKl:
      size = TargetMeanKl{proto.target_mean_kl()};
      break;
    case v1::CacheSize::SIZE_NOT_SET:
      return std::nullopt;
  }
  if (absl::Status status = ValidateSize(size); !status.ok()) return WithFieldPrefix(path, status);
  return size;
}

absl::Status CheckGivenOnce(const Allocator& allocator, bool gives_size, const std::string& field) {
  if (!gives_size || !std::holds_alternative<PositionsAllocator>(allocator))
    return absl::OkStatus();
  return InvalidField(field,
                      "is given beside the positions allocator: must be absent, since the "
                      "positions are the size");
}

v1::CacheSize SizeToProto(const Size& size) {
  v1::CacheSize proto;
  if (const auto* retention = std::get_if<Retention>(&size)) {
    proto.set_retention(retention->fraction);
  } else if (const auto* total = std::get_if<TotalPositions>(&size)) {
    proto.set_total_positions(total->positions);
  } else if (const auto* bytes = std::get_if<TotalBytes>(&size)) {
    proto.set_total_bytes(bytes->bytes);
  } else if (const auto* target = std::get_if<TargetMeanKl>(&size)) {
    proto.set_target_mean_kl(target->nats);
  } else {
    proto.mutable_full();
  }
  return proto;
}

v1::Plan PlanToProto(const Plan& plan) {
  v1::Plan proto;
  if (std::holds_alternative<UniformAllocator>(plan.allocator())) {
    proto.set_source(v1::PLAN_SOURCE_UNIFORM);
  } else if (!plan.from_profile()) {
    proto.set_source(v1::PLAN_SOURCE_FIXED);
  } else if (plan.profile_id().empty()) {
    proto.set_source(v1::PLAN_SOURCE_INLINE);
  } else {
    proto.set_source(v1::PLAN_SOURCE_PROFILE);
    proto.set_profile_id(plan.profile_id());
  }
  *proto.mutable_allocator() = AllocatorToProto(plan.allocator());
  *proto.mutable_size() = SizeToProto(plan.spec().size);
  for (const double multiplier : plan.multipliers()) proto.add_multipliers(multiplier);
  proto.set_min_positions(static_cast<int32_t>(plan.spec().min_positions));
  proto.set_floor_positions(static_cast<int32_t>(plan.floor()));
  proto.set_chooses_types(plan.chooses_types());
  return proto;
}

}  // namespace ripplekv
