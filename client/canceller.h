#pragma once

#include <mutex>

namespace grpc {
class ClientContext;
}

namespace ripplekv {

// Cancels a client's calls from another thread. One call at a time runs under it.
class Canceller {
 public:
  // Cancels the running call and every later one until Reset. False: no call was running.
  bool Cancel();
  // Later calls run again.
  void Reset();
  bool cancelled() const;

 private:
  friend class RunningCall;

  mutable std::mutex mutex_;
  grpc::ClientContext* running_ = nullptr;
  bool cancelled_ = false;
};

// Puts a call under a canceller (or under none) for as long as this lives.
class RunningCall {
 public:
  RunningCall(Canceller* canceller, grpc::ClientContext* context);
  ~RunningCall();
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;

 private:
  Canceller* canceller_;
};

}  // namespace ripplekv
