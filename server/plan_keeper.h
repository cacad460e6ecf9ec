#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "calibration/policy/plan.h"
#include "calibration/profile.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"

namespace ripplekv {

// The plan in force. Until a profile of the configured settings is there, it is the configured
// plan, with the uniform allocator where the configured one needs a measurement, and status() says
// why. Thread-safe.
class PlanKeeper {
 public:
  // `configured`: the plan that the options describe, without sensitivities. `key`: the one
  // measurement that may give them. Log and metrics outlive the keeper. INVALID_ARGUMENT: the
  // plan's parameters.
  static absl::StatusOr<std::unique_ptr<PlanKeeper>> Create(PlanSpec configured, ProfileKey key,
                                                            Log* log, Metrics* metrics);

  // Told the plan in force now and every later one.
  void SetListener(std::function<void(std::shared_ptr<const Plan>)> listener);

  // Takes the profile's sensitivities if it was measured under the configured key; false where it
  // was not.
  bool Adopt(const Profile& profile);

  std::shared_ptr<const Plan> plan() const;
  bool has_profile() const;
  // Whether the plan in force was made from this profile.
  bool InForce(const std::string& profile_id) const;

  // Why there is no profile yet; empty as soon as there is one.
  void SetStatus(std::string status);
  std::string status() const;

  const PlanSpec& configured() const { return configured_; }
  const ProfileKey& key() const { return key_; }

 private:
  PlanKeeper(PlanSpec configured, ProfileKey key, Plan plan, Log* log, Metrics* metrics);
  void Announce(const Plan& plan);

  const PlanSpec configured_;
  const ProfileKey key_;
  Log* const log_;
  Metrics* const metrics_;
  std::mutex adopt_mutex_;  // one Adopt at a time
  mutable std::mutex mutex_;
  std::shared_ptr<const Plan> plan_;
  std::string status_;
  std::function<void(std::shared_ptr<const Plan>)> listener_;
};

}  // namespace ripplekv
