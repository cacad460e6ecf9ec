#include "server/rpc/settings_convert.h"

#include <variant>

#include "server/rpc/allocator_convert.h"
#include "server/rpc/kv_type_convert.h"
#include "server/rpc/selector_convert.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

// `types` stays as it is where the message names none; where it names one, the other stays.
absl::Status TypesFromProto(const v1::CalibrationSettings& proto, std::optional<KvTypes>& types) {
  auto keys = KvTypeFromProto(proto.size_key_type(), "settings.size_key_type");
  if (!keys.ok()) return keys.status();
  auto values = KvTypeFromProto(proto.size_value_type(), "settings.size_value_type");
  if (!values.ok()) return values.status();
  if (keys->has_value() || values->has_value()) {
    if (proto.size_chooses_types()) {
      return InvalidField("settings.size_chooses_types",
                          "is true beside size_key_type or size_value_type: must be absent, since "
                          "they name the types");
    }
    const KvTypes others = types.value_or(KvTypes());
    types = KvTypes(keys->value_or(others.k), values->value_or(others.v));
  } else if (proto.size_chooses_types()) {
    types.reset();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CalibrationSettings> SettingsFromProto(const v1::CalibrationSettings& proto,
                                                      const CalibrationSettings& defaults,
                                                      const PlanDefaults& parameters) {
  CalibrationSettings settings = defaults;
  if (proto.has_examples()) settings.examples = proto.examples();
  if (proto.has_prefix_tokens()) settings.prefix_tokens = proto.prefix_tokens();
  if (proto.has_window_tokens()) settings.window_tokens = proto.window_tokens();
  if (proto.has_eta()) settings.eta = proto.eta();
  if (proto.has_sinks()) settings.sinks = proto.sinks();
  if (proto.has_recent()) settings.recent = proto.recent();
  if (proto.has_seed()) settings.seed = proto.seed();
  if (proto.has_damage_examples()) settings.damage_examples = proto.damage_examples();
  if (!proto.damage_retentions().empty()) {
    settings.damage_retentions = {proto.damage_retentions().begin(),
                                  proto.damage_retentions().end()};
  }
  if (proto.has_damage_storage()) settings.damage_storage = proto.damage_storage();
  auto selector = SelectorFromProto(proto.selector(), parameters.selectors, "settings.selector.");
  if (!selector.ok()) return selector.status();
  if (selector->has_value()) settings.selector = **selector;
  SizeSettings& sizes = settings.sizes;
  if (proto.has_size_examples()) sizes.examples = proto.size_examples();
  if (!proto.size_prompt_tokens().empty()) {
    sizes.prompt_tokens = {proto.size_prompt_tokens().begin(), proto.size_prompt_tokens().end()};
  }
  if (!proto.size_retentions().empty()) {
    sizes.retentions = {proto.size_retentions().begin(), proto.size_retentions().end()};
  }
  auto allocator =
      AllocatorFromProto(proto.size_allocator(), parameters.allocators, "settings.size_allocator.");
  if (!allocator.ok()) return allocator.status();
  if (allocator->has_value()) sizes.allocator = **allocator;
  absl::Status types = TypesFromProto(proto, sizes.kv_types);
  if (!types.ok()) return types;
  return settings;
}

absl::StatusOr<CalibrationSettings> RequestedSettings(const v1::CalibrationSettings& proto,
                                                      const SettingsDefaults& defaults) {
  CalibrationSettings absent = defaults.configured;
  absent.damage_retentions.clear();
  absent.damage_storage = false;
  absent.selector = {};
  absent.sizes = {.examples = defaults.configured.sizes.examples};
  const bool names_types = proto.has_size_chooses_types() ||
                           proto.size_key_type() != v1::KV_TYPE_UNSPECIFIED ||
                           proto.size_value_type() != v1::KV_TYPE_UNSPECIFIED;
  if (names_types && !proto.size_chooses_types()) absent.sizes.kv_types = defaults.plan.kv_types;
  auto settings = SettingsFromProto(proto, absent, defaults.parameters);
  if (!settings.ok()) return settings.status();
  SizeSettings& sizes = settings->sizes;
  if (settings->damage_examples == 0 && sizes.examples == 0) return settings;

  const bool names_selector = proto.selector().selector_case() != v1::Selector::SELECTOR_NOT_SET;
  if (!names_selector) settings->selector = defaults.plan.selector;
  if (settings->damage_examples != 0) {
    if (proto.damage_retentions().empty()) {
      settings->damage_retentions = settings->DefaultDamageRetentions();
    }
    if (!proto.has_damage_storage()) settings->damage_storage = true;
  }
  if (sizes.examples != 0) {
    if (proto.size_prompt_tokens().empty()) {
      sizes.prompt_tokens = settings->DefaultSizePrompts(defaults.context_length);
    }
    if (proto.size_retentions().empty()) sizes.retentions = settings->DefaultSizeRetentions();
    if (proto.size_allocator().allocator_case() == v1::Allocator::ALLOCATOR_NOT_SET) {
      sizes.allocator = defaults.plan.allocator;
    }
    const bool chooses = defaults.plan.choose_types &&
                         std::holds_alternative<DamageCurvesAllocator>(sizes.allocator);
    if (!names_types && !chooses) sizes.kv_types = defaults.plan.kv_types;
  }
  if (!names_selector && !settings->selects()) settings->selector = {};
  return settings;
}

v1::CalibrationSettings SettingsToProto(const CalibrationSettings& settings) {
  v1::CalibrationSettings proto;
  proto.set_examples(settings.examples);
  proto.set_prefix_tokens(settings.prefix_tokens);
  proto.set_window_tokens(settings.window_tokens);
  proto.set_eta(settings.eta);
  proto.set_sinks(settings.sinks);
  proto.set_recent(settings.recent);
  proto.set_seed(settings.seed);
  proto.set_damage_examples(settings.damage_examples);
  proto.mutable_damage_retentions()->Assign(settings.damage_retentions.begin(),
                                            settings.damage_retentions.end());
  proto.set_damage_storage(settings.damage_storage);
  if (settings.selects()) *proto.mutable_selector() = SelectorToProto(settings.selector);
  const SizeSettings& sizes = settings.sizes;
  proto.set_size_examples(sizes.examples);
  if (sizes.examples == 0) return proto;
  for (const int64_t tokens : sizes.prompt_tokens) {
    proto.add_size_prompt_tokens(static_cast<int32_t>(tokens));
  }
  proto.mutable_size_retentions()->Assign(sizes.retentions.begin(), sizes.retentions.end());
  *proto.mutable_size_allocator() = AllocatorToProto(sizes.allocator);
  proto.set_size_chooses_types(!sizes.kv_types.has_value());
  if (sizes.kv_types.has_value()) {
    proto.set_size_key_type(KvTypeToProto(sizes.kv_types->k));
    proto.set_size_value_type(KvTypeToProto(sizes.kv_types->v));
  }
  return proto;
}

}  // namespace ripplekv
