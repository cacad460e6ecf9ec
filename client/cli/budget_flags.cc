#include "client/cli/budget_flags.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/help.h"

namespace ripplekv {
namespace {

const std::vector<std::string>& AllocatorNames() {
  static const std::vector<std::string> names = {
      "ripple",          "uniform",         "sqrt",           "inverse_ripple",
      "shuffled_ripple", "isolated_damage", "local_response", "pyramid",
      "multipliers",     "positions",       "damage_curves"};
  return names;
}

bool Parse(absl::string_view text, double& value) { return absl::SimpleAtod(text, &value); }
bool Parse(absl::string_view text, int64_t& value) { return absl::SimpleAtoi(text, &value); }

template <typename Field>
absl::Status ParseList(const char* flag, const std::string& text, Field* field) {
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    typename Field::value_type value{};
    if (!Parse(part, value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " is '", text, "': must be numbers between commas, one a layer"));
    }
    field->Add(value);
  }
  return absl::OkStatus();
}

}  // namespace

void BudgetFlags::Add(CLI::App& app) {
  const std::string group = "KV cache (without any: the server's plan)";
  const auto add = [&](const std::string& flag, auto& value, const std::string& text) {
    return app.add_option(flag, value, text)->group(group);
  };
  const auto one_of = [](CLI::Option* option, const std::vector<std::string>& names) {
    option->check(OneOf(names))->type_name(absl::StrJoin(names, "|"));
  };
  const std::vector<CLI::Option*> sizes = {
      add("--retention", retention,
          "Share of the prompt's positions that is kept, mean over layers, above 0 to 1"),
      add("--total-positions", total_positions,
          "Positions kept per KV head, summed over the layers"),
      add("--total-bytes", total_bytes, "Bytes of the kept rows, summed over the layers"),
      add("--target-mean-kl", target_mean_kl,
          "As few as are expected to change the output by this mean KL, nats; refused where "
          "that was not measured"),
      app.add_flag("--full", full, "Keep every position")->group(group)};
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) sizes[i]->excludes(sizes[j]);
  }
  add("--allocator", allocator,
      absl::StrCat("How the total is divided over layers (docs/allocators.md): ",
                   absl::StrJoin(AllocatorNames(), ", ")))
      ->check(OneOf(AllocatorNames()))
      ->type_name("NAME");
  add("--ripple-r", ripple_r,
      "ripple and what is made of it: largest ratio between two layers, from 1 (uniform)");
  add("--ripple-gamma", ripple_gamma, "The same: limit of a layer's multiplier, from 1");
  one_of(add("--ripple-map", ripple_map, "The same: how measurements are scaled before"),
         {"minmax", "log", "rank"});
  add("--pyramid-beta", pyramid_beta, "pyramid: the last layer keeps 1/beta of the mean, from 1");
  add("--damage-retention", damage_retention,
      "isolated_damage: the retention whose damage counts, above 0, below 1");
  add("--damage-least-share", damage_least_share,
      "damage_curves: share of the mean budget that every layer keeps at least, 0 to 1");
  add("--shuffle-seed", shuffle_seed, "shuffled_ripple: seed of the order")->check(NotNegative());
  add("--layer-multipliers", layer_multipliers, "multipliers: one a layer, between commas")
      ->type_name("W,W,...");
  add("--layer-positions", layer_positions,
      "positions: one a layer, between commas; they are the size too")
      ->type_name("N,N,...");
}

std::optional<v1::CacheSize> BudgetFlags::Size() const {
  v1::CacheSize size;
  if (retention) {
    size.set_retention(*retention);
  } else if (total_positions) {
    size.set_total_positions(*total_positions);
  } else if (total_bytes) {
    size.set_total_bytes(*total_bytes);
  } else if (target_mean_kl) {
    size.set_target_mean_kl(*target_mean_kl);
  } else if (full) {
    size.mutable_full();
  } else {
    return std::nullopt;
  }
  return size;
}

