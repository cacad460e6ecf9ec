#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/request.h"

namespace ripplekv {

struct ContextRegistryOptions {
  int64_t memory_bytes = 0;   // for the pages of all contexts, and what is kept beside them
  Clock::duration idle = {};  // an unused context expires after it; zero: never
};

/// What is known of a context besides its rows.
struct ContextInfo {
  std::string id;  // 32 hexadecimal digits, after a key and a dot where its maker gave one
  int64_t tokens = 0;
  std::vector<LayerUsage> layers;  // one a layer
  int64_t kv_bytes = 0;            // of the kept rows
  int64_t full_kv_bytes = 0;       // if every position were kept
  int64_t page_bytes = 0;          // of its pages and what is kept beside: what the budget counts
  int users = 0;                   // leases that live
  std::chrono::system_clock::time_point created;
  Clock::time_point last_used;
  std::shared_ptr<const ContextOrigin> origin;
  std::string plan_profile_id;  // of the plan it was made with
};

struct ContextStats {
  int64_t contexts = 0;        // that can be used
  int64_t bytes = 0;           // of the pages of all whose rows are not known to be freed
  int64_t reserved_bytes = 0;  // promised by slots
  int64_t evicted = 0;         // to make room, since the start
  int64_t expired = 0;         // since the start
};

class ContextRegistry;
struct ContextRegistryState;
struct ContextEntry;

/// A context in use: its rows stay until the lease dies, even where the context is removed
/// meanwhile. Move-only; may be dropped on any thread, also after the registry.
class ContextLease {
 public:
  ContextLease(ContextLease&& other) noexcept = default;
  ContextLease& operator=(ContextLease&& other) noexcept;
  ~ContextLease();

  /// As it was added: users and last_used do not follow.
  const ContextInfo& info() const;
  const std::string& id() const { return info().id; }

 private:
  friend class ContextRegistry;
  ContextLease(std::shared_ptr<ContextRegistryState> state, std::shared_ptr<ContextEntry> entry);
  void Drop();
  std::shared_ptr<ContextRegistryState> state_;
  std::shared_ptr<ContextEntry> entry_;  // null: moved from
};

/// Bytes of the budget that are promised to a context in the making. Move-only; gives them back
/// unless Add takes them.
class ContextSlot {
 public:
  ContextSlot(ContextSlot&& other) noexcept;
  ContextSlot& operator=(ContextSlot&& other) noexcept;
  ~ContextSlot();
  int64_t bytes() const { return bytes_; }

 private:
  friend class ContextRegistry;
  ContextSlot(std::shared_ptr<ContextRegistryState> state, int64_t bytes);
  void GiveBack();
  std::shared_ptr<ContextRegistryState> state_;
  int64_t bytes_ = 0;
};

/// Which contexts there are, whose they are, who uses them and what they may take. Their rows live
/// with the engine, under the same ids. Thread-safe.
///
/// A context can be used from Add until it is deleted, evicted or expired: removed. It goes on
/// counting until its last lease is dropped and TakeRemoved has named it. Nothing is evicted or
/// expires while it is used. Owners see nothing of each other's contexts.
class ContextRegistry {
 public:
  /// `on_removable` (may be empty) is called, without a lock held and on the thread that caused it,
  /// when TakeRemoved, NextExpiry or a refused Reserve may have become different because of a
  /// Delete or a dropped lease: the engine looks again. It is never called after the registry's
  /// destructor, which waits for calls that are under way. `clock` tells when a lease is dropped.
  explicit ContextRegistry(const ContextRegistryOptions& options,
                           std::function<void()> on_removable = {},
                           std::function<Clock::time_point()> clock = Clock::now);
  ~ContextRegistry();
  ContextRegistry(const ContextRegistry&) = delete;
  ContextRegistry& operator=(const ContextRegistry&) = delete;

  // For the engine's thread.

  /// Promises bytes (>= 0). Where they do not fit, idle contexts expire and then unused ones of any
  /// owner are evicted, the least recently used first, until they do; the engine frees what
  /// TakeRemoved names before it fills the room. With nothing evicted, TooLarge: more than the
  /// whole budget; RESOURCE_EXHAUSTED with the payload kRetryLater: too much of it is in use.
  absl::StatusOr<ContextSlot> Reserve(int64_t bytes, Clock::time_point now);
  /// Makes the id, which is returned, of a key that stands in info.id, or none; the context can be
  /// used from now on. info.page_bytes is at most the slot's bytes; the rest is given back. info's
  /// id, users and last_used are set here.
  std::string Add(ContextSlot slot, const std::string& owner, ContextInfo info,
                  Clock::time_point now);
  /// Removes what is idle too long or, where nothing is, the least recently used unused context of
  /// any owner. False: all are in use, or there is none.
  bool EvictOne(Clock::time_point now);
  /// Removes the unused contexts whose last use is at least `idle` ago.
  void ExpireIdle(Clock::time_point now);
  /// Ids that were removed and are no longer in use, each once: their rows are to be freed now, and
  /// no longer count.
  std::vector<std::string> TakeRemoved();
  /// When ExpireIdle will next have something to do, as things stand.
  std::optional<Clock::time_point> NextExpiry() const;
  ContextStats stats() const;

  // For any thread.

  /// NOT_FOUND for an unknown id and, with the same message, for another owner's.
  absl::StatusOr<ContextLease> Use(const std::string& owner, const std::string& id,
                                   Clock::time_point now);
  absl::StatusOr<ContextInfo> Get(const std::string& owner, const std::string& id) const;
  /// The owner's contexts with ids above after_id, ascending, `limit` at most.
  std::vector<ContextInfo> List(const std::string& owner, const std::string& after_id,
                                int64_t limit) const;
  /// Nobody can use it from now on; who does, goes on. NOT_FOUND as above.
  absl::Status Delete(const std::string& owner, const std::string& id);

 private:
  std::shared_ptr<ContextRegistryState> state_;
};

}  // namespace ripplekv
