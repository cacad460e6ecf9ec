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
  request->request.id = id;
  request->handle = std::make_shared<RequestHandle>();
  return request;
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
  EXPECT_EQ(queue.Pop()->request.id, "a");
  EXPECT_TRUE(queue.Push(Named("d")).ok());
  EXPECT_EQ(queue.Pop()->request.id, "b");
  EXPECT_EQ(queue.Pop()->request.id, "d");
  EXPECT_EQ(queue.Pop(), nullptr);
}

TEST(RequestQueueTest, TakesOutTheCancelledAndTheLate) {
  RequestQueue queue(10);
  const Clock::time_point now = Clock::now();
  auto cancelled = Named("cancelled");
  auto handle = std::make_shared<RequestHandle>();
  cancelled->handle = handle;
  auto late = Named("late");
  late->request.deadline = now;
  auto early = Named("early");
  early->request.deadline = now + std::chrono::hours(1);
  for (auto* request : {&cancelled, &late, &early})
    ASSERT_TRUE(queue.Push(std::move(*request)).ok());
  handle->Cancel();
  auto dead = queue.TakeDead(now);
  ASSERT_EQ(dead.size(), 2u);
  EXPECT_EQ(dead[0]->Alive(now).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(dead[1]->Alive(now).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(queue.Pop()->request.id, "early");
}

TEST(RequestQueueTest, ClosedRefusesAndStoppedDoesNotBlock) {
  RequestQueue queue(10);
  ASSERT_TRUE(queue.Push(Named("a")).ok());
  queue.Close();
  EXPECT_EQ(queue.Push(Named("b")).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(queue.PushJob(nullptr).code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(queue.Pop(), nullptr);
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

TEST(RequestQueueTest, ManyThreadsLoseAndDoubleNothing) {
  RequestQueue queue(32);
  constexpr int kThreads = 4, kEach = 500;
  std::atomic<int> refused{0};
  std::set<std::string> seen;
  std::thread consumer([&] {
    while (static_cast<int>(seen.size()) < kThreads * kEach) {
      queue.Wait();
      while (auto request = queue.Pop()) EXPECT_TRUE(seen.insert(request->request.id).second);
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
