#include "client/calibration_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/message_builders.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(CalibrationViewTest, ATableWithColumnsThatLineUp) {
  v1::Calibration running = TestCalibration(v1::CALIBRATION_STATE_RUNNING);
  running.set_detached(true);
  EXPECT_EQ(
      RenderCalibrations({running, TestCalibration(v1::CALIBRATION_STATE_FAILED)}, {}),
      "job            state              progress           started               profile\n"
      "calibration-2  running, detached  12/24  50 %  1:15  2026-01-01 00:00 UTC  cccccccccccc\n"
      "calibration-1  failed             12/24  50 %  1:15  2026-01-01 00:00 UTC  dddddddddddd\n"
      "  RESOURCE_EXHAUSTED: the disk is full\n");
}

TEST(CalibrationViewTest, NothingForNone) { EXPECT_EQ(RenderCalibrations({}, {}), ""); }

TEST(CalibrationViewTest, WhatTheServerSaysCannotSteerTheTerminal) {
  v1::Calibration failed = TestCalibration(v1::CALIBRATION_STATE_FAILED);
  failed.set_job_id("\033[31mjob");
  failed.mutable_error()->set_message("\033[2J");
  EXPECT_THAT(RenderCalibrations({failed}, {}), Not(HasSubstr("\033")));
}

TEST(CalibrationViewTest, CancelledInOneSentence) {
  EXPECT_EQ(RenderCancelled(TestCalibration(v1::CALIBRATION_STATE_CANCELLED)),
            "Cancelled calibration-2 after 12/24 examples; nothing is stored of it.");
}

}  // namespace
}  // namespace ripplekv
