#include "server/plan_keeper.h"

#include <utility>

#include "calibration/measured_plan.h"

namespace ripplekv {

absl::StatusOr<std::unique_ptr<PlanKeeper>> PlanKeeper::Create(PlanSpec configured, ProfileKey key,
                                                               Log* log, Metrics* metrics) {
  // Checked now rather than when the profile arrives.
  if (absl::Status status = ValidatePlan(configured); !status.ok()) return status;
  PlanSpec first = configured;
  if (NeededMeasurement(first.allocator) != Measurement::kNone) {
    first.allocator = UniformAllocator{};
  }
  absl::StatusOr<Plan> plan = Plan::Make(first);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<PlanKeeper>(
      new PlanKeeper(std::move(configured), std::move(key), *std::move(plan), log, metrics));
}

PlanKeeper::PlanKeeper(PlanSpec configured, ProfileKey key, Plan plan, Log* log, Metrics* metrics)
    : configured_(std::move(configured)),
      key_(std::move(key)),
      log_(log),
      metrics_(metrics),
      plan_(std::make_shared<const Plan>(std::move(plan))),
      status_("no profile yet") {
  Announce(*plan_);
}

void PlanKeeper::Announce(const Plan& plan) {
  const char* source = plan.from_profile()                                          ? "profile"
                       : std::holds_alternative<UniformAllocator>(plan.allocator()) ? "uniform"
                                                                                    : "fixed";
  metrics_->SetPlanSource(source);
  log_->Info("plan_in_force", {{"source", source}, {"profile_id", plan.profile_id()}});
}

void PlanKeeper::SetListener(std::function<void(std::shared_ptr<const Plan>)> listener) {
  const std::lock_guard adopting(adopt_mutex_);
  listener(plan());
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

bool PlanKeeper::Adopt(const Profile& profile) {
  if (profile.key != key_) return false;
  const std::lock_guard adopting(adopt_mutex_);
  PlanSpec spec = configured_;
  TakeMeasurements(profile, spec);
  absl::StatusOr<Plan> made = Plan::Make(std::move(spec));
  if (!made.ok()) {
    log_->Error("plan_refused", {{"profile_id", profile.id()}, {"error", made.status().message()}});
    return false;
  }
  auto plan = std::make_shared<const Plan>(*std::move(made));
  std::function<void(std::shared_ptr<const Plan>)> listener;
  {
    const std::lock_guard lock(mutex_);
    plan_ = plan;
    status_.clear();
    listener = listener_;
  }
  Announce(*plan);
  if (listener) listener(std::move(plan));
  return true;
}

std::shared_ptr<const Plan> PlanKeeper::plan() const {
  const std::lock_guard lock(mutex_);
  return plan_;
}

bool PlanKeeper::has_profile() const { return !plan()->profile_id().empty(); }

bool PlanKeeper::InForce(const std::string& profile_id) const {
  return !profile_id.empty() && plan()->profile_id() == profile_id;
}

void PlanKeeper::SetStatus(std::string status) {
  const std::lock_guard lock(mutex_);
  if (plan_->profile_id().empty()) status_ = std::move(status);
}

std::string PlanKeeper::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

}  // namespace ripplekv
