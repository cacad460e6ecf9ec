#include "server/engine/context_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/engine/too_large.h"

namespace ripplekv {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Clock::time_point kStart = Clock::time_point(seconds(1000));

ContextInfo Info(int64_t bytes, int64_t tokens = 7) {
  ContextInfo info;
  info.tokens = tokens;
  info.page_bytes = bytes;
  return info;
}

std::string Make(ContextRegistry& registry, const std::string& owner, int64_t bytes,
                 Clock::time_point now) {
  auto slot = registry.Reserve(bytes, now);
  EXPECT_TRUE(slot.ok()) << slot.status();
  if (!slot.ok()) return "";
  return registry.Add(*std::move(slot), owner, Info(bytes), now);
}

TEST(ContextRegistryTest, IdsAreRandomAndInfoIsKept) {
  ContextRegistry registry({.memory_bytes = 1000});
  std::set<std::string> ids;
  for (int i = 0; i < 50; ++i) ids.insert(Make(registry, "a", 10, kStart));
  EXPECT_EQ(ids.size(), 50u);
  for (const std::string& id : ids) {
    EXPECT_EQ(id.size(), 32u);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
  }
  auto origin = std::make_shared<ContextOrigin>();
  ContextInfo info = Info(80, 123);
  info.layers = {{4, 40}, {5, 40}};
  info.kv_bytes = 60;
  info.full_kv_bytes = 600;
  info.origin = origin;
  info.plan_profile_id = "profile";
  info.created = std::chrono::system_clock::time_point(seconds(5));
  auto slot = registry.Reserve(100, kStart);
  ASSERT_TRUE(slot.ok());
  EXPECT_EQ(registry.stats().reserved_bytes, 100);
  const std::string id = registry.Add(*std::move(slot), "b", info, kStart + seconds(1));
  EXPECT_EQ(registry.stats().reserved_bytes, 0) << "what the context does not take is given back";
  EXPECT_EQ(registry.stats().bytes, 50 * 10 + 80);
  const auto got = registry.Get("b", id);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->id, id);
  EXPECT_EQ(got->tokens, 123);
  EXPECT_EQ(got->layers.size(), 2u);
  EXPECT_EQ(got->kv_bytes, 60);
  EXPECT_EQ(got->full_kv_bytes, 600);
  EXPECT_EQ(got->page_bytes, 80);
  EXPECT_EQ(got->origin, origin);
  EXPECT_EQ(got->plan_profile_id, "profile");
  EXPECT_EQ(got->created, info.created);
  EXPECT_EQ(got->last_used, kStart + seconds(1));
  EXPECT_EQ(got->users, 0);
}

TEST(ContextRegistryTest, AnotherOwnerSeesNothing) {
  ContextRegistry registry({.memory_bytes = 1000});
  const std::string mine = Make(registry, "me", 10, kStart);
  // The very message of an id that never was.
  const auto same_but = [](const absl::Status& status, const std::string& id) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    return std::string(status.message()).replace(status.message().find(id), id.size(), "ID");
  };
  const std::string unknown(32, '0');
  EXPECT_EQ(same_but(registry.Use("you", mine, kStart).status(), mine),
            same_but(registry.Use("me", unknown, kStart).status(), unknown));
  EXPECT_EQ(same_but(registry.Get("you", mine).status(), mine),
            same_but(registry.Get("me", unknown).status(), unknown));
  EXPECT_EQ(same_but(registry.Delete("you", mine), mine),
            same_but(registry.Delete("me", unknown), unknown));
  EXPECT_THAT(registry.List("you", "", 10), IsEmpty());
  EXPECT_THAT(registry.List("m", "", 10), IsEmpty());
  EXPECT_TRUE(registry.Use("me", mine, kStart).ok());
}

