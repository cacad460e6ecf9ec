#include "server/engine/turn_policy.h"

#include <gtest/gtest.h>

namespace ripplekv {
namespace {

using Turn = TurnPolicy::Turn;

TEST(TurnPolicyTest, RequestsComeFirst) {
  TurnPolicy policy;
  EXPECT_EQ(policy.Next(false, false, false), Turn::kWait);
  EXPECT_EQ(policy.Next(false, false, true), Turn::kStepBackground);
  EXPECT_EQ(policy.Next(false, true, true), Turn::kStartRequest);
  EXPECT_EQ(policy.Next(true, true, true), Turn::kStepRequest);
  EXPECT_EQ(policy.Next(true, false, false), Turn::kStepRequest);
}

TEST(TurnPolicyTest, OneBackgroundStepBetweenTwoRequests) {
  TurnPolicy policy;
  policy.RequestEnded();
  EXPECT_EQ(policy.Next(false, true, true), Turn::kStepBackground);
  policy.BackgroundStepped();
  EXPECT_EQ(policy.Next(false, true, true), Turn::kStartRequest);
  policy.RequestEnded();
  // Nothing is owed where there is no background work.
  EXPECT_EQ(policy.Next(false, true, false), Turn::kStartRequest);
}

}  // namespace
}  // namespace ripplekv
