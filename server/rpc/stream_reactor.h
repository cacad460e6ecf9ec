#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace ripplekv {

// The sending half of a server-streaming call: one message on its way at a time, the next one taken
// from the subclass when the transport asks for it. A client that does not read holds up only its
// own stream; nothing here blocks.
//
// gRPC needs the object until OnDone, the producer of its messages may need it longer or shorter:
// so it is shared, and holds itself until OnDone.
template <typename Response>
class StreamReactor : public grpc::ServerWriteReactor<Response> {
 public:
  // Called once, with the pointer that the producer gets too.
  void KeepUntilDone(std::shared_ptr<StreamReactor> self) { self_ = std::move(self); }

  void OnWriteDone(bool ok) final {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    broken_ = broken_ || !ok;
    Advance();
  }

  void OnDone() final {
    Ended(*final_);  // final_ was set before Finish
    const std::shared_ptr<StreamReactor> last = std::move(self_);
  }

 protected:
  // Moves the next message into *message; false where there is none yet. Called with mutex_ held.
  virtual bool TakeNext(Response* message) = 0;

  // Once, before anything is sent: whether a message comes first, or the status alone. Called with
  // mutex_ held.
  virtual void Opening(bool /*message*/) {}

  // The call is over, whatever became of it. Called on a gRPC thread without mutex_ held.
  virtual void Ended(const grpc::Status& status) = 0;

  // Sends what there is to send. Call with mutex_ held after anything changed.
  void Advance() {
    if (writing_ || finished_) return;
    if (!broken_ && TakeNext(&message_)) {
      Open(/*message=*/true);
      writing_ = true;
      write_began_ = std::chrono::steady_clock::now();
      this->StartWrite(&message_);
    } else if (final_.has_value() && !dropping_) {
      Open(/*message=*/false);
      finished_ = true;
      this->Finish(*final_);
    }
  }

  // The call ends with this status once everything is sent; the first one counts. Call with mutex_
  // held.
  void End(grpc::Status status) {
    if (!final_.has_value()) final_ = std::move(status);
    Advance();
  }

  // Whether the client has not taken a message that is on its way since `oldest` or before. Call
  // with mutex_ held.
  bool Stuck(std::chrono::steady_clock::time_point oldest) const {
    return writing_ && !finished_ && !broken_ && write_began_ <= oldest;
  }

  // Ends the call with `status` although the client has not taken everything. `lock` holds mutex_
  // and is released in between: cancelling a call may call back.
  void Drop(grpc::Status status, grpc::CallbackServerContext* context,
            std::unique_lock<std::mutex>& lock) {
    final_ = std::move(status);
    broken_ = true;
    dropping_ = true;  // until then no Finish, so that the context is there
    lock.unlock();
    context->TryCancel();
    lock.lock();
    dropping_ = false;
    Advance();
  }

  bool ending() const { return final_.has_value(); }

  std::mutex mutex_;

 private:
  void Open(bool message) {
    if (!std::exchange(opened_, true)) Opening(message);
  }

  std::shared_ptr<StreamReactor> self_;
  Response message_;                   // on its way while writing_
  std::optional<grpc::Status> final_;  // set once
  bool opened_ = false;
  bool writing_ = false;
  std::chrono::steady_clock::time_point write_began_;  // while writing_
  bool broken_ = false;  // the client is gone: nothing more can be written
  bool dropping_ = false;
  bool finished_ = false;
};

}  // namespace ripplekv
