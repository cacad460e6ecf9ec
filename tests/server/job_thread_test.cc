#include "server/job_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

namespace ripplekv {
namespace {

// Counts its steps; reports where it ends.
class CountingJob final : public BackgroundJob {
 public:
  explicit CountingJob(int steps, int fail_at = -1) : steps_(steps), fail_at_(fail_at) {}
  ~CountingJob() override { gone.set_value(std::this_thread::get_id()); }

  absl::Status Step() override {
    ++done_;
    ++total;
    return done_ == fail_at_ ? absl::InternalError("broken") : absl::OkStatus();
  }
  bool done() const override { return done_ >= steps_; }

  static inline std::atomic<int> total{0};
  std::promise<std::thread::id> gone;

 private:
  const int steps_;
  const int fail_at_;
  int done_ = 0;
};

int StepsOf(int steps, int fail_at) {
  CountingJob::total = 0;
  JobThread thread;
  auto job = std::make_shared<CountingJob>(steps, fail_at);
  auto gone = job->gone.get_future();
  EXPECT_TRUE(thread.Submit(std::move(job)).ok());
  EXPECT_NE(gone.get(), std::this_thread::get_id());
  return CountingJob::total;
}

TEST(JobThread, RunsAJobToItsEndAndLetsGoOfIt) { EXPECT_EQ(StepsOf(5, -1), 5); }

TEST(JobThread, StopsAtAnError) { EXPECT_EQ(StepsOf(5, 2), 2); }

TEST(JobThread, ShutdownEndsAJobInTheMiddleAndRefusesOthers) {
  JobThread thread;
  auto endless = std::make_shared<CountingJob>(1 << 30);
  auto waiting = std::make_shared<CountingJob>(1);
  auto gone = endless->gone.get_future();
  auto waiting_gone = waiting->gone.get_future();
  ASSERT_TRUE(thread.Submit(std::move(endless)).ok());
  ASSERT_TRUE(thread.Submit(std::move(waiting)).ok());
  thread.Shutdown();
  EXPECT_EQ(gone.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_EQ(waiting_gone.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_EQ(thread.Submit(std::make_shared<CountingJob>(1)).code(), absl::StatusCode::kUnavailable);
  thread.Shutdown();
}

}  // namespace
}  // namespace ripplekv
