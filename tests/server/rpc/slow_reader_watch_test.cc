#include "server/rpc/slow_reader_watch.h"

#include <gtest/gtest.h>

#include <atomic>

namespace ripplekv {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class Stream final : public WatchedStream {
 public:
  explicit Stream(Clock::time_point waiting_since) : waiting_since_(waiting_since) {}
  void DropIfStuck(Clock::time_point oldest) override {
    ++looks;
    if (waiting_since_ <= oldest) dropped = true;
  }
  std::atomic<int> looks{0};
  std::atomic<bool> dropped{false};

 private:
  const Clock::time_point waiting_since_;
};

template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(5));
  return condition();
}

TEST(SlowReaderWatch, DropsWhatWaitsForTheLimitAndNothingElse) {
  SlowReaderWatch watch(milliseconds(100));
  const auto began = Clock::now();
  const auto stuck = std::make_shared<Stream>(began);
  const auto moving = std::make_shared<Stream>(began + std::chrono::hours(1));
  watch.Add(stuck);
  watch.Add(moving);
  EXPECT_TRUE(Eventually([&] { return stuck->dropped.load(); }));
  EXPECT_GE(Clock::now() - began, milliseconds(100));
  EXPECT_GT(moving->looks, 0);
  EXPECT_FALSE(moving->dropped);
}

TEST(SlowReaderWatch, DoesNotKeepStreamsAlive) {
  SlowReaderWatch watch(milliseconds(8));
  auto stream = std::make_shared<Stream>(Clock::now() + std::chrono::hours(1));
  const std::weak_ptr<Stream> weak = stream;
  watch.Add(stream);
  EXPECT_TRUE(Eventually([&] { return stream->looks > 3; }));
  stream.reset();
  EXPECT_TRUE(Eventually([&] { return weak.expired(); }));
}

TEST(SlowReaderWatch, EndsAtOnceWhateverTheLimit) {
  const auto began = Clock::now();
  {
    SlowReaderWatch watch(std::chrono::hours(24));
  }
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(60));
}

}  // namespace
}  // namespace ripplekv
