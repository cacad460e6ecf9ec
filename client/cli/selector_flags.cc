#include "client/cli/selector_flags.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/help.h"

namespace ripplekv {
namespace {

v1::Pooling PoolingNamed(const std::string& name) {
  if (name == "max") return v1::POOLING_MAX;
  if (name == "mean") return v1::POOLING_MEAN;
  return name == "none" ? v1::POOLING_NONE : v1::POOLING_UNSPECIFIED;
}

}  // namespace

void SelectorFlags::Add(CLI::App& app, const std::string& group) {
  const auto one_of = [](CLI::Option* option, const std::vector<std::string>& names) {
    option->check(OneOf(names))->type_name(absl::StrJoin(names, "|"));
  };
  const auto add = [&](const std::string& flag, auto& value, const std::string& text) {
    return app.add_option(flag, value, text)->group(group);
  };
  one_of(add("--selector", selector,
             "Which positions a layer keeps (docs/selectors.md); a parameter that is not given is "
             "the server's"),
         {"snapkv", "h2o", "recent_attention", "mixed", "streaming_llm", "random"});
  add("--snapkv-window", window,
      "Last positions, always kept by every selector; snapkv: the queries that choose, 1 to 1024");
  add("--snapkv-kernel", kernel, "snapkv, mixed: positions pooled around each, odd, 1 to 63");
  one_of(add("--snapkv-pooling", pooling, "snapkv, mixed: how they are pooled"),
         {"max", "mean", "none"});
  add("--selector-queries", queries,
      "h2o, recent_attention, mixed: queries whose attention counts, 1 to 512");
  app.add_flag("--h2o-normalised", h2o_normalised,
               "h2o: divide by the number of queries that could see a position")
      ->group(group);
  add("--recent-kernel", recent_kernel,
      "recent_attention: positions pooled around each, odd, 1 to 63");
  one_of(add("--recent-pooling", recent_pooling, "recent_attention: how they are pooled"),
         {"max", "mean", "none"});
  add("--mixed-weight", mixed_weight, "mixed: SnapKV's share, 0 to 1");
  add("--random-seed", random_seed, "random: seed of the draw")->check(NotNegative());
}

absl::StatusOr<std::optional<v1::Selector>> SelectorFlags::Make() const {
  const std::string kind = selector.empty() ? "snapkv" : selector;
  bool any = !selector.empty();
  absl::Status status;
  const auto check = [&](const char* flag, bool given,
                         std::initializer_list<std::string_view> kinds) {
    any = any || given;
    if (!given || std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) return;
    status.Update(absl::InvalidArgumentError(
        selector.empty() ? absl::StrCat(flag, " does not go without --selector")
                         : absl::StrCat(flag, " does not go with --selector ", selector)));
  };
  any = any || window.has_value();
  check("--snapkv-kernel", kernel.has_value(), {"snapkv", "mixed"});
  check("--snapkv-pooling", !pooling.empty(), {"snapkv", "mixed"});
  check("--selector-queries", queries.has_value(), {"h2o", "recent_attention", "mixed"});
  check("--h2o-normalised", h2o_normalised, {"h2o"});
  check("--recent-kernel", recent_kernel.has_value(), {"recent_attention"});
  check("--recent-pooling", !recent_pooling.empty(), {"recent_attention"});
  check("--mixed-weight", mixed_weight.has_value(), {"mixed"});
  check("--random-seed", random_seed.has_value(), {"random"});
  if (!status.ok()) return status;
  if (!any) return std::nullopt;

  v1::Selector made;
  const auto set_window = [&](auto* message) {
    if (window) message->set_window(*window);
    return message;
  };
  const auto set_queries = [&](auto* message) {
    if (queries) message->set_queries(*queries);
  };
  const auto fill_snapkv = [&](v1::SnapKvSelector* snapkv) {
    set_window(snapkv);
    if (kernel) snapkv->set_kernel(*kernel);
    snapkv->set_pooling(PoolingNamed(pooling));
  };
  if (kind == "snapkv") {
    fill_snapkv(made.mutable_snapkv());
  } else if (kind == "h2o") {
    set_queries(set_window(made.mutable_h2o()));
    if (h2o_normalised) made.mutable_h2o()->set_normalised(true);
  } else if (kind == "recent_attention") {
    v1::RecentAttentionSelector* recent = set_window(made.mutable_recent_attention());
    set_queries(recent);
    if (recent_kernel) recent->set_kernel(*recent_kernel);
    recent->set_pooling(PoolingNamed(recent_pooling));
  } else if (kind == "mixed") {
    set_queries(made.mutable_mixed());
    fill_snapkv(made.mutable_mixed()->mutable_snapkv());
    if (mixed_weight) made.mutable_mixed()->set_weight(*mixed_weight);
  } else if (kind == "streaming_llm") {
    set_window(made.mutable_streaming_llm());
  } else {
    set_window(made.mutable_random());
    if (random_seed) made.mutable_random()->set_seed(*random_seed);
  }
  return made;
}

}  // namespace ripplekv
