#include "server/rpc/allocator_convert.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

// A map that is not one of the enum stays one that ValidateAllocator refuses.
SignalMap MapFromProto(v1::SignalMap proto, SignalMap absent) {
  switch (proto) {
    case v1::SIGNAL_MAP_UNSPECIFIED:
      return absent;
    case v1::SIGNAL_MAP_MIN_MAX:
      return SignalMap::kMinMax;
    case v1::SIGNAL_MAP_LOG:
      return SignalMap::kLog;
    case v1::SIGNAL_MAP_RANK:
      return SignalMap::kRank;
    default:
      return static_cast<SignalMap>(std::clamp(static_cast<int>(proto), 3, 255));
  }
}

RippleAllocator RippleFromProto(const v1::RippleAllocator& proto, const RippleAllocator& absent) {
  RippleAllocator ripple = absent;
  if (proto.has_r()) ripple.r = proto.r();
  if (proto.has_gamma()) ripple.gamma = proto.gamma();
  ripple.map = MapFromProto(proto.map(), absent.map);
  return ripple;
}

void RippleToProto(const RippleAllocator& ripple, v1::RippleAllocator* proto) {
  proto->set_r(ripple.r);
  proto->set_gamma(ripple.gamma);
  proto->set_map(ripple.map == SignalMap::kMinMax ? v1::SIGNAL_MAP_MIN_MAX
                 : ripple.map == SignalMap::kLog  ? v1::SIGNAL_MAP_LOG
                                                  : v1::SIGNAL_MAP_RANK);
}

}  // namespace

absl::StatusOr<std::optional<Allocator>> AllocatorFromProto(const v1::Allocator& proto,
                                                            const Allocators& defaults,
                                                            const std::string& path) {
  Allocator allocator;
  switch (proto.allocator_case()) {
    case v1::Allocator::kRipple:
      allocator = RippleFromProto(proto.ripple(), defaults.ripple);
      break;
    case v1::Allocator::kUniform:
      allocator = UniformAllocator{};
      break;
    case v1::Allocator::kSqrt:
      allocator = SqrtAllocator{};
      break;
    case v1::Allocator::kInverseRipple:
      allocator =
          InverseRippleAllocator{RippleFromProto(proto.inverse_ripple().ripple(), defaults.ripple)};
      break;
    case v1::Allocator::kShuffledRipple: {
      const v1::ShuffledRippleAllocator& shuffled = proto.shuffled_ripple();
      allocator = ShuffledRippleAllocator{
          RippleFromProto(shuffled.ripple(), defaults.ripple),
          shuffled.has_seed() ? shuffled.seed() : defaults.shuffled_ripple.seed};
      break;
    }
    case v1::Allocator::kIsolatedDamage: {
      const v1::IsolatedDamageAllocator& isolated = proto.isolated_damage();
      allocator = IsolatedDamageAllocator{
          RippleFromProto(isolated.ripple(), defaults.ripple),
          isolated.has_retention() ? isolated.retention() : defaults.isolated_damage.retention};
      break;
    }
    case v1::Allocator::kLocalResponse:
      allocator =
          LocalResponseAllocator{RippleFromProto(proto.local_response().ripple(), defaults.ripple)};
      break;
    case v1::Allocator::kPyramid:
      allocator = PyramidAllocator{proto.pyramid().has_beta() ? proto.pyramid().beta()
                                                              : defaults.pyramid.beta};
      break;
    case v1::Allocator::kMultipliers:
      allocator = MultipliersAllocator{
          {proto.multipliers().multipliers().begin(), proto.multipliers().multipliers().end()}};
      break;
    case v1::Allocator::kPositions:
      allocator = PositionsAllocator{
          {proto.positions().positions().begin(), proto.positions().positions().end()}};
      break;
    case v1::Allocator::kDamageCurves:
      allocator = DamageCurvesAllocator{proto.damage_curves().has_least_share()
                                            ? proto.damage_curves().least_share()
                                            : defaults.damage_curves.least_share};
      break;
    case v1::Allocator::ALLOCATOR_NOT_SET:
      return std::nullopt;
  }
  if (absl::Status status = ValidateAllocator(allocator); !status.ok()) {
    // The lists name their field, not the message that it is in.
    const bool list = std::holds_alternative<MultipliersAllocator>(allocator) ||
                      std::holds_alternative<PositionsAllocator>(allocator);
    return WithFieldPrefix(list ? absl::StrCat(path, AllocatorName(allocator), ".") : path, status);
  }
  return allocator;
}

absl::Status CheckOneALayer(const Allocator& allocator, int layers, const std::string& path) {
  size_t values = 0;
  if (const auto* multipliers = std::get_if<MultipliersAllocator>(&allocator)) {
    values = multipliers->multipliers.size();
  } else if (const auto* positions = std::get_if<PositionsAllocator>(&allocator)) {
    values = positions->positions.size();
  } else {
    return absl::OkStatus();
  }
  if (values == static_cast<size_t>(layers)) return absl::OkStatus();
  const std::string name = AllocatorName(allocator);
  return InvalidField(
      absl::StrCat(path, name, ".", name),
      absl::StrCat("has ", values, " values: must have one for each of the ", layers, " layers"));
}

v1::Allocator AllocatorToProto(const Allocator& allocator) {
  v1::Allocator proto;
  std::visit(
      [&](const auto& a) {
        using A = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<A, RippleAllocator>) {
          RippleToProto(a, proto.mutable_ripple());
        } else if constexpr (std::is_same_v<A, UniformAllocator>) {
          proto.mutable_uniform();
        } else if constexpr (std::is_same_v<A, SqrtAllocator>) {
          proto.mutable_sqrt();
        } else if constexpr (std::is_same_v<A, InverseRippleAllocator>) {
          RippleToProto(a.ripple, proto.mutable_inverse_ripple()->mutable_ripple());
        } else if constexpr (std::is_same_v<A, ShuffledRippleAllocator>) {
          RippleToProto(a.ripple, proto.mutable_shuffled_ripple()->mutable_ripple());
          proto.mutable_shuffled_ripple()->set_seed(a.seed);
        } else if constexpr (std::is_same_v<A, IsolatedDamageAllocator>) {
          RippleToProto(a.ripple, proto.mutable_isolated_damage()->mutable_ripple());
          proto.mutable_isolated_damage()->set_retention(a.retention);
        } else if constexpr (std::is_same_v<A, LocalResponseAllocator>) {
          RippleToProto(a.ripple, proto.mutable_local_response()->mutable_ripple());
        } else if constexpr (std::is_same_v<A, PyramidAllocator>) {
          proto.mutable_pyramid()->set_beta(a.beta);
        } else if constexpr (std::is_same_v<A, MultipliersAllocator>) {
          proto.mutable_multipliers()->mutable_multipliers()->Assign(a.multipliers.begin(),
                                                                     a.multipliers.end());
        } else if constexpr (std::is_same_v<A, PositionsAllocator>) {
          proto.mutable_positions()->mutable_positions()->Assign(a.positions.begin(),
                                                                 a.positions.end());
        } else {
          static_assert(std::is_same_v<A, DamageCurvesAllocator>);
          proto.mutable_damage_curves()->set_least_share(a.least_share);
        }
      },
      allocator);
  return proto;
}

}  // namespace ripplekv
