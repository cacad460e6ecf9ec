// Faults: a step that throws, a sink that throws, no room, too late, cancelled. Whoever is not
// meant goes on as if nothing had been; what the others held goes back at once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/server/engine/tiny_requests.h"

namespace ripplekv {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRequests = 4;
constexpr int kOutput = 60;

struct StepCounter : EngineObserver {
  void OnStep(const StepRecord& step) override {
    ++steps;
    decode_rows = step.decode_rows;
  }
  std::atomic<int> steps{0};
  std::atomic<int> decode_rows{0};  // of the latest
};

class FaultTest : public TinyEngineTest {
 protected:
  GenerateRequest Request(int i) {
    GenerateRequest request =
        TinyAsk(TinyTokens(static_cast<size_t>(40 + 60 * i), 10 + i), kOutput);
    if (i % 2 == 1) {
      request.sampling.temperature = 1;
      request.sampling.seed = static_cast<uint64_t>(i);
    }
    // One tracks its rows' mass, which a step that fails must leave as it was.
    if (i == 2) request.kv.growth_cap = 16;
    // Rows of a step are attended to type by type.
    if (i == 0) request.kv.key_type = KvType::kInt8;
    if (i == 2) request.kv.value_type = KvType::kInt4;
    return request;
  }
  // All requests at once, from a held start.
  std::vector<std::shared_ptr<Collector>> RunTogether(
      std::vector<std::shared_ptr<Collector>> sinks = {}) {
    sinks.resize(kRequests);
    Gate all_there;
    for (int i = 0; i < kRequests; ++i) {
      auto& sink = sinks[static_cast<size_t>(i)];
      if (sink == nullptr) sink = std::make_shared<Collector>();
      sink->on_start = [&] { all_there.Wait(); };
      Submit(Request(i), sink);
    }
    all_there.Open();
    for (auto& sink : sinks) sink->Wait();
    return sinks;
  }
  std::vector<std::shared_ptr<Collector>> Undisturbed() {
    StartTiny();
    return RunTogether();
  }
  void ExpectAllOk(const std::vector<std::shared_ptr<Collector>>& sinks) {
    for (const auto& sink : sinks) EXPECT_TRUE(sink->status().ok()) << sink->status();
  }
};

// A step fails in one layer after another, for all rows together: each row is then tried alone.
TEST_F(FaultTest, AStepThatFailsOnceIsNotNoticed) {
  const auto expected = Undisturbed();
  ExpectAllOk(expected);
  EXPECT_GT(expected[2]->completion().compactions, 0);
  for (int layer = 0; layer < TinyModel::kLayers; ++layer) {
    SCOPED_TRACE("layer " + std::to_string(layer));
    StepCounter counter;
    std::atomic<bool> armed{false};
    int thrown = 0;
    EngineOptions options;
    options.before_decode_layer = [&](int at) {
      if (at != layer || !armed.exchange(false)) return;
      ++thrown;
      throw std::runtime_error("for a test");
    };
    std::vector<std::shared_ptr<Collector>> sinks(kRequests);
    int rows_together = 0;
    for (auto& sink : sinks) sink = std::make_shared<Collector>();
    sinks[3]->on_token = [&](int tokens) {  // the last to start: all decode now
      if (tokens < 2 || tokens % 5 != 0) return;
      rows_together += counter.decode_rows == kRequests;
      armed = true;
    };
    StartTiny(options, 1, &counter);
    RunTogether(sinks);
    ExpectAllOk(sinks);
    for (int i = 0; i < kRequests; ++i) ExpectSameOutput(*expected[i], *sinks[i]);
    engine_->Shutdown();
    EXPECT_GT(rows_together, 2);
    EXPECT_GT(thrown, 5);
    ExpectAllFree();
  }
}

TEST_F(FaultTest, WhatFailsOnlyTogetherSucceedsAlone) {
  const auto expected = Undisturbed();
  // A step of several rows has its layers once, then each row alone has them again: what throws in
  // every first pass of layer 2 after a step's beginning fails the step of all rows only.
  std::atomic<bool> together{false};
  int failed = 0;
  EngineOptions options;
  StepCounter counter;
  options.before_decode_layer = [&](int layer) {
    if (layer == 2 && together.exchange(false)) {
      ++failed;
      throw std::runtime_error("too many rows");
    }
  };
  std::vector<std::shared_ptr<Collector>> sinks(kRequests);
  for (auto& sink : sinks) sink = std::make_shared<Collector>();
  sinks[3]->on_token = [&](int) { together = true; };
  StartTiny(options, 1, &counter);
  RunTogether(sinks);
  ExpectAllOk(sinks);
  for (int i = 0; i < kRequests; ++i) ExpectSameOutput(*expected[i], *sinks[i]);
  engine_->Shutdown();  // the observer goes before the engine
  EXPECT_GE(failed, kOutput - 2) << "nearly every step of the last one";
}

TEST_F(FaultTest, StepsThatAlwaysFailEndTheirRequestsAndNothingElse) {
  const auto expected = Undisturbed();
  std::atomic<bool> broken{false};
  EngineOptions options;
  options.before_decode_layer = [&](int layer) {
    if (layer == 2 && broken) throw std::runtime_error("the machine is on fire");
  };
  StartTiny(options);
  const auto context = CreateContext(TinyTokens(200, 5));
  ASSERT_TRUE(context.ok()) << context.status();
  const size_t before = engine_->stats().kv_used_bytes;
  std::vector<std::shared_ptr<Collector>> sinks(kRequests);
  for (auto& sink : sinks) sink = std::make_shared<Collector>();
  sinks[3]->on_token = [&](int tokens) {
    if (tokens == 5) broken = true;
  };
  RunTogether(sinks);
  for (int i = 0; i < kRequests; ++i) {
    const absl::Status& status = sinks[i]->status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << i << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the machine is on fire"));
    EXPECT_LT(sinks[i]->tokens().size(), size_t{kOutput});
    // What came before it was right.
    ASSERT_GE(sinks[i]->tokens().size(), 5u);
    for (size_t t = 0; t < sinks[i]->tokens().size(); ++t) {
      EXPECT_EQ(sinks[i]->tokens()[t], expected[i]->tokens()[t]);
    }
  }
  EXPECT_EQ(engine_->stats().kv_used_bytes, before);
  EXPECT_EQ(engine_->stats().kv_reserved_bytes, 0u);
  EXPECT_EQ(engine_->stats().work_reserved_bytes, 0u);
  broken = false;
  const auto again = RunTogether();
  ExpectAllOk(again);
  for (int i = 0; i < kRequests; ++i) ExpectSameOutput(*expected[i], *again[i]);
  EXPECT_EQ(engine_->stats().kv_used_bytes, before);
}

TEST_F(FaultTest, ASinkThatThrowsEndsItsOwnRequest) {
  const auto expected = Undisturbed();
  for (int at : {1, 2, 30}) {
    SCOPED_TRACE("token " + std::to_string(at));
    StartTiny();
    std::vector<std::shared_ptr<Collector>> sinks(kRequests);
    sinks[1] = std::make_shared<Collector>();
    sinks[1]->on_token = [&](int tokens) {
      if (tokens == at) throw std::runtime_error("nobody listens");
    };
    sinks = RunTogether(sinks);
    EXPECT_EQ(sinks[1]->status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(sinks[1]->status().message()), HasSubstr("nobody listens"));
    EXPECT_EQ(sinks[1]->tokens().size(), static_cast<size_t>(at));
    for (int i : {0, 2, 3}) {
      EXPECT_TRUE(sinks[i]->status().ok()) << sinks[i]->status();
      ExpectSameOutput(*expected[i], *sinks[i]);
    }
    ExpectAllFree();
  }
  auto at_start = std::make_shared<Collector>();
  at_start->on_start = [] { throw std::runtime_error("not even a beginning"); };
  Submit(Request(0), at_start);
  EXPECT_EQ(at_start->Wait().status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(at_start->status().message()), HasSubstr("not even a beginning"));
  ExpectSameOutput(
      *expected[0], *[&] {
        auto sink = Submit(Request(0));
        sink->Wait();
        return sink;
      }());
  ExpectAllFree();
}

// 40 pages; the holder's full cache of 100 + 60 rows takes 20, the other's 28: the first two layers
// would still find theirs.
TEST_F(FaultTest, WhoDoesNotFitWaitsAndTakesNothing) {
  StartTiny(TinyArena(40, 400));
  GenerateRequest holds = TinyAsk(TinyTokens(100, 1), 60);
  GenerateRequest waits = TinyAsk(TinyTokens(200, 2), 24);
  holds.kv.size = waits.kv.size = Full{};
  auto holder = std::make_shared<Collector>();
  auto waiting = std::make_shared<Collector>();
  std::atomic<bool> started{false};
  int looks = 0;
  holder->on_token = [&](int tokens) {
    if (tokens == 10) Submit(waits, waiting);
    if (tokens < 13) return;
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.queued, 1);
    EXPECT_EQ(stats.running, 1);
    EXPECT_EQ(stats.free_pages, 20);
    for (const LayerStats& layer : stats.layers) {
      EXPECT_EQ(layer.used_bytes + layer.reserved_bytes, 5 * engine_->kv_layout().page_bytes);
    }
    EXPECT_FALSE(started);
    ++looks;
  };
  waiting->on_start = [&] { started = true; };
  Submit(std::move(holds), holder);
  EXPECT_TRUE(holder->Wait().status().ok()) << holder->status();
  EXPECT_TRUE(waiting->Wait().status().ok()) << waiting->status();
  EXPECT_EQ(waiting->tokens().size(), 24u);
  EXPECT_EQ(looks, 48);
  ExpectAllFree();
}

