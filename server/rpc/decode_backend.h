#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/loaded_model.h"
#include "server/plan_keeper.h"
#include "server/rpc/plan_convert.h"
#include "server/rpc/slot.h"

namespace ripplekv {

// What DecodeService works with once the model is loaded. Engine and plans outlive every call.
struct DecodeBackend {
  std::shared_ptr<const ModelInfo> model;
  Engine* engine = nullptr;
  PlanKeeper* plans = nullptr;
  PlanDefaults defaults;
  EngineOptions engine_options;   // for GetModel's limits
  bool wait_for_profile = false;  // refuse to generate until the plan has a profile
  int64_t max_message_bytes = 0;
};

// The backend, for a call that computes. UNAVAILABLE: there is none, or it waits for a profile.
absl::StatusOr<std::shared_ptr<const DecodeBackend>> ServingBackend(
    const Slot<DecodeBackend>& slot);

}  // namespace ripplekv
