#include "server/engine/request_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"

namespace ripplekv {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<QueuedRequest> Named(const std::string& id) {
  auto request = std::make_unique<QueuedRequest>();
  std::get<GenerateWork>(request->work).request.id = id;
  request->handle = std::make_shared<RequestHandle>();
  return request;
}

std::string IdOf(const QueuedRequest& request) {
  return std::get<GenerateWork>(request.work).request.id;
}

// The id of the request that waits longest, which leaves the queue; empty where there is none.
std::string TakeFirst(RequestQueue& queue) {
  return queue.waiting() == 0 ? "" : IdOf(*queue.Take(0));
}

TEST(RequestQueueTest, FirstComeFirstServedAndBounded) {
  RequestQueue queue(2);
  EXPECT_TRUE(queue.Push(Named("a")).ok());
  EXPECT_TRUE(queue.Push(Named("b")).ok());
  const absl::Status full = queue.Push(Named("c"));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("--max-queue 2"));
  EXPECT_TRUE(full.GetPayload(kRetryLater).has_value());
  EXPECT_EQ(queue.waiting(), 2);
  EXPECT_EQ(TakeFirst(queue), "a");
  EXPECT_TRUE(queue.Push(Named("d")).ok());
  EXPECT_EQ(TakeFirst(queue), "b");
  EXPECT_EQ(TakeFirst(queue), "d");
  EXPECT_EQ(TakeFirst(queue), "");
}

TEST(RequestQueueTest, TakesOutTheCancelledAndTheLate) {
  RequestQueue queue(10);
  const Clock::time_point now = Clock::now();
  auto cancelled = Named("cancelled");
  auto handle = std::make_shared<RequestHandle>();
  cancelled->handle = handle;
  auto late = Named("late");
  std::get<GenerateWork>(late->work).request.deadline = now;
  auto early = Named("early");
  std::get<GenerateWork>(early->work).request.deadline = now + std::chrono::hours(1);
  early->start_by = now + std::chrono::hours(1);
  auto waited = Named("waited");
  waited->submitted = now - std::chrono::seconds(3);
  waited->start_by = now;
  for (auto* request : {&cancelled, &late, &early, &waited})
    ASSERT_TRUE(queue.Push(std::move(*request)).ok());
  handle->Cancel();
  auto dead = queue.TakeDead(now);
  ASSERT_EQ(dead.size(), 3u);
  EXPECT_EQ(dead[0]->MayWait(now).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(dead[1]->MayWait(now).code(), absl::StatusCode::kDeadlineExceeded);
  const absl::Status too_long = dead[2]->MayWait(now);
  EXPECT_EQ(too_long.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(too_long.GetPayload(kRetryLater).has_value());
  EXPECT_THAT(std::string(too_long.message()), HasSubstr("waited 3000 ms"));
  EXPECT_TRUE(dead[2]->Alive(now).ok()) << "once at work it may go on";
  EXPECT_EQ(TakeFirst(queue), "early");
}

TEST(RequestQueueTest, ClosedRefusesAndStoppedDoesNotBlock) {
  RequestQueue queue(10);
  ASSERT_TRUE(queue.Push(Named("a")).ok());
  queue.Close();
  EXPECT_EQ(queue.Push(Named("b")).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(queue.PushJob(nullptr).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(TakeFirst(queue), "a");
  std::thread waiter([&] { queue.Wait(); });
  queue.Stop();
  waiter.join();
  EXPECT_TRUE(queue.stopped());
}

TEST(RequestQueueTest, WakeEndsOneWait) {
  RequestQueue queue(10);
  queue.Wake();
  queue.Wait();
  std::thread waiter([&] { queue.Wait(); });
  queue.Wake();
  waiter.join();
}

TEST(RequestQueueTest, AWaitEndsAtItsTimeAlthoughSomebodyWaits) {
  RequestQueue queue(10);
  ASSERT_TRUE(queue.Push(Named("a")).ok());
  queue.Wait();  // for the news of it
  const Clock::time_point until = Clock::now() + std::chrono::milliseconds(30);
  queue.Wait(until);
  EXPECT_GE(Clock::now(), until);
}

TEST(RequestQueueTest, TheWaitingInOrder) {
  RequestQueue queue(10);
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(queue.Push(Named(id)).ok());
  EXPECT_EQ(IdOf(*queue.Take(1)), "b");
  std::vector<std::string> left;
  for (const QueuedRequest* request : queue.Waiting()) left.push_back(IdOf(*request));
  EXPECT_EQ(left, (std::vector<std::string>{"a", "c"}));
}

TEST(RequestQueueTest, ManyThreadsLoseAndDoubleNothing) {
  RequestQueue queue(32);
  constexpr int kThreads = 4, kEach = 500;
  std::atomic<int> refused{0};
  std::set<std::string> seen;
  std::thread consumer([&] {
    while (static_cast<int>(seen.size()) < kThreads * kEach) {
      queue.Wait();
      while (queue.waiting() > 0) EXPECT_TRUE(seen.insert(TakeFirst(queue)).second);
    }
  });
  std::vector<std::thread> producers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        while (!queue.Push(Named(std::to_string(t * kEach + i))).ok()) {
          ++refused;
          std::this_thread::yield();
        }
      }
    });
  }
  for (auto& producer : producers) producer.join();
  consumer.join();
  EXPECT_EQ(seen.size(), static_cast<size_t>(kThreads * kEach));
  EXPECT_EQ(queue.waiting(), 0);
}

}  // namespace
}  // namespace ripplekv