TEST_F(FaultTest, WhoWaitsTooLongIsToldToRetry) {
  struct Refusals : EngineObserver {
    void OnRefused(RefusalReason why, const absl::Status&) override {
      if (why == RefusalReason::kQueueTimeout) ++timeouts;
    }
    std::atomic<int> timeouts{0};
  } observer;
  EngineOptions options;
  options.max_batch = 1;
  options.queue_timeout = milliseconds(100);
  StartTiny(options, 1, &observer);
  auto holder = std::make_shared<Collector>();
  Gate submitted;
  const auto waiting = std::make_shared<Collector>();
  holder->on_token = [&](int tokens) {
    if (tokens != 3) return;
    submitted.Wait();
    std::this_thread::sleep_for(milliseconds(120));
  };
  Submit(TinyAsk(TinyTokens(20, 1), 10), holder);
  Submit(TinyAsk(TinyTokens(20, 2), 10), waiting);
  submitted.Open();
  const absl::Status& status = waiting->Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("waited"), HasSubstr("retry later")));
  EXPECT_TRUE(status.GetPayload(kRetryLater).has_value());
  EXPECT_TRUE(waiting->tokens().empty());
  EXPECT_TRUE(holder->Wait().status().ok()) << "running ones are not meant: " << holder->status();
  engine_->Shutdown();  // the observer goes before the engine
  EXPECT_EQ(observer.timeouts, 1);
  ExpectAllFree();
}

