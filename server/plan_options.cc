// What the options mean to plans and to calibration: the second half of options.h.

#include <initializer_list>

#include "server/kv_types.h"
#include "server/options.h"

namespace ripplekv {
namespace {

Pooling PoolingNamed(const std::string& name) {
  if (name == "mean") return Pooling::kMean;
  return name == "none" ? Pooling::kNone : Pooling::kMax;
}

}  // namespace

CalibrationSettings ServerOptions::calibration_settings(int64_t context_length,
                                                        KvTypes kv_types) const {
  CalibrationSettings settings;
  settings.examples = calibration_examples;
  settings.prefix_tokens = calibration_prefix_tokens;
  settings.window_tokens = calibration_window_tokens;
  settings.eta = calibration_eta;
  settings.sinks = sinks;
  settings.recent = calibration_recent;
  settings.seed = calibration_seed;
  settings.damage_examples = calibration_damage;
  if (calibration_damage == 0 && calibration_sizes == 0) return settings;
  settings.selector = plan_selector();
  if (calibration_damage > 0) {
    settings.damage_retentions = settings.DefaultDamageRetentions();
    settings.damage_storage = true;
  }
  if (calibration_sizes > 0) {
    settings.sizes.examples = calibration_sizes;
    settings.sizes.prompt_tokens = settings.DefaultSizePrompts(context_length);
    settings.sizes.retentions = settings.DefaultSizeRetentions();
    settings.sizes.allocator = plan_allocator();
    if (kv_type != kKvTypeAuto ||
        !std::holds_alternative<DamageCurvesAllocator>(settings.sizes.allocator)) {
      settings.sizes.kv_types = kv_types;
    }
  }
  if (!settings.selects()) settings.selector = {};
  return settings;
}

Allocators ServerOptions::allocators() const {
  const SignalMap map = ripple_map == "log"    ? SignalMap::kLog
                        : ripple_map == "rank" ? SignalMap::kRank
                                               : SignalMap::kMinMax;
  const RippleAllocator ripple{.r = ripple_r, .gamma = ripple_gamma, .map = map};
  return {.ripple = ripple,
          .shuffled_ripple = {ripple, shuffle_seed},
          .isolated_damage = {ripple, damage_retention},
          .pyramid = {pyramid_beta},
          .damage_curves = {damage_least_share}};
}

Allocator ServerOptions::plan_allocator() const {
  const Allocators all = allocators();
  for (const Allocator& one : std::initializer_list<Allocator>{
           UniformAllocator{}, SqrtAllocator{}, InverseRippleAllocator{all.ripple},
           all.shuffled_ripple, all.isolated_damage, LocalResponseAllocator{all.ripple},
           all.pyramid, MultipliersAllocator{layer_multipliers},
           PositionsAllocator{layer_positions}, all.damage_curves}) {
    if (AllocatorName(one) == allocator) return one;
  }
  return all.ripple;
}

bool ServerOptions::plans_choose_types() const {
  return kv_type == kKvTypeAuto && std::holds_alternative<DamageCurvesAllocator>(plan_allocator());
}

Selectors ServerOptions::selectors() const {
  const SnapKv snapkv = {
      .window = snapkv_window, .kernel = snapkv_kernel, .pooling = PoolingNamed(snapkv_pooling)};
  return {
      .snapkv = snapkv,
      .h2o = {.window = snapkv_window, .queries = selector_queries, .normalised = h2o_normalised},
      .recent_attention = {.window = snapkv_window,
                           .queries = selector_queries,
                           .kernel = recent_kernel,
                           .pooling = PoolingNamed(recent_pooling)},
      .mixed = {.snapkv = snapkv, .queries = selector_queries, .weight = mixed_weight},
      .streaming_llm = {.window = snapkv_window},
      .random = {.window = snapkv_window, .seed = random_seed}};
}

SelectorSpec ServerOptions::plan_selector() const {
  const Selectors all = selectors();
  for (const SelectorSpec& one : std::initializer_list<SelectorSpec>{
           all.h2o, all.recent_attention, all.mixed, all.streaming_llm, all.random}) {
    if (SelectorName(one) == selector) return one;
  }
  return all.snapkv;
}

}  // namespace ripplekv
