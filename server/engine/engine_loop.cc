#include "server/engine/engine_loop.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/generate_task.h"
#include "server/engine/score_task.h"

namespace ripplekv {
namespace {

// With nothing at work, a waiting request is only held up by contexts in use: looked at this often.
constexpr std::chrono::milliseconds kRetryAdmission{20};

// Runs a step of somebody's work; what it throws is its error.
template <typename F>
absl::Status Guarded(F&& step) {
  try {
    return step();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("a step of the request failed: ", e.what()));
  }
}

double SecondsSince(Clock::time_point start) { return Seconds(Clock::now() - start); }

}  // namespace

EngineLoop::EngineLoop(const EngineOptions& options, std::unique_ptr<Decoder> decoder,
                       const Tokenizer* tokenizer, EngineObserver* observer,
                       const KvPageLayout& layout, std::unique_ptr<PageArena> arena,
                       EngineShared* shared)
    : options_(options),
      decoder_(std::move(decoder)),
      observer_(observer),
      memory_(decoder_->config(), std::move(arena), options.work_memory_bytes, &shared->contexts()),
      decode_(decoder_.get(), options.before_decode_layer),
      shared_(shared) {
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    if (tokenizer->IsEndOfGeneration(id)) end_of_text_.push_back(id);
  }
  resources_ = {.decoder = decoder_.get(),
                .tokenizer = tokenizer,
                .end_of_text = end_of_text_,
                .arena = memory_.arena(),
                .layout = layout,
                .decode = &decode_,
                .observer = observer_};
  Publish();
}

void EngineLoop::Run() {
  while (!shared_->queue().stopped()) {
    ApplyPlan();
    for (auto& job : shared_->queue().TakeJobs()) jobs_.push_back(std::move(job));
    // Who is to finish soon has the machine to itself.
    if (shared_->queue().closed()) jobs_.clear();
    EndDead();
    memory_.FreeRemovedContexts();
    Admit();
    const StepPlan plan = scheduler_.Next(View());
    if (plan.empty()) {
      Publish();
      Wait();
      continue;
    }
    const StepRecord record = Execute(plan);
    if (record.decode_rows > 0 && plan.slice == StepPlan::Slice::kTask) {
      RunMoreSlices(record.decode_seconds - record.slice_seconds);
    }
    Publish();
  }
  StopEverything();
}

void EngineLoop::ApplyPlan() {
  std::shared_ptr<const Plan> plan = shared_->plan();
  if (plan == quota_plan_) return;
  memory_.SetQuotas(*plan);
  quota_plan_ = std::move(plan);
}

void EngineLoop::EndDead() {
  const Clock::time_point now = Clock::now();
  for (auto& request : shared_->queue().TakeDead(now)) {
    const absl::Status status = request->MayWait(now);
    if (observer_ != nullptr && absl::IsResourceExhausted(status)) {
      observer_->OnRefused(RefusalReason::kQueueTimeout, status);
    }
    EndQueued(std::move(request), status);
  }
  std::vector<std::pair<int64_t, absl::Status>> dead;
  for (const auto& [id, task] : tasks_) {
    absl::Status status = task->request().Alive(now);
    if (!status.ok()) dead.emplace_back(id, std::move(status));
  }
  for (const auto& [id, status] : dead) End(id, status);
}

void EngineLoop::Admit() {
  size_t place = 0;
  while (tasks_.size() < static_cast<size_t>(options_.max_batch)) {
    const std::vector<const QueuedRequest*> waiting = shared_->queue().Waiting();
    if (place >= waiting.size()) return;
    absl::StatusOr<TaskHoldings> holdings = absl::InternalError("");
    const absl::Status tried = Guarded([&] {
      holdings = memory_.Hold(*waiting[place], ContextsInUse());
      return absl::OkStatus();
    });
    if (!tried.ok()) holdings = tried;
    if (holdings.ok()) {
      Start(shared_->queue().Take(place), *std::move(holdings));
    } else if (!absl::IsUnavailable(holdings.status())) {
      if (observer_ != nullptr && absl::IsResourceExhausted(holdings.status())) {
        observer_->OnRefused(RefusalReason::kContextMemory, holdings.status());
      }
      EndQueued(shared_->queue().Take(place), holdings.status());
    } else if (tasks_.empty()) {
      // Nothing at work will make room: contexts do that are in use by requests further back.
      ++place;
    } else {
      return;  // first come, first served
    }
  }
}