// How a request is ended from outside.
enum class Way { kCancel, kDeadline };

class EndingTest : public FaultTest, public ::testing::WithParamInterface<Way> {
 protected:
  // To be called on the engine's thread: the request is over from now on.
  void Expire(const std::shared_ptr<RequestHandle>& handle, Clock::time_point deadline) {
    at_ = counter_.steps;
    if (GetParam() == Way::kCancel) {
      handle->Cancel();
    } else {
      std::this_thread::sleep_until(deadline + milliseconds(1));
    }
  }
  absl::StatusCode Code() const {
    return GetParam() == Way::kCancel ? absl::StatusCode::kCancelled
                                      : absl::StatusCode::kDeadlineExceeded;
  }
  // Notes how many turns it took, and what was left by then.
  class EndingCollector : public Collector {
   public:
    explicit EndingCollector(std::function<void()> at_end) : at_end_(std::move(at_end)) {}
    void OnError(absl::Status status) override {
      at_end_();
      Collector::OnError(std::move(status));
    }

   private:
    std::function<void()> at_end_;
  };
  std::shared_ptr<EndingCollector> MakeSink() {
    return std::make_shared<EndingCollector>([this] {
      turns_ = counter_.steps - at_;
      at_end_ = engine_->stats();
    });
  }
  // A deadline that comes soon after all is submitted, but not before.
  std::optional<Clock::time_point> Deadline() const {
    if (GetParam() == Way::kCancel) return std::nullopt;
    return Clock::now() + milliseconds(300);
  }

  StepCounter counter_;
  int at_ = 0;
  int turns_ = -1;
  EngineStats at_end_;
};

