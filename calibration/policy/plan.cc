#include "calibration/policy/plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "calibration/policy/damage_plan.h"
#include "calibration/policy/pyramid.h"

namespace ripplekv {
namespace {

constexpr int kMaxSinks = 1024;

absl::Status CheckOneALayer(const char* name, size_t values, int layers) {
  if (values == size_t(layers)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " has ", values, " values: must have one for each of the ", layers, " layers"));
}

// What there is no measurement of, with the way out.
absl::Status CheckMeasured(const PlanSpec& spec) {
  const auto missing = [&](absl::string_view what, absl::string_view way_out) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ", AllocatorName(spec.allocator), " allocator needs ", what,
                     " and there is none: ", way_out, ", or use the uniform allocator"));
  };
  switch (NeededMeasurement(spec.allocator)) {
    case Measurement::kNone:
      return absl::OkStatus();
    case Measurement::kSensitivity:
      if (!spec.sensitivity.empty()) return absl::OkStatus();
      return missing("a sensitivity profile", "calibrate the model");
    case Measurement::kLocalResponse:
      if (!spec.local_response.empty()) return absl::OkStatus();
      return missing("a profile's local response", "calibrate the model");
    case Measurement::kDamage:
      break;
  }
  if (spec.damage.rows.empty() || spec.damage.retentions.empty()) {
    return missing("a profile's measured damage of keeping fewer rows",
                   "calibrate the model with --calibration-damage (damage_examples)");
  }
  const bool chooses =
      spec.choose_types && std::holds_alternative<DamageCurvesAllocator>(spec.allocator);
  if (chooses && (spec.damage.storage.empty() || !spec.kv_shape.known())) {
    return absl::FailedPreconditionError(
        "choosing the type of rows (--kv-type auto) needs a profile's measured damage of storing "
        "them in fewer bits and there is none: calibrate the model with --calibration-damage "
        "(damage_storage), or name a type");
  }
  const auto loses = [](KvType type) { return type == KvType::kInt8 || type == KvType::kInt4; };
  const std::vector<KvTypes>& measured = spec.damage.types;
  if (chooses && (loses(spec.kv_types.k) || loses(spec.kv_types.v)) &&
      std::find(measured.begin(), measured.end(), spec.kv_types) == measured.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("choosing the type of rows needs the measured damage of storing keys in ",
                     KvTypeName(spec.kv_types.k), " and values in ", KvTypeName(spec.kv_types.v),
                     ", the plan's own types, and the profile has none: name a type that it has"));
  }
  return absl::OkStatus();
}

// The types worth choosing from: first the dearest, then the measured ones that take less. Rows in
// a type that was not measured are taken to lose nothing (CheckMeasured).
std::vector<StorageOption> OptionsOf(const DamageTable& damage, const KvShape& shape,
                                     KvTypes dearest) {
  std::vector<StorageOption> options = {{dearest, shape.RowBytes(dearest), {}}};
  for (size_t t = 0; t < damage.types.size(); ++t) {
    const int64_t bytes = shape.RowBytes(damage.types[t]);
    const bool itself = damage.types[t] == dearest;
    if (!itself && bytes >= options.front().row_cost) continue;
    StorageOption& option =
        itself ? options.front() : options.emplace_back(StorageOption{damage.types[t], bytes, {}});
    for (const std::vector<double>& layer : damage.storage) option.damage.push_back(layer[t]);
  }
  return options;
}

// b_l as the allocator lists them.
LayerBudgets GivenPositions(const PositionsAllocator& list, const BudgetRequest& request) {
  const int64_t tokens = request.prompt_tokens;
  LayerBudgets budgets;
  for (int64_t positions : list.positions) {
    budgets.requested += positions;
    budgets.layer.push_back(tokens <= request.min_positions
                                ? tokens
                                : std::clamp(positions, std::min(request.floor, tokens), tokens));
    budgets.total += budgets.layer.back();
  }
  budgets.raised = tokens <= request.min_positions && budgets.total != budgets.requested;
  budgets.clamped = !budgets.raised && budgets.layer != list.positions;
  budgets.full = budgets.total == static_cast<int64_t>(budgets.layer.size()) * tokens;
  return budgets;
}

// The floor of the damage_curves allocator, where layers keep `mean` rows on average.
int64_t DamageFloor(const Allocator& allocator, int64_t floor, int64_t mean) {
  const double share = std::get<DamageCurvesAllocator>(allocator).least_share;
  return std::max(floor, static_cast<int64_t>(share * static_cast<double>(mean)));
}

// "(ripple, not uniform)"; of two of one name, that their parameters differ.
std::string Unlike(const std::string& measured, const std::string& wanted) {
  return measured == wanted ? absl::StrCat("(", measured, " with other parameters)")
                            : absl::StrCat("(", measured, ", not ", wanted, ")");
}

std::string TypesName(const std::optional<KvTypes>& types) {
  if (!types.has_value()) return "chosen by the plan";
  return absl::StrCat(KvTypeName(types->k), " keys and ", KvTypeName(types->v), " values");
}

