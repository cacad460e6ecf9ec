#include "server/engine/work_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ripplekv {
namespace {

using ::testing::HasSubstr;

TEST(WorkMemoryTest, GivesBackWhatDies) {
  WorkMemory memory(100);
  {
    auto first = memory.Reserve(60);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(memory.reserved_bytes(), 60u);
    const absl::Status full = memory.Reserve(41).status();
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(full.message()), HasSubstr("41 bytes wanted, 40 of 100"));
    WorkReservation moved = *std::move(first);
    EXPECT_EQ(memory.reserved_bytes(), 60u);
    moved = *memory.Reserve(40);
    EXPECT_EQ(memory.reserved_bytes(), 40u) << "what it held before went back";
    moved.ShrinkTo(50);
    EXPECT_EQ(memory.reserved_bytes(), 40u);
    moved.ShrinkTo(15);
    EXPECT_EQ(memory.reserved_bytes(), 15u);
  }
  EXPECT_EQ(memory.reserved_bytes(), 0u);
}

TEST(WorkMemoryTest, NeverMoreThanThereIs) {
  WorkMemory memory(1000);
  std::mt19937 random(7);
  std::vector<WorkReservation> held;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0 && !held.empty()) {
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % held.size()));
    } else {
      auto more = memory.Reserve(random() % 300);
      if (more.ok()) held.push_back(*std::move(more));
    }
    size_t sum = 0;
    for (const WorkReservation& reservation : held) sum += reservation.bytes();
    ASSERT_EQ(memory.reserved_bytes(), sum);
    ASSERT_LE(sum, 1000u);
  }
}

}  // namespace
}  // namespace ripplekv
