#include "server/rpc/plan_budgets.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/measured_plan.h"
#include "server/engine/capacity.h"
#include "server/rpc/allocator_convert.h"
#include "server/rpc/kv_type_convert.h"
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
      TakeMeasurements(*profile, spec);
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
      spec.local_response.clear();
      spec.damage = {};
      spec.size_curve = {};
      return absl::OkStatus();
    }
    case v1::PlanBudgetsRequest::SENSITIVITIES_NOT_SET:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status AddCapacity(const CalibrationBackend& backend, const Plan& plan,
                         const v1::PlanBudgetsRequest& request, v1::Capacity* proto) {
  const ModelConfig& config = backend.model->config;
  if (plan.layers() != config.layers) {
    return InvalidField(
        "memory_bytes",
        absl::StrCat("is given, and the plan is of ", plan.layers(),
                     " layers: the loaded model, whose requests are counted, has ", config.layers));
  }
  if (request.memory_bytes() < 1) {
    return InvalidField("memory_bytes",
                        absl::StrCat("is ", request.memory_bytes(), ": must be at least 1"));
  }
  CapacityQuestion question;
  question.kv_memory_bytes = static_cast<size_t>(request.memory_bytes());
  question.work_memory_bytes = backend.engine_options.work_memory_bytes;
  question.max_batch = backend.engine_options.max_batch;
  question.growth_cap = backend.engine_options.growth_cap;
  question.plans_choose_types = backend.engine_options.plans_choose_types;
  question.threads = backend.threads;
  question.prompt_tokens = request.prompt_tokens();
  if (request.has_output_tokens()) question.max_tokens = request.output_tokens();
  const absl::StatusOr<Capacity> capacity =
      CapacityFor(config, KvTypeOf(backend.model->compute), plan, question);
  if (!capacity.ok()) return capacity.status();
  proto->set_requests(capacity->requests);
  proto->set_by_kv_memory(capacity->by_kv_memory);
  proto->set_by_work_memory(capacity->by_work_memory);
  proto->set_max_batch(question.max_batch);
  proto->set_output_tokens(static_cast<int32_t>(capacity->max_tokens));
  proto->set_request_pages(capacity->request_pages);
  proto->set_pages(capacity->pages);
  proto->set_page_bytes(static_cast<int64_t>(capacity->page_bytes));
  proto->set_prefill_layer_bytes(static_cast<int64_t>(capacity->prefill_layer_bytes));
  proto->set_request_work_bytes(static_cast<int64_t>(capacity->request_work_bytes));
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
  auto allocator =
      AllocatorFromProto(request.allocator(), backend.defaults.allocators, "allocator.");
  if (!allocator.ok()) return allocator.status();
  if (allocator->has_value()) {
    spec.allocator = **allocator;
    absl::Status status = CheckOneALayer(spec.allocator, spec.layers, "allocator.");
    if (!status.ok()) return status;
  }
  auto size = SizeFromProto(request.size(), "size.");
  if (!size.ok()) return size.status();
  if (size->has_value()) spec.size = **size;
  if (request.has_min_positions()) spec.min_positions = request.min_positions();

  if (absl::Status status = CheckGivenOnce(spec.allocator, size->has_value(), "size"); !status.ok())
    return status;
  // What rows of another model take is not known.
  const bool own = spec.layers == backend.model->config.layers;
  if (!own) {
    spec.kv_shape = {};
    spec.choose_types = false;
  }

  absl::StatusOr<Plan> plan = Plan::Make(std::move(spec));
  if (!plan.ok()) return plan.status();
  if (request.has_memory_bytes()) {
    absl::Status status = AddCapacity(backend, *plan, request, response->mutable_capacity());
    if (!status.ok()) return status;
  } else if (request.has_output_tokens()) {
    return InvalidField("output_tokens", "is given without memory_bytes: must go with it");
  }
  absl::StatusOr<LayerBudgets> budgets = plan->BudgetsFor(request.prompt_tokens());
  if (!budgets.ok()) return budgets.status();

  *response->mutable_plan() = PlanToProto(*plan);
  const KvShape& shape = plan->spec().kv_shape;
  for (size_t l = 0; l < budgets->layer.size(); ++l) {
    const int64_t positions = budgets->layer[l];
    v1::LayerBudget* layer = response->add_layers();
    layer->set_layer(static_cast<int32_t>(l));
    layer->set_multiplier(plan->multipliers().empty()
                              ? static_cast<double>(positions * plan->layers()) /
                                    static_cast<double>(budgets->total)
                              : plan->multipliers()[l]);
    layer->set_positions(static_cast<int32_t>(positions));
    layer->set_key_type(KvTypeToProto(budgets->types[l].k));
    layer->set_value_type(KvTypeToProto(budgets->types[l].v));
    layer->set_kv_bytes(positions * shape.RowBytes(budgets->types[l]));
  }
  response->set_total_positions(budgets->total);
  response->set_requested_positions(budgets->requested);
  response->set_raised(budgets->raised);
  response->set_clamped(budgets->clamped);
  response->set_full(budgets->full);
  response->set_kv_bytes(budgets->bytes);
  response->set_full_kv_bytes(int64_t{request.prompt_tokens()} * plan->layers() *
                              shape.RowBytes(plan->spec().kv_types));
  response->set_byte_budget(budgets->byte_budget);
  return absl::OkStatus();
}

}  // namespace ripplekv
