#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "calibration/policy/plan.h"
#include "server/engine/admission.h"
#include "server/engine/context_registry.h"
#include "server/engine/request.h"
#include "server/engine/request_handle.h"

namespace ripplekv {

/// The three kinds of requests, each with who hears of it.
struct GenerateWork {
  GenerateRequest request;
  std::shared_ptr<GenerationSink> sink;
};
struct ScoreWork {
  ScoreRequest request;
  std::shared_ptr<ScoreSink> sink;
};
struct ContextWork {
  ContextRequest request;
  std::shared_ptr<ContextSink> sink;
};

/// An accepted request on its way through the engine.
struct QueuedRequest {
  std::variant<GenerateWork, ScoreWork, ContextWork> work;
  std::shared_ptr<const RequestHandle> handle;
  std::shared_ptr<const Plan>
      plan;  // in force when it was submitted, with the request's own parameters
  Admission admission;
  size_t work_bytes = 0;         // of --work-memory, at most
  size_t decode_work_bytes = 0;  // what is left of it once the prompt is through
  int32_t max_tokens = 0;        // of the output
  bool measure_kl = false;       // asked for or sampled
  bool reference = false;        // all of the prompt's rows are kept besides
  Clock::time_point submitted;
  std::optional<Clock::time_point> start_by;  // waits until then at most

  RequestSink& sink() const {
    return std::visit([](const auto& w) -> RequestSink& { return *w.sink; }, work);
  }
  std::shared_ptr<RequestSink> shared_sink() const {
    return std::visit([](const auto& w) -> std::shared_ptr<RequestSink> { return w.sink; }, work);
  }
  const std::vector<int32_t>& prompt() const {
    return std::visit([](const auto& w) -> const std::vector<int32_t>& { return w.request.prompt; },
                      work);
  }
  int64_t prompt_tokens() const { return static_cast<int64_t>(prompt().size()); }
  const ContextLease* context() const {
    if (const auto* w = std::get_if<GenerateWork>(&work)) return w->request.context.get();
    if (const auto* w = std::get_if<ScoreWork>(&work)) return w->request.context.get();
    return nullptr;
  }
  std::optional<Clock::time_point> deadline() const {
    return std::visit([](const auto& w) { return w.request.deadline; }, work);
  }

  /// OK, or CANCELLED or DEADLINE_EXCEEDED.
  absl::Status Alive(Clock::time_point now) const {
    if (handle->cancelled()) return absl::CancelledError("the request was cancelled");
    const auto until = deadline();
    if (until.has_value() && now >= *until) {
      return absl::DeadlineExceededError("the request's deadline has passed");
    }
    return absl::OkStatus();
  }

  /// Alive, or RESOURCE_EXHAUSTED with the payload kRetryLater where it has waited too long.
  absl::Status MayWait(Clock::time_point now) const {
    if (absl::Status status = Alive(now); !status.ok()) return status;
    if (!start_by.has_value() || now < *start_by) return absl::OkStatus();
    absl::Status late = absl::ResourceExhaustedError(
        absl::StrCat("the request waited ",
                     std::chrono::duration_cast<std::chrono::milliseconds>(now - submitted).count(),
                     " ms for room (--queue-timeout): retry later"));
    late.SetPayload(kRetryLater, absl::Cord());
    return late;
  }
};

}  // namespace ripplekv