std::set<const ContextRows*> EngineLoop::ContextsInUse() const {
  std::set<const ContextRows*> used;
  for (const auto& [id, task] : tasks_) {
    if (task->context() != nullptr) used.insert(task->context());
  }
  return used;
}

void EngineLoop::Start(std::unique_ptr<QueuedRequest> request, TaskHoldings holdings) {
  const int64_t prompt_tokens = request->prompt_tokens();
  const std::shared_ptr<RequestSink> sink = request->shared_sink();
  const int64_t id = next_id_++;
  std::unique_ptr<Task> task;
  const absl::Status status = Guarded([&] {
    sink->OnStart();
    if (observer_ != nullptr) {
      observer_->OnAdmitted();
      observer_->OnQueueTime(Seconds(Clock::now() - request->submitted));
    }
    if (std::holds_alternative<GenerateWork>(request->work)) {
      task =
          std::make_unique<GenerateTask>(id, resources_, std::move(request), std::move(holdings));
    } else if (std::holds_alternative<ScoreWork>(request->work)) {
      task = std::make_unique<ScoreTask>(id, resources_, std::move(request), std::move(holdings));
    } else {
      task = std::make_unique<ContextTask>(id, resources_, std::move(request), std::move(holdings),
                                           &shared_->contexts(), memory_.contexts());
    }
    tasks_.emplace(id, std::move(task));
    return absl::OkStatus();
  });
  if (status.ok()) return;
  task.reset();
  {
    const TaskHoldings given_back = std::move(holdings);
  }
  NoteEnd(status, prompt_tokens, 0);
  Tell(*sink, [&] { sink->OnError(status); });
}

// The end of a request: a sink that fails must not take the engine with it.
template <typename F>
void EngineLoop::Tell(RequestSink& sink, F&& say) {
  const absl::Status told = Guarded([&] {
    say();
    return absl::OkStatus();
  });
  if (!told.ok()) {
    Guarded([&] {
      sink.OnError(told);
      return absl::OkStatus();
    }).IgnoreError();  // there is nobody left to tell
  }
  shared_->RequestEnded();
}

SchedulerView EngineLoop::View() const {
  SchedulerView view;
  for (const auto& [id, task] : tasks_) {
    if (task->decoding()) view.decoding.push_back(id);
    if (task->has_slice()) view.sliced.push_back(task->View());
  }
  view.background = !jobs_.empty();
  return view;
}

void EngineLoop::Wait() {
  std::optional<Clock::time_point> until = shared_->contexts().NextExpiry();
  if (shared_->queue().waiting() > 0) {
    const Clock::time_point soon = Clock::now() + kRetryAdmission;
    until = until.has_value() ? std::min(*until, soon) : soon;
  }
  shared_->queue().Wait(until);
}

StepRecord EngineLoop::Execute(const StepPlan& plan) {
  StepRecord record;
  const Clock::time_point start = Clock::now();
  if (!plan.decode.empty()) {
    Decode(plan.decode);
    record.decode_rows = static_cast<int>(plan.decode.size());
    record.decode_seconds = SecondsSince(start);
  }
  const Clock::time_point slice_start = Clock::now();
  switch (plan.slice) {
    case StepPlan::Slice::kNone:
      break;
    case StepPlan::Slice::kTask:
      RunSlice(plan.task, record);
      break;
    case StepPlan::Slice::kBackground:
      record.slice = StepRecord::Slice::kBackground;
      RunBackground();
      break;
  }
  if (plan.slice != StepPlan::Slice::kNone) record.slice_seconds = SecondsSince(slice_start);
  const bool background = plan.slice == StepPlan::Slice::kBackground;
  scheduler_.Report(record.decode_seconds + (background ? 0 : record.slice_seconds),
                    background ? record.slice_seconds : 0);
  if (observer_ != nullptr) observer_->OnStep(record);
  if (options_.check_invariants) CheckInvariants();
  return record;
}

// A short prompt's slices are much shorter than a decode step: with one a step its first token
// would take as many steps as it has slices.
void EngineLoop::RunMoreSlices(double seconds) {
  while (seconds > 0) {
    EndDead();
    SchedulerView view = View();
    view.decoding.clear();
    view.background = false;
    const StepPlan plan = scheduler_.Next(view);
    if (plan.empty()) return;
    seconds -= Execute(plan).slice_seconds;
  }
}

