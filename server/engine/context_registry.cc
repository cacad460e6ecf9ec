#include "server/engine/context_registry.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "server/engine/too_large.h"

namespace ripplekv {
namespace {

/// 128 random bits: ids are not to be guessed.
std::string RandomId() {
  std::array<unsigned char, 16> bits;
  ssize_t got;
  do {
    got = getrandom(bits.data(), bits.size(), 0);
  } while (got < 0 && errno == EINTR);
  // So few bytes come at once or not at all.
  if (got != static_cast<ssize_t>(bits.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom gives no context id");
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id;
  for (unsigned char byte : bits) {
    id.push_back(kDigits[byte >> 4]);
    id.push_back(kDigits[byte & 15]);
  }
  return id;
}

absl::Status NotFound(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("there is no context '", id, "'"));
}

}  // namespace

struct ContextEntry {
  ContextInfo info;  // constant once added
  // Guarded by the state's mutex.
  int users = 0;
  Clock::time_point last_used;
  bool removed = false;
};

struct ContextRegistryState {
  using Key = std::pair<std::string, std::string>;  // owner, id
  using Contexts = std::map<Key, std::shared_ptr<ContextEntry>>;

  explicit ContextRegistryState(const ContextRegistryOptions& o) : options(o) {}

  // The context can no longer be used. Its entry lives on in leases and in `removable`.
  Contexts::iterator Remove(Contexts::iterator it) {
    ContextEntry& entry = *it->second;
    entry.removed = true;
    if (entry.users == 0) {
      MakeRemovable(entry);
    } else {
      removed_in_use_bytes += entry.info.page_bytes;
    }
    visible_bytes -= entry.info.page_bytes;
    return visible.erase(it);
  }
  void MakeRemovable(const ContextEntry& entry) {
    removable.push_back(entry.info.id);
    removable_bytes += entry.info.page_bytes;
  }
  bool Expired(const ContextEntry& entry, Clock::time_point now) const {
    return options.idle > Clock::duration::zero() && entry.users == 0 &&
           now - entry.last_used >= options.idle;
  }
  bool ExpireIdle(Clock::time_point now) {
    const int64_t before = expired;
    for (auto it = visible.begin(); it != visible.end();) {
      if (Expired(*it->second, now)) {
        ++expired;
        it = Remove(it);
      } else {
        ++it;
      }
    }
    return expired > before;
  }
  bool EvictOne() {
    auto oldest = visible.end();
    for (auto it = visible.begin(); it != visible.end(); ++it) {
      if (it->second->users > 0) continue;
      if (oldest == visible.end() || it->second->last_used < oldest->second->last_used) oldest = it;
    }
    if (oldest == visible.end()) return false;
    ++evicted;
    Remove(oldest);
    return true;
  }
  ContextInfo InfoOf(const ContextEntry& entry) const {
    ContextInfo info = entry.info;
    info.users = entry.users;
    info.last_used = entry.last_used;
    return info;
  }
  // What a new promise cannot have even where all that is unused goes.
  int64_t PinnedBytes() const {
    int64_t bytes = reserved_bytes + removed_in_use_bytes;
    for (const auto& [key, entry] : visible) {
      if (entry->users > 0) bytes += entry->info.page_bytes;
    }
    return bytes;
  }
  // Without the mutex.
  void Notify() {
    std::function<void()> call;
    {
      std::lock_guard lock(mutex);
      if (!on_removable) return;
      call = on_removable;
      ++calls;
    }
    call();
    std::lock_guard lock(mutex);
    if (--calls == 0) no_calls.notify_all();
  }

