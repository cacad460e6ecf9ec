#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/engine/engine_memory.h"
#include "server/engine/engine_shared.h"
#include "server/engine/scheduler.h"
#include "server/engine/task.h"

namespace ripplekv {

/// The engine's thread: admits, plans, runs and ends. Owns everything that is used without a lock:
/// decoder, memory, tasks.
class EngineLoop {
 public:
  /// Tokenizer, observer (may be null) and shared outlive the loop.
  EngineLoop(const EngineOptions& options, std::unique_ptr<Decoder> decoder,
             const Tokenizer* tokenizer, EngineObserver* observer, const KvPageLayout& layout,
             std::unique_ptr<PageArena> arena, EngineShared* shared);

  /// Until the queue is stopped; then everything that is left has ended.
  void Run();

  Decoder* decoder() { return decoder_.get(); }

 private:
  void ApplyPlan();
  void EndDead();
  void Admit();
  std::set<const ContextRows*> ContextsInUse() const;  // by tasks
  void Start(std::unique_ptr<QueuedRequest> request, TaskHoldings holdings);
  SchedulerView View() const;
  void Wait();
  StepRecord Execute(const StepPlan& plan);
  /// Slices of tasks, without decode steps, until they have taken so long.
  void RunMoreSlices(double seconds);
  void Decode(const std::vector<int64_t>& ids);
  absl::Status RunDecode(const std::vector<Task*>& tasks);
  void RunSlice(int64_t id, StepRecord& record);
  void RunBackground();
  void End(int64_t id, const absl::Status& status);
  void EndQueued(std::unique_ptr<QueuedRequest> request, const absl::Status& status);
  template <typename F>
  void Tell(RequestSink& sink, F&& say);
  void NoteEnd(const absl::Status& status, int64_t prompt_tokens, int64_t completion_tokens);
  void CheckInvariants();
  void StopEverything();
  void Publish();

  const EngineOptions options_;
  const std::unique_ptr<Decoder> decoder_;
  EngineObserver* const observer_;
  EngineMemory memory_;
  DecodeStep decode_;
  std::vector<int32_t> end_of_text_;
  TaskResources resources_;
  EngineShared* const shared_;

  std::map<int64_t, std::unique_ptr<Task>> tasks_;  // by id: in the order of admission
  std::deque<std::shared_ptr<BackgroundJob>> jobs_;
  int64_t next_id_ = 0;
  Scheduler scheduler_;
  std::shared_ptr<const Plan> quota_plan_;  // what the pools' quotas come from
  std::vector<float> logits_;               // [decoding, vocab]
};

}  // namespace ripplekv
