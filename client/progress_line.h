#pragma once

#include <string>

#include "client/terminal.h"

namespace ripplekv {

struct ProgressState {
  int done = 0;
  int total = 0;
  double fraction = 0;  // of the work, 0 to 1
  double elapsed_seconds = 0;
};

// "calibrating ██████░░░░ 12/24   50 %  0:12, 0:12 left": one line that fits the terminal, without
// a line feed. The bar is left out where the line is too narrow for it, and where the terminal is
// not interactive.
std::string RenderProgress(const ProgressState& progress, const Terminal& terminal);

// Decides when a line of progress is written where lines cannot be overwritten: the first, then one
// every `interval_seconds`, and the last (fraction 1).
class ProgressPace {
 public:
  explicit ProgressPace(double interval_seconds) : interval_seconds_(interval_seconds) {}

  // `now_seconds` is any clock that does not go back.
  bool Due(const ProgressState& progress, double now_seconds);

 private:
  double interval_seconds_;
  bool written_ = false;
  bool finished_ = false;
  double last_seconds_ = 0;
};

}  // namespace ripplekv
