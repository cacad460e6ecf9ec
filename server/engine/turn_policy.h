#pragma once

namespace ripplekv {

/// What the engine's thread does next. Requests come first; background work runs when there are
/// none, and one slice of it between any two requests, so that it gets on under any load.
class TurnPolicy {
 public:
  enum class Turn { kWait, kStepRequest, kStartRequest, kStepBackground };

  Turn Next(bool running, bool waiting, bool background) const {
    if (running) return Turn::kStepRequest;
    if (background && owed_) return Turn::kStepBackground;
    if (waiting) return Turn::kStartRequest;
    return background ? Turn::kStepBackground : Turn::kWait;
  }
  void RequestEnded() { owed_ = true; }
  void BackgroundStepped() { owed_ = false; }

 private:
  bool owed_ = false;
};

}  // namespace ripplekv