  const ContextRegistryOptions options;
  mutable std::mutex mutex;
  std::function<void()> on_removable;
  std::function<Clock::time_point()> clock;
  int calls = 0;  // of on_removable, under way
  std::condition_variable no_calls;
  Contexts visible;
  std::vector<std::string> removable;
  int64_t visible_bytes = 0;
  int64_t removed_in_use_bytes = 0;
  int64_t removable_bytes = 0;
  int64_t reserved_bytes = 0;
  int64_t evicted = 0;
  int64_t expired = 0;
};

ContextLease::ContextLease(std::shared_ptr<ContextRegistryState> state,
                           std::shared_ptr<ContextEntry> entry)
    : state_(std::move(state)), entry_(std::move(entry)) {}

ContextLease& ContextLease::operator=(ContextLease&& other) noexcept {
  if (this != &other) {
    Drop();
    state_ = std::move(other.state_);
    entry_ = std::move(other.entry_);
  }
  return *this;
}

ContextLease::~ContextLease() { Drop(); }

void ContextLease::Drop() {
  if (entry_ == nullptr) return;
  const Clock::time_point now = state_->clock();
  bool last = false;
  {
    std::lock_guard lock(state_->mutex);
    entry_->last_used = std::max(entry_->last_used, now);
    last = --entry_->users == 0;
    if (last && entry_->removed) {
      state_->removed_in_use_bytes -= entry_->info.page_bytes;
      state_->MakeRemovable(*entry_);
    }
  }
  entry_ = nullptr;
  if (last) state_->Notify();
  state_ = nullptr;
}

const ContextInfo& ContextLease::info() const { return entry_->info; }

ContextSlot::ContextSlot(std::shared_ptr<ContextRegistryState> state, int64_t bytes)
    : state_(std::move(state)), bytes_(bytes) {}

ContextSlot::ContextSlot(ContextSlot&& other) noexcept
    : state_(std::move(other.state_)), bytes_(std::exchange(other.bytes_, 0)) {}

ContextSlot& ContextSlot::operator=(ContextSlot&& other) noexcept {
  if (this != &other) {
    GiveBack();
    state_ = std::move(other.state_);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

ContextSlot::~ContextSlot() { GiveBack(); }

void ContextSlot::GiveBack() {
  if (state_ == nullptr) return;
  std::lock_guard lock(state_->mutex);
  state_->reserved_bytes -= std::exchange(bytes_, 0);
}

ContextRegistry::ContextRegistry(const ContextRegistryOptions& options,
                                 std::function<void()> on_removable,
                                 std::function<Clock::time_point()> clock)
    : state_(std::make_shared<ContextRegistryState>(options)) {
  state_->on_removable = std::move(on_removable);
  state_->clock = std::move(clock);
}

ContextRegistry::~ContextRegistry() {
  std::unique_lock lock(state_->mutex);
  state_->on_removable = nullptr;
  state_->no_calls.wait(lock, [&] { return state_->calls == 0; });
}

absl::StatusOr<ContextSlot> ContextRegistry::Reserve(int64_t bytes, Clock::time_point now) {
  assert(bytes >= 0);
  ContextRegistryState& s = *state_;
  std::lock_guard lock(s.mutex);
  if (bytes > s.options.memory_bytes) {
    return TooLarge(
        absl::StrCat("the context needs ", bytes, " bytes of KV pages, all contexts may take ",
                     s.options.memory_bytes, ": keep less (retention) or raise --context-memory"));
  }
  const int64_t pinned = s.PinnedBytes();
  if (bytes > s.options.memory_bytes - pinned) {
    absl::Status status = absl::ResourceExhaustedError(
        absl::StrCat("the context needs ", bytes, " bytes of KV pages; of the ",
                     s.options.memory_bytes, " that all contexts may take, ", pinned,
                     " are in use: try again later or raise --context-memory"));
    status.SetPayload(kRetryLater, absl::Cord());
    return status;
  }
  const auto fits = [&] {
    return s.visible_bytes + s.removed_in_use_bytes + s.reserved_bytes + bytes <=
           s.options.memory_bytes;
  };
  if (!fits()) s.ExpireIdle(now);
  while (!fits()) {
    const bool evicted = s.EvictOne();
    assert(evicted);
    if (!evicted) break;
  }
  s.reserved_bytes += bytes;
  return ContextSlot(state_, bytes);
}

std::string ContextRegistry::Add(ContextSlot slot, const std::string& owner, ContextInfo info,
                                 Clock::time_point now) {
  assert(slot.state_ == state_ && info.page_bytes >= 0 && info.page_bytes <= slot.bytes_);
  auto entry = std::make_shared<ContextEntry>();
  entry->info = std::move(info);
  std::string& id = entry->info.id;
  id = id.empty() ? RandomId() : absl::StrCat(id, ".", RandomId());
  entry->info.users = 0;
  entry->info.last_used = now;
  entry->last_used = now;
  std::lock_guard lock(state_->mutex);
  state_->visible.emplace(ContextRegistryState::Key(owner, entry->info.id), entry);
  state_->visible_bytes += entry->info.page_bytes;
  state_->reserved_bytes -= std::exchange(slot.bytes_, 0);
  slot.state_ = nullptr;
  return entry->info.id;
}

bool ContextRegistry::EvictOne(Clock::time_point now) {
  std::lock_guard lock(state_->mutex);
  return state_->ExpireIdle(now) || state_->EvictOne();
}

void ContextRegistry::ExpireIdle(Clock::time_point now) {
  std::lock_guard lock(state_->mutex);
  state_->ExpireIdle(now);
}

std::vector<std::string> ContextRegistry::TakeRemoved() {
  std::lock_guard lock(state_->mutex);
  state_->removable_bytes = 0;
  return std::exchange(state_->removable, {});
}

std::optional<Clock::time_point> ContextRegistry::NextExpiry() const {
  std::lock_guard lock(state_->mutex);
  std::optional<Clock::time_point> next;
  if (state_->options.idle <= Clock::duration::zero()) return next;
  for (const auto& [key, entry] : state_->visible) {
    if (entry->users > 0) continue;
    const Clock::time_point expiry = entry->last_used + state_->options.idle;
    if (!next.has_value() || expiry < *next) next = expiry;
  }
  return next;
}

ContextStats ContextRegistry::stats() const {
  std::lock_guard lock(state_->mutex);
  ContextStats stats;
  stats.contexts = static_cast<int64_t>(state_->visible.size());
  stats.bytes = state_->visible_bytes + state_->removed_in_use_bytes + state_->removable_bytes;
  stats.reserved_bytes = state_->reserved_bytes;
  stats.evicted = state_->evicted;
  stats.expired = state_->expired;
  return stats;
}

absl::StatusOr<ContextLease> ContextRegistry::Use(const std::string& owner, const std::string& id,
                                                  Clock::time_point now) {
  std::lock_guard lock(state_->mutex);
  const auto it = state_->visible.find({owner, id});
  if (it == state_->visible.end()) return NotFound(id);
  ContextEntry& entry = *it->second;
  ++entry.users;
  entry.last_used = std::max(entry.last_used, now);
  return ContextLease(state_, it->second);
}

absl::StatusOr<ContextInfo> ContextRegistry::Get(const std::string& owner,
                                                 const std::string& id) const {
  std::lock_guard lock(state_->mutex);
  const auto it = state_->visible.find({owner, id});
  if (it == state_->visible.end()) return NotFound(id);
  return state_->InfoOf(*it->second);
}

std::vector<ContextInfo> ContextRegistry::List(const std::string& owner,
                                               const std::string& after_id, int64_t limit) const {
  std::lock_guard lock(state_->mutex);
  std::vector<ContextInfo> list;
  for (auto it = state_->visible.upper_bound({owner, after_id});
       it != state_->visible.end() && it->first.first == owner &&
       static_cast<int64_t>(list.size()) < limit;
       ++it) {
    list.push_back(state_->InfoOf(*it->second));
  }
  return list;
}

absl::Status ContextRegistry::Delete(const std::string& owner, const std::string& id) {
  bool unused = false;
  {
    std::lock_guard lock(state_->mutex);
    const auto it = state_->visible.find({owner, id});
    if (it == state_->visible.end()) return NotFound(id);
    unused = it->second->users == 0;
    state_->Remove(it);
  }
  if (unused) state_->Notify();
  return absl::OkStatus();
}

}  // namespace ripplekv