TEST_P(EndingTest, WhileItWaits) {
  EngineOptions options;
  options.max_batch = 1;
  StartTiny(options, 1, &counter_);
  auto holder = std::make_shared<Collector>();
  Gate submitted;
  std::shared_ptr<RequestHandle> handle;
  GenerateRequest request = TinyAsk(TinyTokens(100, 1), 50);
  holder->on_token = [&](int tokens) {
    if (tokens != 5) return;
    submitted.Wait();
    EXPECT_EQ(engine_->stats().queued, 1);
    Expire(handle, request.deadline.value_or(Clock::now()));
  };
  Submit(TinyAsk(TinyTokens(100, 1), 40), holder);
  auto sink = MakeSink();
  request.deadline = Deadline();
  Submit(request, sink);
  handle = handle_;
  submitted.Open();
  EXPECT_EQ(sink->Wait().status().code(), Code());
  EXPECT_LE(turns_, 2);
  EXPECT_TRUE(sink->tokens().empty());
  EXPECT_TRUE(holder->Wait().status().ok()) << "it ran on: " << holder->status();
  EXPECT_EQ(holder->tokens().size(), 40u);
  EXPECT_EQ(engine_->stats().queued, 0);
  ExpectAllFree();
}

// In the middle of a prompt, told by the tokens of one that decodes beside it.
TEST_P(EndingTest, WhileItsPromptIsUnderWay) {
  StartTiny({}, 1, &counter_);
  auto beside = std::make_shared<Collector>();
  Gate decoding, submitted;
  std::shared_ptr<RequestHandle> handle;
  GenerateRequest request = TinyAsk(TinyTokens(900, 1), 50);
  size_t alone = 0;
  bool prefilling = false;
  beside->on_token = [&](int tokens) {
    if (tokens == 4) {
      alone = engine_->stats().kv_used_bytes + engine_->stats().kv_reserved_bytes;
      decoding.Open();
      submitted.Wait();
    }
    if (tokens != 12) return;
    prefilling = engine_->stats().prefilling == 1 && engine_->stats().prefill_layer_bytes > 0;
    Expire(handle, request.deadline.value_or(Clock::now()));
  };
  Submit(TinyAsk(TinyTokens(10, 2), 60), beside);
  decoding.Wait();
  auto sink = MakeSink();
  request.deadline = Deadline();
  Submit(request, sink);
  handle = handle_;
  submitted.Open();
  EXPECT_EQ(sink->Wait().status().code(), Code());
  EXPECT_TRUE(prefilling);
  EXPECT_LE(turns_, 2);
  EXPECT_TRUE(sink->tokens().empty());
  EXPECT_EQ(at_end_.prefill_layer_bytes, 0u);
  EXPECT_EQ(at_end_.running, 1);
  EXPECT_EQ(at_end_.kv_used_bytes + at_end_.kv_reserved_bytes, alone) << "told before it was free";
  EXPECT_TRUE(beside->Wait().status().ok()) << beside->status();
  EXPECT_EQ(beside->tokens().size(), 60u);
  ExpectAllFree();
}

TEST_P(EndingTest, WhileItDecodes) {
  StartTiny({}, 1, &counter_);
  const auto expected = Submit(TinyAsk(TinyTokens(100, 1), 500));
  expected->Wait();
  GenerateRequest request = TinyAsk(TinyTokens(100, 1), 500);
  Gate submitted;
  auto sink = MakeSink();
  std::shared_ptr<RequestHandle> handle;
  sink->on_start = [&] { submitted.Wait(); };
  sink->on_token = [&](int tokens) {
    if (tokens == 20) Expire(handle, request.deadline.value_or(Clock::now()));
  };
  request.deadline = Deadline();
  Submit(request, sink);
  handle = handle_;
  submitted.Open();
  EXPECT_EQ(sink->Wait().status().code(), Code());
  EXPECT_LE(turns_, 2);
  ASSERT_GE(sink->tokens().size(), 20u);
  EXPECT_LE(sink->tokens().size(), 22u);
  for (size_t t = 0; t < sink->tokens().size(); ++t) {
    EXPECT_EQ(sink->tokens()[t], expected->tokens()[t]);
  }
  EXPECT_EQ(at_end_.running, 0);
  EXPECT_EQ(at_end_.kv_used_bytes + at_end_.kv_reserved_bytes, 0u);
  EXPECT_EQ(at_end_.work_reserved_bytes, 0u);
  ExpectAllFree();
}

INSTANTIATE_TEST_SUITE_P(All, EndingTest, ::testing::Values(Way::kCancel, Way::kDeadline),
                         [](const auto& info) {
                           return std::string(info.param == Way::kCancel ? "Cancelled"
                                                                         : "PastItsDeadline");
                         });

}  // namespace
}  // namespace ripplekv
