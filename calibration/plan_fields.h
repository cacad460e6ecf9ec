#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <type_traits>
#include <variant>

#include "calibration/policy/allocator.h"
#include "calibration/policy/selector.h"

namespace ripplekv {

// The parameters of selectors and allocators by name, for what writes and reads them:
// visit(name, member) for each. The names and their order are part of profile files.

template <typename T, typename Of>
concept MaybeConst = std::same_as<std::remove_const_t<T>, Of>;

template <MaybeConst<SnapKv> T>
void VisitFields(T& snapkv, auto&& visit) {
  visit("window", snapkv.window);
  visit("kernel", snapkv.kernel);
  visit("pooling", snapkv.pooling);
}

template <MaybeConst<H2o> T>
void VisitFields(T& h2o, auto&& visit) {
  visit("window", h2o.window);
  visit("queries", h2o.queries);
  visit("normalised", h2o.normalised);
}

template <MaybeConst<RecentAttention> T>
void VisitFields(T& recent, auto&& visit) {
  visit("window", recent.window);
  visit("queries", recent.queries);
  visit("kernel", recent.kernel);
  visit("pooling", recent.pooling);
}

template <MaybeConst<MixedAttention> T>
void VisitFields(T& mixed, auto&& visit) {
  VisitFields(mixed.snapkv, visit);
  visit("queries", mixed.queries);
  visit("weight", mixed.weight);
}

template <MaybeConst<StreamingLlm> T>
void VisitFields(T& streaming, auto&& visit) {
  visit("window", streaming.window);
}

template <MaybeConst<RandomPositions> T>
void VisitFields(T& random, auto&& visit) {
  visit("window", random.window);
  visit("seed", random.seed);
}

template <MaybeConst<RippleAllocator> T>
void VisitFields(T& ripple, auto&& visit) {
  visit("r", ripple.r);
  visit("gamma", ripple.gamma);
  visit("map", ripple.map);
}

template <typename T>
  requires MaybeConst<T, UniformAllocator> || MaybeConst<T, SqrtAllocator>
void VisitFields(T&, auto&&) {}

template <typename T>
  requires MaybeConst<T, InverseRippleAllocator> || MaybeConst<T, LocalResponseAllocator>
void VisitFields(T& allocator, auto&& visit) {
  VisitFields(allocator.ripple, visit);
}

template <MaybeConst<ShuffledRippleAllocator> T>
void VisitFields(T& shuffled, auto&& visit) {
  VisitFields(shuffled.ripple, visit);
  visit("seed", shuffled.seed);
}

template <MaybeConst<IsolatedDamageAllocator> T>
void VisitFields(T& isolated, auto&& visit) {
  VisitFields(isolated.ripple, visit);
  visit("retention", isolated.retention);
}

template <MaybeConst<PyramidAllocator> T>
void VisitFields(T& pyramid, auto&& visit) {
  visit("beta", pyramid.beta);
}

template <MaybeConst<MultipliersAllocator> T>
void VisitFields(T& list, auto&& visit) {
  visit("multipliers", list.multipliers);
}

template <MaybeConst<PositionsAllocator> T>
void VisitFields(T& list, auto&& visit) {
  visit("positions", list.positions);
}

template <MaybeConst<DamageCurvesAllocator> T>
void VisitFields(T& curves, auto&& visit) {
  visit("least_share", curves.least_share);
}

// The alternative of that name with its defaults, false where there is none.
template <size_t I = 0, typename Variant, typename NameOf>
bool MakeNamed(Variant& variant, const NameOf& name_of, const std::string& name) {
  if constexpr (I == std::variant_size_v<Variant>) {
    return false;
  } else {
    variant = std::variant_alternative_t<I, Variant>();
    return name_of(variant) == name || MakeNamed<I + 1>(variant, name_of, name);
  }
}

}  // namespace ripplekv