TEST(ContextRegistryTest, ListsInPages) {
  ContextRegistry registry({.memory_bytes = 1000});
  std::set<std::string> ids;
  for (int i = 0; i < 7; ++i) {
    ids.insert(Make(registry, "me", 1, kStart));
    Make(registry, "you", 1, kStart);
  }
  std::vector<std::string> listed;
  std::vector<size_t> sizes;
  std::string after;
  while (true) {
    const std::vector<ContextInfo> page = registry.List("me", after, 3);
    sizes.push_back(page.size());
    if (page.empty()) break;
    for (const ContextInfo& info : page) listed.push_back(info.id);
    after = page.back().id;
  }
  EXPECT_THAT(sizes, ElementsAre(3u, 3u, 1u, 0u));
  EXPECT_EQ(listed, std::vector<std::string>(ids.begin(), ids.end()));
}

TEST(ContextRegistryTest, EvictsTheLeastRecentlyUsedUntilItFits) {
  ContextRegistry registry({.memory_bytes = 100});
  const std::string a = Make(registry, "x", 30, kStart);
  const std::string b = Make(registry, "y", 30, kStart + seconds(1));
  const std::string c = Make(registry, "x", 30, kStart + seconds(2));
  ASSERT_TRUE(registry.Use("x", a, kStart + seconds(3)).ok());  // used and dropped
  auto slot = registry.Reserve(20, kStart + seconds(4));
  ASSERT_TRUE(slot.ok());
  EXPECT_THAT(registry.TakeRemoved(), ElementsAre(b));
  EXPECT_THAT(registry.TakeRemoved(), IsEmpty());
  EXPECT_FALSE(registry.Get("y", b).ok());
  EXPECT_EQ(registry.stats().evicted, 1);
  EXPECT_TRUE(registry.Reserve(20, kStart + seconds(4)).ok()) << "20 are left, and given back";
  auto both = registry.Reserve(80, kStart + seconds(4));
  ASSERT_TRUE(both.ok());
  EXPECT_THAT(registry.TakeRemoved(), ElementsAre(c, a));
  EXPECT_EQ(registry.stats().contexts, 0);
  EXPECT_EQ(registry.stats().reserved_bytes, 100);
}

TEST(ContextRegistryTest, ARefusalEvictsNothingAndSaysWhetherWaitingHelps) {
  ContextRegistry registry({.memory_bytes = 100});
  const std::string used = Make(registry, "x", 60, kStart);
  Make(registry, "x", 30, kStart);
  auto lease = registry.Use("x", used, kStart);
  ASSERT_TRUE(lease.ok());

  const absl::Status never = registry.Reserve(101, kStart).status();
  EXPECT_EQ(never.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(never.message()), HasSubstr("needs 101 bytes"));
  EXPECT_THAT(std::string(never.message()), HasSubstr("may take 100"));
  EXPECT_FALSE(never.GetPayload(kRetryLater).has_value());
  EXPECT_TRUE(never.GetPayload(kTooLarge).has_value());

  absl::Status later = registry.Reserve(41, kStart).status();
  EXPECT_EQ(later.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(later.message()), HasSubstr("60 are in use"));
  EXPECT_TRUE(later.GetPayload(kRetryLater).has_value());
  EXPECT_EQ(registry.stats().contexts, 2);
  EXPECT_THAT(registry.TakeRemoved(), IsEmpty());

  // A removed one counts as long as it is used, and not a moment longer.
  ASSERT_TRUE(registry.Delete("x", used).ok());
  later = registry.Reserve(41, kStart).status();
  EXPECT_TRUE(later.GetPayload(kRetryLater).has_value());
  auto slot = registry.Reserve(40, kStart);
  EXPECT_TRUE(slot.ok());
  EXPECT_FALSE(registry.EvictOne(kStart)) << "the other one made room already";
  later = registry.Reserve(1, kStart).status();
  EXPECT_TRUE(later.GetPayload(kRetryLater).has_value()) << "a slot counts too";
  {
    const ContextLease ended = *std::move(lease);
  }
  EXPECT_TRUE(registry.Reserve(60, kStart).ok());
}