absl::StatusOr<std::optional<v1::Allocator>> BudgetFlags::MakeAllocator() const {
  // Ripple's parameters alone mean ripple.
  const bool ripple_given = ripple_r || ripple_gamma || !ripple_map.empty();
  const std::string name = allocator.empty() && ripple_given ? "ripple" : allocator;
  absl::Status status;
  const auto check = [&](const char* flag, bool given,
                         std::initializer_list<std::string_view> allocators) {
    if (!given || std::find(allocators.begin(), allocators.end(), name) != allocators.end()) return;
    status.Update(absl::InvalidArgumentError(
        name.empty() ? absl::StrCat(flag, " does not go without --allocator")
                     : absl::StrCat(flag, " does not go with --allocator ", name)));
  };
  const auto check_ripple = [&](const char* flag, bool given) {
    check(flag, given,
          {"ripple", "inverse_ripple", "shuffled_ripple", "isolated_damage", "local_response"});
  };
  check_ripple("--ripple-r", ripple_r.has_value());
  check_ripple("--ripple-gamma", ripple_gamma.has_value());
  check_ripple("--ripple-map", !ripple_map.empty());
  check("--pyramid-beta", pyramid_beta.has_value(), {"pyramid"});
  check("--damage-retention", damage_retention.has_value(), {"isolated_damage"});
  check("--damage-least-share", damage_least_share.has_value(), {"damage_curves"});
  check("--shuffle-seed", shuffle_seed.has_value(), {"shuffled_ripple"});
  check("--layer-multipliers", !layer_multipliers.empty(), {"multipliers"});
  check("--layer-positions", !layer_positions.empty(), {"positions"});
  if (!status.ok()) return status;
  if (name.empty()) return std::nullopt;

  v1::Allocator made;
  const auto fill_ripple = [&](v1::RippleAllocator* ripple) {
    if (ripple_r) ripple->set_r(*ripple_r);
    if (ripple_gamma) ripple->set_gamma(*ripple_gamma);
    if (ripple_map == "minmax") ripple->set_map(v1::SIGNAL_MAP_MIN_MAX);
    if (ripple_map == "log") ripple->set_map(v1::SIGNAL_MAP_LOG);
    if (ripple_map == "rank") ripple->set_map(v1::SIGNAL_MAP_RANK);
  };
  if (name == "ripple") fill_ripple(made.mutable_ripple());
  if (name == "uniform") made.mutable_uniform();
  if (name == "sqrt") made.mutable_sqrt();
  if (name == "inverse_ripple") fill_ripple(made.mutable_inverse_ripple()->mutable_ripple());
  if (name == "shuffled_ripple") {
    fill_ripple(made.mutable_shuffled_ripple()->mutable_ripple());
    if (shuffle_seed) made.mutable_shuffled_ripple()->set_seed(*shuffle_seed);
  }
  if (name == "isolated_damage") {
    fill_ripple(made.mutable_isolated_damage()->mutable_ripple());
    if (damage_retention) made.mutable_isolated_damage()->set_retention(*damage_retention);
  }
  if (name == "local_response") fill_ripple(made.mutable_local_response()->mutable_ripple());
  if (name == "pyramid") {
    made.mutable_pyramid();
    if (pyramid_beta) made.mutable_pyramid()->set_beta(*pyramid_beta);
  }
  if (name == "damage_curves") {
    made.mutable_damage_curves();
    if (damage_least_share) made.mutable_damage_curves()->set_least_share(*damage_least_share);
  }
  if (name == "multipliers") {
    status = ParseList("--layer-multipliers", layer_multipliers,
                       made.mutable_multipliers()->mutable_multipliers());
  }
  if (name == "positions") {
    status = ParseList("--layer-positions", layer_positions,
                       made.mutable_positions()->mutable_positions());
  }
  if (!status.ok()) return status;
  return made;
}

}  // namespace ripplekv
