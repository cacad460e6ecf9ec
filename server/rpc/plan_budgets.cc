#include "server/rpc/plan_budgets.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/plan_convert.h"
#include "server/rpc/profile_queries.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

// Sensitivities, and with them the number of layers, from where the request says.
absl::Status TakeSensitivities(const CalibrationBackend& backend,
                               const v1::PlanBudgetsRequest& request, PlanSpec& spec) {
  switch (request.sensitivities_case()) {
    case v1::PlanBudgetsRequest::kProfileId: {
      absl::StatusOr<Profile> profile =
          FindProfile(*backend.store, "profile_id", request.profile_id());
      if (!profile.ok()) return profile.status();
      spec.layers = profile->layers;
      spec.sensitivity = profile->sensitivity;
      spec.profile_id = profile->id();
      return absl::OkStatus();
    }
    case v1::PlanBudgetsRequest::kInline: {
      const auto& values = request.inline_().mean_kl();
      if (values.empty() || values.size() > kMaxLayers) {
        return InvalidField("inline.mean_kl", absl::StrCat("has ", values.size(),
                                                           " values: must have 1 to ", kMaxLayers));
      }
      for (int l = 0; l < values.size(); ++l) {
        if (!(values[l] >= 0 && values[l] <= std::numeric_limits<double>::max())) {
          return InvalidField(absl::StrCat("inline.mean_kl[", l, "]"),
                              absl::StrCat("is ", values[l], ": must be finite and at least 0"));
        }
      }
      spec.layers = values.size();
      spec.sensitivity.assign(values.begin(), values.end());
      spec.profile_id.clear();
      return absl::OkStatus();
    }
    case v1::PlanBudgetsRequest::SENSITIVITIES_NOT_SET:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PlanBudgets(const CalibrationBackend& backend, const v1::PlanBudgetsRequest& request,
                         v1::PlanBudgetsResponse* response) {
  if (request.prompt_tokens() < 1) {
    return InvalidField("prompt_tokens", absl::StrCat("is ", request.prompt_tokens(),
                                                      ": must be 1 to ", kMaxPromptTokens));
  }
  PlanSpec spec = backend.plans->plan()->spec();
  // Sensitivities of its own have the allocator that the options name, not the stand-in of a server
  // without a profile.
  if (request.sensitivities_case() != v1::PlanBudgetsRequest::SENSITIVITIES_NOT_SET) {
    spec.allocator = backend.plans->configured().allocator;
  }
  if (absl::Status status = TakeSensitivities(backend, request, spec); !status.ok()) return status;
  auto allocator = AllocatorFromProto(request.allocator(), backend.defaults, "allocator.");
  if (!allocator.ok()) return allocator.status();
  if (allocator->has_value()) spec.allocator = **allocator;
  auto size = SizeFromProto(request.size(), "size.");
  if (!size.ok()) return size.status();
  if (size->has_value()) spec.size = **size;
  if (request.has_min_positions()) spec.min_positions = request.min_positions();

  absl::StatusOr<Plan> plan = Plan::Make(std::move(spec));
  if (!plan.ok()) return plan.status();
  absl::StatusOr<LayerBudgets> budgets = plan->BudgetsFor(request.prompt_tokens());
  if (!budgets.ok()) return budgets.status();

  *response->mutable_plan() = PlanToProto(*plan);
  for (int l = 0; l < plan->layers(); ++l) {
    v1::LayerBudget* layer = response->add_layers();
    layer->set_layer(l);
    layer->set_multiplier(plan->multipliers()[static_cast<size_t>(l)]);
    layer->set_positions(static_cast<int32_t>(budgets->layer[static_cast<size_t>(l)]));
  }
  response->set_total_positions(budgets->total);
  response->set_requested_positions(budgets->requested);
  response->set_raised(budgets->raised);
  response->set_clamped(budgets->clamped);
  response->set_full(budgets->full);
  if (plan->layers() == backend.model->config.layers) {
    const int64_t position_bytes = backend.model->kv_bytes_per_position_layer();
    response->set_kv_bytes(budgets->total * position_bytes);
    response->set_full_kv_bytes(int64_t{request.prompt_tokens()} * plan->layers() * position_bytes);
  }
  return absl::OkStatus();
}

}  // namespace ripplekv