TEST(ContextRegistryTest, ADeletedContextLivesOnInItsLeases) {
  int calls = 0;
  ContextRegistry* looked_at = nullptr;
  ContextRegistry registry({.memory_bytes = 100}, [&] {
    ++calls;
    looked_at->stats();  // no lock is held
  });
  looked_at = &registry;
  const std::string id = Make(registry, "x", 60, kStart);
  auto first = registry.Use("x", id, kStart);
  auto second = registry.Use("x", id, kStart);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(registry.Get("x", id)->users, 2);
  ASSERT_TRUE(registry.Delete("x", id).ok());
  EXPECT_EQ(registry.Delete("x", id).code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(registry.Get("x", id).ok());
  EXPECT_FALSE(registry.Use("x", id, kStart).ok());
  EXPECT_THAT(registry.List("x", "", 10), IsEmpty());
  EXPECT_THAT(registry.TakeRemoved(), IsEmpty());
  EXPECT_EQ(registry.stats().bytes, 60);
  EXPECT_EQ(first->id(), id);
  EXPECT_EQ(first->info().tokens, 7);
  {
    ContextLease moved = *std::move(first);
    ContextLease again = std::move(moved);
    again = *std::move(second);  // drops one
    EXPECT_THAT(registry.TakeRemoved(), IsEmpty());
    EXPECT_EQ(again.id(), id);
    EXPECT_EQ(calls, 0);
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(registry.stats().bytes, 60) << "until it is taken";
  EXPECT_THAT(registry.TakeRemoved(), ElementsAre(id));
  EXPECT_EQ(registry.stats().bytes, 0);

  const std::string unused = Make(registry, "x", 60, kStart);
  ASSERT_TRUE(registry.Delete("x", unused).ok());
  EXPECT_EQ(calls, 2);
  EXPECT_THAT(registry.TakeRemoved(), ElementsAre(unused));
  EXPECT_EQ(registry.stats().evicted, 0);
}

TEST(ContextRegistryTest, IdleContextsExpireAndUsedOnesDoNot) {
  Clock::time_point clock = kStart;
  ContextRegistry registry({.memory_bytes = 100, .idle = seconds(10)}, {}, [&] { return clock; });
  EXPECT_EQ(registry.NextExpiry(), std::nullopt);
  const std::string a = Make(registry, "x", 10, kStart);
  const std::string b = Make(registry, "x", 10, kStart + seconds(5));
  EXPECT_EQ(registry.NextExpiry(), kStart + seconds(10));
  auto lease = registry.Use("x", a, kStart + seconds(1));
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(registry.NextExpiry(), kStart + seconds(15));
  registry.ExpireIdle(kStart + seconds(15) - Clock::duration(1));
  EXPECT_EQ(registry.stats().contexts, 2);
  registry.ExpireIdle(kStart + seconds(15));
  EXPECT_THAT(registry.TakeRemoved(), ElementsAre(b));
  registry.ExpireIdle(kStart + seconds(1000));
  EXPECT_THAT(registry.TakeRemoved(), IsEmpty());
  EXPECT_EQ(registry.NextExpiry(), std::nullopt);
  // A long request ends: idle from then on.
  clock = kStart + seconds(2000);
  {
    const ContextLease ended = *std::move(lease);
  }
  EXPECT_EQ(registry.Get("x", a)->last_used, clock);
  EXPECT_EQ(registry.NextExpiry(), clock + seconds(10));
  EXPECT_TRUE(registry.EvictOne(clock + seconds(10)));
  EXPECT_THAT(registry.TakeRemoved(), ElementsAre(a));
  EXPECT_EQ(registry.stats().expired, 2);
  EXPECT_EQ(registry.stats().evicted, 0) << "it was idle too long anyway";
  EXPECT_FALSE(registry.EvictOne(clock));
}

TEST(ContextRegistryTest, LeasesAndSlotsMayOutliveTheRegistry) {
  int calls = 0;
  auto registry = std::make_unique<ContextRegistry>(ContextRegistryOptions{.memory_bytes = 100},
                                                    [&] { ++calls; });
  const std::string id = Make(*registry, "x", 10, kStart);
  auto lease = registry->Use("x", id, kStart);
  auto slot = registry->Reserve(5, kStart);
  ASSERT_TRUE(lease.ok() && slot.ok());
  registry.reset();
  EXPECT_EQ(lease->id(), id);
  {
    const ContextLease ended = *std::move(lease);
  }
  {
    const ContextSlot ended = *std::move(slot);
  }
  EXPECT_EQ(calls, 0);
}

/// What the registry should know, as a plain list.
struct ModelContext {
  std::string owner, id;
  int64_t bytes = 0;
  Clock::time_point last_used;
  int users = 0;
  bool removed = false;  // and, once unused, waiting to be taken
};

TEST(ContextRegistryTest, RandomLivesMatchAPlainModel) {
  int64_t refused = 0, evictions = 0, expiries = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return random() % n; };
    const int64_t memory = 200;
    const Clock::duration idle = seed % 3 == 0 ? seconds(0) : seconds(30);
    Clock::time_point now = kStart;
    ContextRegistry registry({.memory_bytes = memory, .idle = idle}, {}, [&] { return now; });
    std::vector<ModelContext> model;
    std::vector<std::pair<std::string, std::unique_ptr<ContextLease>>> leases;
    std::vector<ContextSlot> slots;
    std::vector<std::string> removable;  // in the order in which they became so
    int64_t evicted = 0, expired = 0;

    const auto remove = [&](ModelContext& context) {
      context.removed = true;
      if (context.users == 0) removable.push_back(context.id);
    };
    const auto promised = [&] {
      int64_t bytes = 0;
      for (const ContextSlot& slot : slots) bytes += slot.bytes();
      return bytes;
    };
    // Of contexts that are visible or in use, those that `counts` takes.
    const auto bytes_of = [&](auto counts) {
      int64_t bytes = 0;
      for (const ModelContext& context : model) bytes += counts(context) ? context.bytes : 0;
      return bytes;
    };
    const auto by_owner_and_id = [](const ModelContext* a, const ModelContext* b) {
      return std::pair(a->owner, a->id) < std::pair(b->owner, b->id);
    };
    const auto expire = [&] {
      std::vector<ModelContext*> old;
      for (ModelContext& context : model) {
        if (idle > seconds(0) && !context.removed && context.users == 0 &&
            context.last_used + idle <= now) {
          old.push_back(&context);
        }
      }
      std::sort(old.begin(), old.end(), by_owner_and_id);
      for (ModelContext* context : old) remove(*context);
      expired += static_cast<int64_t>(old.size());
      return !old.empty();
    };
    const auto evict = [&] {
      std::vector<ModelContext*> unused;
      for (ModelContext& context : model) {
        if (!context.removed && context.users == 0) unused.push_back(&context);
      }
      if (unused.empty()) return false;
      std::sort(unused.begin(), unused.end(), by_owner_and_id);
      std::stable_sort(unused.begin(), unused.end(),
                       [](const auto* a, const auto* b) { return a->last_used < b->last_used; });
      remove(*unused.front());
      ++evicted;
      return true;
    };
    const std::string owners[] = {"ann", "bob", ""};

    for (int step = 0; step < 400; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      now += seconds(below(4));
      const std::string owner = owners[below(3)];
      ModelContext* any = model.empty() ? nullptr : &model[below(uint32_t(model.size()))];
      switch (below(10)) {
        case 0:
        case 1: {
          const int64_t bytes = below(12) == 0 ? memory + 1 : below(90);
          const int64_t pinned =
              promised() + bytes_of([](const ModelContext& c) { return c.users > 0; });
          auto slot = registry.Reserve(bytes, now);
          ASSERT_EQ(slot.ok(), bytes + pinned <= memory) << slot.status();
          if (!slot.ok()) {
            ++refused;
            ASSERT_EQ(slot.status().GetPayload(kRetryLater).has_value(), bytes <= memory);
            break;
          }
          const auto fits = [&] {
            return bytes + promised() +
                       bytes_of([](const ModelContext& c) { return !c.removed || c.users > 0; }) <=
                   memory;
          };
          if (!fits()) expire();
          while (!fits()) ASSERT_TRUE(evict());
          slots.push_back(*std::move(slot));
          break;
        }
        case 2:
        case 3:
          if (!slots.empty()) {
            const int64_t bytes = below(uint32_t(slots.back().bytes() + 1));
            const std::string id = registry.Add(std::move(slots.back()), owner, Info(bytes), now);
            slots.pop_back();
            model.push_back({owner, id, bytes, now});
          }
          break;
        case 4:
          if (below(4) == 0 && !slots.empty()) slots.pop_back();
          break;
        case 5:
        case 6:
          if (any != nullptr) {
            const bool found = any->owner == owner && !any->removed;
            auto lease = registry.Use(owner, any->id, now);
            ASSERT_EQ(lease.ok(), found);
            ASSERT_EQ(registry.Get(owner, any->id).ok(), found);
            if (!found) break;
            ++any->users;
            any->last_used = now;
            ASSERT_EQ(lease->id(), any->id);
            leases.emplace_back(any->id, std::make_unique<ContextLease>(*std::move(lease)));
          }
          break;
        case 7:
          if (!leases.empty()) {
            const size_t which = below(uint32_t(leases.size()));
            for (ModelContext& context : model) {
              if (context.id != leases[which].first) continue;
              context.last_used = now;
              if (--context.users == 0 && context.removed) removable.push_back(context.id);
            }
            leases.erase(leases.begin() + static_cast<ptrdiff_t>(which));
          }
          break;
        case 8:
          if (any != nullptr && below(3) == 0) {
            const bool found = any->owner == owner && !any->removed;
            ASSERT_EQ(registry.Delete(owner, any->id).ok(), found);
            if (found) remove(*any);
          } else if (below(2) == 0) {
            registry.ExpireIdle(now);
            expire();
          } else if (below(6) == 0) {
            const bool done = registry.EvictOne(now);
            ASSERT_EQ(done, expire() || evict());
          }
          break;
        default: {
          ASSERT_EQ(registry.TakeRemoved(), removable);
          for (const std::string& id : removable) {
            model.erase(std::find_if(model.begin(), model.end(),
                                     [&](const ModelContext& c) { return c.id == id; }));
          }
          removable.clear();
        }
      }

      const ContextStats stats = registry.stats();
      ASSERT_EQ(stats.reserved_bytes, promised());
      ASSERT_EQ(stats.bytes, bytes_of([](const ModelContext&) { return true; }));
      ASSERT_LE(stats.reserved_bytes +
                    bytes_of([](const ModelContext& c) { return !c.removed || c.users > 0; }),
                memory);
      ASSERT_EQ(stats.evicted, evicted);
      ASSERT_EQ(stats.expired, expired);
      std::optional<Clock::time_point> next;
      int64_t visible = 0;
      std::map<std::string, const ModelContext*> mine;
      for (const ModelContext& context : model) {
        if (context.removed) continue;
        ++visible;
        if (context.owner == owner) mine[context.id] = &context;
        if (idle > seconds(0) && context.users == 0 &&
            (!next.has_value() || context.last_used + idle < *next)) {
          next = context.last_used + idle;
        }
      }
      ASSERT_EQ(stats.contexts, visible);
      ASSERT_EQ(registry.NextExpiry(), next);
      const std::vector<ContextInfo> list = registry.List(owner, "", 1000);
      ASSERT_EQ(list.size(), mine.size());
      auto expected = mine.begin();
      for (const ContextInfo& info : list) {
        ASSERT_EQ(info.id, expected->first);
        ASSERT_EQ(info.users, expected->second->users);
        ASSERT_EQ(info.last_used, expected->second->last_used);
        ASSERT_EQ(info.page_bytes, expected->second->bytes);
        ++expected;
      }
    }
    evictions += evicted;
    expiries += expired;
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(evictions, 100);
  EXPECT_GT(expiries, 100);
}

// One thread is the engine, the others use, list and delete; rows are never freed under a lease,
// and all of them are freed once.
TEST(ContextRegistryTest, ThreadsNeverLoseRowsThatTheyUse) {
  constexpr int kContexts = 100000;  // at most; fewer where the other threads get on well
  std::vector<std::atomic<int>> freed(kContexts);  // by ContextInfo::tokens
  std::atomic<bool> made_all{false};
  std::atomic<int> calls{0}, used{0};
  ContextRegistry registry({.memory_bytes = 100, .idle = std::chrono::microseconds(300)},
                           [&] { ++calls; });
  const std::string owners[] = {"ann", "bob"};

  std::vector<std::thread> users;
  for (uint32_t t = 0; t < 3; ++t) {
    users.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<ContextLease> held;
      while (!made_all) {
        const std::string& owner = owners[random() % 2];
        for (const ContextInfo& info : registry.List(owner, "", 5)) {
          if (random() % 8 == 0) registry.Delete(owner, info.id).IgnoreError();
          auto lease = registry.Use(owner, info.id, Clock::now());
          if (!lease.ok()) continue;
          ++used;
          EXPECT_EQ(lease->info().tokens, info.tokens);
          held.push_back(*std::move(lease));
        }
        for (const ContextLease& lease : held) {
          EXPECT_EQ(freed[static_cast<size_t>(lease.info().tokens)], 0) << "freed while in use";
        }
        if (held.size() > 4 || random() % 3 == 0) held.clear();
        std::this_thread::yield();
      }
    });
  }

  std::map<std::string, int64_t> rows;  // what the engine holds
  const auto free_removed = [&] {
    for (const std::string& id : registry.TakeRemoved()) {
      const auto it = rows.find(id);
      ASSERT_NE(it, rows.end()) << "named twice, or never made";
      ++freed[static_cast<size_t>(it->second)];
      rows.erase(it);
    }
  };
  int64_t made = 0;
  while (made < kContexts && (made < 600 || used < 600)) {
    auto slot = registry.Reserve(10 + made % 20, Clock::now());
    if (slot.ok()) {
      ContextInfo info = Info(slot->bytes(), made);
      const std::string id =
          registry.Add(*std::move(slot), owners[made % 2], std::move(info), Clock::now());
      rows[id] = made++;
    } else {
      EXPECT_TRUE(slot.status().GetPayload(kRetryLater).has_value());
      std::this_thread::yield();
    }
    if (made % 7 == 0) registry.EvictOne(Clock::now());
    registry.ExpireIdle(Clock::now());
    registry.NextExpiry();
    free_removed();
    const ContextStats stats = registry.stats();
    EXPECT_LE(stats.reserved_bytes, 100);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  made_all = true;
  for (std::thread& user : users) user.join();
  for (const std::string& owner : owners) {
    for (const ContextInfo& info : registry.List(owner, "", kContexts)) {
      EXPECT_EQ(info.users, 0);
      EXPECT_TRUE(registry.Delete(owner, info.id).ok());
    }
  }
  free_removed();
  EXPECT_TRUE(rows.empty());
  EXPECT_EQ(registry.stats().bytes, 0);
  for (int64_t i = 0; i < made; ++i) EXPECT_EQ(freed[static_cast<size_t>(i)], 1) << i;
  EXPECT_GE(used, 600);
  EXPECT_GT(calls, 0);
}

}  // namespace
}  // namespace ripplekv