// What of the plan the curve was not measured with: "selector (h2o, not snapkv)"; else empty.
std::string OtherThanMeasured(const SizeCurve& curve, const PlanSpec& spec,
                              const std::optional<KvTypes>& types) {
  if (curve.allocator != spec.allocator) {
    return absl::StrCat("allocator ",
                        Unlike(AllocatorName(curve.allocator), AllocatorName(spec.allocator)));
  }
  if (curve.selector != spec.selector) {
    return absl::StrCat("selector ",
                        Unlike(SelectorName(curve.selector), SelectorName(spec.selector)));
  }
  if (curve.sinks != spec.sinks) {
    return absl::StrCat("number of sinks (", curve.sinks, ", not ", spec.sinks, ")");
  }
  if (curve.kv_types != types) {
    return absl::StrCat("type of rows (", TypesName(curve.kv_types), ", not ", TypesName(types),
                        ")");
  }
  return "";
}

// At most the largest int64.
int64_t Product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

}  // namespace

absl::Status ValidatePlan(const PlanSpec& spec) {
  if (spec.layers < 1 || spec.layers > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers is ", spec.layers, ": must be between 1 and ", kMaxLayers));
  }
  if (absl::Status status = ValidateSize(spec.size); !status.ok()) return status;
  if (absl::Status status = ValidateSelector(spec.selector); !status.ok()) return status;
  if (absl::Status status = ValidateAllocator(spec.allocator); !status.ok()) return status;
  if (spec.min_positions < 0 || spec.min_positions > kMaxPromptTokens) {
    return absl::InvalidArgumentError(absl::StrCat("min_positions is ", spec.min_positions,
                                                   ": must be between 0 and ", kMaxPromptTokens));
  }
  if (spec.sinks < 0 || spec.sinks > kMaxSinks) {
    return absl::InvalidArgumentError(
        absl::StrCat("sinks is ", spec.sinks, ": must be between 0 and ", kMaxSinks));
  }
  if (const auto* list = std::get_if<MultipliersAllocator>(&spec.allocator)) {
    return CheckOneALayer("multipliers", list->multipliers.size(), spec.layers);
  }
  if (const auto* list = std::get_if<PositionsAllocator>(&spec.allocator)) {
    return CheckOneALayer("positions", list->positions.size(), spec.layers);
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> Plan::Make(PlanSpec spec) {
  absl::Status status = ValidatePlan(spec);
  if (!spec.sensitivity.empty()) {
    status.Update(CheckOneALayer("sensitivity", spec.sensitivity.size(), spec.layers));
  }
  if (!spec.local_response.empty()) {
    status.Update(CheckOneALayer("local_response", spec.local_response.size(), spec.layers));
  }
  status.Update(ValidateDamageTable(spec.damage, spec.layers));
  status.Update(ValidateSizeCurve(spec.size_curve));
  status.Update(CheckMeasured(spec));
  if (!status.ok()) return status;

  Plan plan(std::move(spec));
  const PlanSpec& made = plan.spec_;
  if (std::holds_alternative<DamageCurvesAllocator>(made.allocator)) {
    for (const std::vector<double>& damage : made.damage.rows) {
      plan.curves_.emplace_back(made.damage.retentions, damage);
    }
  }
  if (!HasMultipliers(made.allocator)) return plan;
  std::vector<double> signal = made.sensitivity;
  if (std::holds_alternative<LocalResponseAllocator>(made.allocator)) signal = made.local_response;
  if (const auto* isolated = std::get_if<IsolatedDamageAllocator>(&made.allocator)) {
    absl::StatusOr<std::vector<double>> damage = DamageAt(made.damage, isolated->retention);
    if (!damage.ok()) return damage.status();
    signal = *std::move(damage);
  }
  absl::StatusOr<std::vector<double>> multipliers =
      Multipliers(made.allocator, signal, made.layers);
  if (!multipliers.ok()) return multipliers.status();
  plan.multipliers_ = *std::move(multipliers);
  return plan;
}

bool Plan::chooses_types() const {
  return spec_.choose_types && std::holds_alternative<DamageCurvesAllocator>(spec_.allocator);
}

absl::StatusOr<LayerBudgets> Plan::BudgetsFor(int64_t prompt_tokens,
                                              const std::optional<Size>& size_override) const {
  BudgetRequest request{.prompt_tokens = prompt_tokens,
                        .size = size_override.value_or(spec_.size),
                        .row_bytes = spec_.kv_shape.RowBytes(spec_.kv_types),
                        .min_positions = spec_.min_positions,
                        .floor = floor()};
  if (const auto* target = std::get_if<TargetMeanKl>(&request.size)) {
    absl::StatusOr<Size> size = SizeFor(*target, prompt_tokens);
    if (!size.ok()) return size.status();
    request.size = *std::move(size);
  }
  if (chooses_types()) return ShareBytes(request);
  absl::StatusOr<LayerBudgets> budgets = ShareRows(request);
  if (!budgets.ok()) return budgets.status();
  budgets->types.assign(budgets->layer.size(), spec_.kv_types);
  budgets->bytes = budgets->total * request.row_bytes;
  return budgets;
}

// The positions in (retention * layers * tokens), rounded up, that meet the target.
absl::StatusOr<Size> Plan::SizeFor(const TargetMeanKl& target, int64_t prompt_tokens) const {
  if (absl::Status status = ValidateSize(target); !status.ok()) return status;
  const SizeCurve& curve = spec_.size_curve;
  if (curve.empty()) {
    return absl::FailedPreconditionError(
        "target_mean_kl needs the whole model's mean KL measured by size and there is none: "
        "calibrate the model with --calibration-sizes (size_examples), or give retention, "
        "total_positions or total_bytes instead");
  }
  const std::string other = OtherThanMeasured(
      curve, spec_, chooses_types() ? std::nullopt : std::optional(spec_.kv_types));
  if (!other.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "target_mean_kl needs the mean KL by size of this plan, and the profile's was measured "
        "with another ",
        other, ": use that, or give retention, total_positions or total_bytes"));
  }
  if (prompt_tokens < 1) return Full{};  // refused by what follows
  const double positions = RetentionForMeanKl(curve, target.nats, prompt_tokens) * layers() *
                           static_cast<double>(prompt_tokens);
  return TotalPositions{std::max<int64_t>(1, static_cast<int64_t>(std::ceil(positions - 1e-6)))};
}

