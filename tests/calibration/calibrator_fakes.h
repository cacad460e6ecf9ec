#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/background_job.h"
#include "calibration/calibration_examples.h"
#include "calibration/calibration_listener.h"
#include "calibration/sensitivity_probe.h"

namespace ripplekv {

inline constexpr int kLayers = 3;
inline constexpr int kStepsAnExample = 2;

/// Steps are let through one by one or all at once.
class Gate {
 public:
  void Open() { Allow(1 << 30); }
  void Allow(int steps) {
    const std::lock_guard lock(mutex_);
    allowed_ += steps;
    changed_.notify_all();
  }
  /// Waits for a step; false where none comes.
  bool Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    const bool passed =
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return allowed_ > 0; });
    --waiting_;
    if (passed) --allowed_;
    return passed;
  }
  /// Waits until somebody stands before the gate.
  bool AwaitVisitor() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int allowed_ = 0;
  int waiting_ = 0;
};

/// Example e measures s_l = its first token + l / 8, and l as the local response; one of the sizes
/// its first token as the divergence of its only size.
class FakeProbe final : public SensitivityProbe {
 public:
  FakeProbe(CalibrationExamples examples, Gate* gate, absl::Status failure, std::atomic<int>* alive)
      : examples_(std::move(examples.layers)),
        gate_(gate),
        failure_(std::move(failure)),
        alive_(alive) {
    ++*alive_;
    for (const auto& example : examples.sizes) {
      measured_.sizes.push_back({{static_cast<double>(example[0])}});
    }
  }
  ~FakeProbe() override { --*alive_; }

  absl::Status Step() override {
    if (!gate_->Pass()) return absl::DeadlineExceededError("the test opened no gate");
    if (!failure_.ok()) return failure_;
    if (++steps_ % kStepsAnExample == 0) {
      const double first = examples_[measured_.sensitivity.size()][0];
      measured_.sensitivity.emplace_back();
      measured_.local_response.emplace_back();
      for (int l = 0; l < kLayers; ++l) {
        measured_.sensitivity.back().push_back(first + l / 8.0);
        measured_.local_response.back().push_back(l);
      }
    }
    return absl::OkStatus();
  }
  bool done() const override { return measured_.sensitivity.size() == examples_.size(); }
  ProbeProgress progress() const override {
    ProbeProgress progress;
    progress.examples_done = static_cast<int>(measured_.sensitivity.size());
    progress.examples_total = static_cast<int>(examples_.size());
    progress.fraction =
        static_cast<double>(steps_) / static_cast<double>(kStepsAnExample * examples_.size());
    return progress;
  }
  const ProbeMeasurements& measurements() const override { return measured_; }

 private:
  std::vector<std::vector<int32_t>> examples_;
  Gate* gate_;
  absl::Status failure_;
  std::atomic<int>* alive_;
  int steps_ = 0;
  ProbeMeasurements measured_;
};

/// One thread that runs jobs, as the engine's does.
class Runner {
 public:
  Runner() : thread_([this] { Loop(); }) {}
  ~Runner() { Stop(); }

  absl::Status Submit(std::shared_ptr<BackgroundJob> job) {
    const std::lock_guard lock(mutex_);
    if (stopped_) return absl::UnavailableError("draining");
    jobs_.push_back(std::move(job));
    changed_.notify_all();
    return absl::OkStatus();
  }
  void RequestStop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  /// Drops all jobs between two steps.
  void Stop() {
    RequestStop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopped_ || !jobs_.empty(); });
      if (stopped_) break;
      std::shared_ptr<BackgroundJob> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      const bool goes_on = job->Step().ok() && !job->done();
      if (!goes_on) job.reset();
      lock.lock();
      if (goes_on) jobs_.push_back(std::move(job));
    }
    std::deque<std::shared_ptr<BackgroundJob>> jobs;
    jobs.swap(jobs_);
    lock.unlock();
    jobs.clear();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::deque<std::shared_ptr<BackgroundJob>> jobs_;
  std::thread thread_;
};

class Recorder final : public CalibrationListener {
 public:
  void OnStarted(const CalibrationStarted& started) override {
    const std::lock_guard lock(mutex_);
    if (started_.has_value() || !progress_.empty() || result_.has_value()) ordered_ = false;
    started_ = started;
    changed_.notify_all();
  }
  void OnProgress(const CalibrationProgress& progress) override {
    const std::lock_guard lock(mutex_);
    if (!started_.has_value() || result_.has_value()) ordered_ = false;
    if (!progress_.empty() && progress.probe.fraction < progress_.back().probe.fraction)
      ordered_ = false;
    progress_.push_back(progress);
    changed_.notify_all();
  }
  void OnDone(const absl::StatusOr<CalibrationResult>& result) override {
    const std::lock_guard lock(mutex_);
    if (!started_.has_value() || result_.has_value()) ordered_ = false;
    // An error's text is shared by its copies and counted inside libabsl, where ThreadSanitizer
    // does not look: keep one of our own.
    if (result.ok()) {
      result_ = result;
    } else {
      result_ = absl::Status(result.status().code(), std::string(result.status().message()));
    }
    changed_.notify_all();
  }

  absl::StatusOr<CalibrationResult> Await() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(20), [&] { return result_.has_value(); })) {
      return absl::DeadlineExceededError("no result came");
    }
    return *result_;
  }
  bool AwaitProgress() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return !progress_.empty(); });
  }
  CalibrationStarted started() const {
    const std::lock_guard lock(mutex_);
    return started_.value_or(CalibrationStarted{});
  }
  std::vector<CalibrationProgress> progress() const {
    const std::lock_guard lock(mutex_);
    return progress_;
  }
  bool heard() const {
    const std::lock_guard lock(mutex_);
    return started_.has_value() || !progress_.empty() || result_.has_value();
  }
  bool done() const {
    const std::lock_guard lock(mutex_);
    return result_.has_value();
  }
  /// OnStarted came first, progress never went back, OnDone came once and last.
  bool ordered() const {
    const std::lock_guard lock(mutex_);
    return ordered_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CalibrationStarted> started_;
  std::vector<CalibrationProgress> progress_;
  std::optional<absl::StatusOr<CalibrationResult>> result_;
  bool ordered_ = true;
};

}  // namespace ripplekv
