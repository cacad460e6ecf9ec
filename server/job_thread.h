#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "calibration/background_job.h"

namespace ripplekv {

// A thread that runs background jobs, one after the other: the owner of the model in a process that
// does not generate.
class JobThread {
 public:
  JobThread();
  // Shutdown().
  ~JobThread();
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  // UNAVAILABLE after Shutdown.
  absl::Status Submit(std::shared_ptr<BackgroundJob> job);

  // Lets go of all jobs, done or not, after the slice at work, and stops the thread. Repeatable;
  // not from a job.
  void Shutdown();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<BackgroundJob>> jobs_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace ripplekv