absl::StatusOr<LayerBudgets> Plan::ShareRows(const BudgetRequest& request) const {
  if (!multipliers_.empty()) return ShareBudget(request, multipliers_);
  absl::StatusOr<LayerBudgets> budgets = TotalBudget(request, layers());
  if (!budgets.ok()) return budgets.status();
  const int64_t tokens = request.prompt_tokens;
  const int64_t floor = std::min(request.floor, tokens);
  if (const auto* pyramid = std::get_if<PyramidAllocator>(&spec_.allocator)) {
    budgets->layer =
        ShareInProportion(budgets->total, floor, tokens,
                          PyramidShares(budgets->total, layers(), tokens,
                                        SelectorWindow(spec_.selector), pyramid->beta));
  } else if (const auto* list = std::get_if<PositionsAllocator>(&spec_.allocator)) {
    return GivenPositions(*list, request);
  } else {
    const StorageOption rows{spec_.kv_types, 1, {}};
    const int64_t least = DamageFloor(spec_.allocator, floor, budgets->total / layers());
    budgets->layer = SpendOnDamage(curves_, tokens, least, {rows}, budgets->total).rows;
  }
  return budgets;
}

absl::StatusOr<LayerBudgets> Plan::ShareBytes(const BudgetRequest& request) const {
  // TotalBytes as positions too, only to say what was asked for.
  absl::StatusOr<LayerBudgets> budgets = TotalBudget(request, layers());
  if (!budgets.ok()) return budgets.status();
  const int64_t tokens = request.prompt_tokens;
  const int64_t floor = std::min(request.floor, tokens);
  const std::vector<StorageOption> options =
      OptionsOf(spec_.damage, spec_.kv_shape, spec_.kv_types);
  const auto* exact = std::get_if<TotalBytes>(&request.size);
  const int64_t requested =
      exact != nullptr ? exact->bytes : Product(budgets->requested, request.row_bytes);
  const int64_t raised =
      std::max(requested, layers() * std::min(request.min_positions, tokens) * request.row_bytes);
  budgets->raised = raised != requested;
  budgets->byte_budget =
      std::clamp(raised, LeastCost(layers(), floor, options), MostCost(layers(), tokens, options));
  budgets->clamped = budgets->byte_budget != raised;
  const int64_t least =
      DamageFloor(spec_.allocator, floor, budgets->byte_budget / request.row_bytes / layers());
  // What keeps every row keeps it in the plan's own types, whatever the measurements say of others.
  const int64_t most = MostCost(layers(), tokens, options);
  DamagePlan plan = budgets->byte_budget == most
                        ? DamagePlan{.rows = std::vector<int64_t>(curves_.size(), tokens),
                                     .option = std::vector<size_t>(curves_.size(), 0),
                                     .cost = most}
                        : SpendOnDamage(curves_, tokens, least, options, budgets->byte_budget);
  budgets->total = 0;
  budgets->full = true;
  for (size_t l = 0; l < plan.rows.size(); ++l) {
    budgets->total += plan.rows[l];
    budgets->full = budgets->full && plan.rows[l] == tokens;
    budgets->types.push_back(options[plan.option[l]].types);
  }
  budgets->layer = std::move(plan.rows);
  budgets->bytes = plan.cost;
  return budgets;
}

absl::StatusOr<Plan> Plan::With(const std::optional<Allocator>& allocator,
                                const std::optional<SelectorSpec>& selector,
                                const std::optional<KvTypes>& kv_types) const {
  PlanSpec spec = spec_;
  if (allocator.has_value()) spec.allocator = *allocator;
  if (selector.has_value()) spec.selector = *selector;
  if (kv_types.has_value()) {
    spec.kv_types = *kv_types;
    spec.choose_types = false;
  }
  return Make(std::move(spec));
}

}  // namespace ripplekv