void EngineLoop::Decode(const std::vector<int64_t>& ids) {
  std::vector<Task*> ready;
  for (int64_t id : ids) {
    Task* task = tasks_.at(id).get();
    const absl::Status status = Guarded([&] { return task->Prepare(); });
    if (status.ok()) {
      ready.push_back(task);
    } else {
      End(id, status);
    }
  }
  if (ready.empty()) return;
  // What fails together is tried alone: one request's failure must not end the others'.
  const bool together = RunDecode(ready).ok();
  const auto vocab = static_cast<size_t>(decoder_->config().vocab);
  for (size_t i = 0; i < ready.size(); ++i) {
    Task* task = ready[i];
    size_t row = i;
    absl::Status status;
    if (!together) {
      status = RunDecode({task});
      row = 0;
    }
    if (status.ok()) {
      status = Guarded(
          [&] { return task->Accept(absl::MakeConstSpan(logits_).subspan(row * vocab, vocab)); });
    }
    if (!status.ok() || task->done()) End(task->id(), status);
  }
}

absl::Status EngineLoop::RunDecode(const std::vector<Task*>& tasks) {
  std::vector<DecodeRow> rows;
  rows.reserve(tasks.size());
  for (Task* task : tasks) rows.push_back(task->Row());
  return Guarded([&] {
    logits_.resize(tasks.size() * static_cast<size_t>(decoder_->config().vocab));
    return decode_.Run(rows, logits_.data());
  });
}

void EngineLoop::RunSlice(int64_t id, StepRecord& record) {
  Task* task = tasks_.at(id).get();
  record.slice = task->NextSlice();
  const absl::Status status = Guarded([&] { return task->RunSlice(); });
  if (!status.ok() || task->done()) End(id, status);
}

void EngineLoop::RunBackground() {
  std::shared_ptr<BackgroundJob> job = std::move(jobs_.front());
  jobs_.pop_front();
  const absl::Status status = Guarded([&] { return job->done() ? absl::OkStatus() : job->Step(); });
  // New jobs get their turn before this one's next.
  for (auto& other : shared_->queue().TakeJobs()) jobs_.push_back(std::move(other));
  if (status.ok() && !job->done()) jobs_.push_back(std::move(job));
}

void EngineLoop::End(int64_t id, const absl::Status& status) {
  const auto it = tasks_.find(id);
  const std::unique_ptr<Task> task = std::move(it->second);
  tasks_.erase(it);
  // Its pages are free before anyone hears of its end.
  task->Release();
  Publish();
  NoteEnd(status, task->request().prompt_tokens(), task->completion_tokens());
  Tell(task->request().sink(), [&] { status.ok() ? task->Complete() : task->Fail(status); });
}

void EngineLoop::EndQueued(std::unique_ptr<QueuedRequest> request, const absl::Status& status) {
  NoteEnd(status, request->prompt_tokens(), 0);
  Tell(request->sink(), [&] { request->sink().OnError(status); });
}

void EngineLoop::NoteEnd(const absl::Status& status, int64_t prompt_tokens,
                         int64_t completion_tokens) {
  if (observer_ != nullptr) observer_->OnRequestEnd(status, prompt_tokens, completion_tokens);
}

void EngineLoop::CheckInvariants() {
  std::vector<const SequenceCache*> caches;
  for (const auto& [id, task] : tasks_) {
    caches.push_back(&task->cache());
    if (task->full_cache() != nullptr) caches.push_back(task->full_cache());
  }
  const absl::Status status = memory_.Check(std::move(caches));
  if (status.ok()) return;
  while (!tasks_.empty()) End(tasks_.begin()->first, status);
}

void EngineLoop::StopEverything() {
  const absl::Status status = absl::UnavailableError("the server is shutting down");
  while (!tasks_.empty()) End(tasks_.begin()->first, status);
  while (shared_->queue().waiting() > 0) EndQueued(shared_->queue().Take(0), status);
  jobs_.clear();
  shared_->queue().TakeJobs();
  memory_.FreeAllContexts();
  Publish();
}

void EngineLoop::Publish() {
  EngineStats stats;
  stats.running = static_cast<int64_t>(tasks_.size());
  for (const auto& [id, task] : tasks_) stats.prefilling += task->has_slice() ? 1 : 0;
  stats.background_jobs = static_cast<int64_t>(jobs_.size());
  memory_.FillStats(stats);
  shared_->SetStats(std::move(stats));
}

}  // namespace ripplekv
