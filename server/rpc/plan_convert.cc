#include "server/rpc/plan_convert.h"

#include "absl/strings/str_cat.h"
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
    case v1::CacheSize::SIZE_NOT_SET:
      return std::nullopt;
  }
  if (absl::Status status = ValidateSize(size); !status.ok()) return WithFieldPrefix(path, status);
  return size;
}

absl::StatusOr<std::optional<Allocator>> AllocatorFromProto(const v1::Allocator& proto,
                                                            const PlanDefaults& defaults,
                                                            const std::string& path) {
  Allocator allocator;
  switch (proto.allocator_case()) {
    case v1::Allocator::kRipple: {
      RippleAllocator ripple = defaults.ripple;
      if (proto.ripple().has_r()) ripple.r = proto.ripple().r();
      if (proto.ripple().has_gamma()) ripple.gamma = proto.ripple().gamma();
      allocator = ripple;
      break;
    }
    case v1::Allocator::kUniform:
      allocator = UniformAllocator{};
      break;
    case v1::Allocator::ALLOCATOR_NOT_SET:
      return std::nullopt;
  }
  if (absl::Status status = ValidateAllocator(allocator); !status.ok())
    return WithFieldPrefix(path, status);
  return allocator;
}

absl::StatusOr<std::optional<SelectorSpec>> SelectorFromProto(const v1::Selector& proto,
                                                              const PlanDefaults& defaults,
                                                              const std::string& path) {
  if (!proto.has_snapkv()) return std::nullopt;
  SnapKv snapkv = defaults.snapkv;
  if (proto.snapkv().has_window()) snapkv.window = proto.snapkv().window();
  if (proto.snapkv().has_kernel()) snapkv.kernel = proto.snapkv().kernel();
  switch (proto.snapkv().pooling()) {
    case v1::POOLING_UNSPECIFIED:
      break;
    case v1::POOLING_NONE:
      snapkv.pooling = Pooling::kNone;
      break;
    case v1::POOLING_MAX:
      snapkv.pooling = Pooling::kMax;
      break;
    case v1::POOLING_MEAN:
      snapkv.pooling = Pooling::kMean;
      break;
    default:
      return InvalidField(absl::StrCat(path, "snapkv.pooling"),
                          absl::StrCat("is ", static_cast<int>(proto.snapkv().pooling()),
                                       ": must be POOLING_NONE, POOLING_MAX or POOLING_MEAN"));
  }
  const SelectorSpec selector = snapkv;
  if (absl::Status status = ValidateSelector(selector); !status.ok())
    return WithFieldPrefix(path, status);
  return selector;
}

v1::CacheSize SizeToProto(const Size& size) {
  v1::CacheSize proto;
  if (const auto* retention = std::get_if<Retention>(&size)) {
    proto.set_retention(retention->fraction);
  } else if (const auto* total = std::get_if<TotalPositions>(&size)) {
    proto.set_total_positions(total->positions);
  } else {
    proto.mutable_full();
  }
  return proto;
}

v1::Allocator AllocatorToProto(const Allocator& allocator) {
  v1::Allocator proto;
  if (const auto* ripple = std::get_if<RippleAllocator>(&allocator)) {
    proto.mutable_ripple()->set_r(ripple->r);
    proto.mutable_ripple()->set_gamma(ripple->gamma);
  } else {
    proto.mutable_uniform();
  }
  return proto;
}

v1::Selector SelectorToProto(const SelectorSpec& selector) {
  const SnapKv& snapkv = std::get<SnapKv>(selector);
  v1::Selector proto;
  proto.mutable_snapkv()->set_window(snapkv.window);
  proto.mutable_snapkv()->set_kernel(snapkv.kernel);
  switch (snapkv.pooling) {
    case Pooling::kMax:
      proto.mutable_snapkv()->set_pooling(v1::POOLING_MAX);
      break;
    case Pooling::kMean:
      proto.mutable_snapkv()->set_pooling(v1::POOLING_MEAN);
      break;
    case Pooling::kNone:
      proto.mutable_snapkv()->set_pooling(v1::POOLING_NONE);
      break;
  }
  return proto;
}

v1::Plan PlanToProto(const Plan& plan) {
  v1::Plan proto;
  if (!plan.from_profile()) {
    proto.set_source(v1::PLAN_SOURCE_UNIFORM);
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
  return proto;
}

}  // namespace ripplekv
