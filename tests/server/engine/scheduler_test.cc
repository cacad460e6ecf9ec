#include "server/engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace ripplekv {
namespace {

using ::testing::ElementsAre;

// Prompts going through the scheduler's hands, one layer of fixed work at a time, in slices.
class Simulation {
 public:
  struct Prompt {
    int64_t id, work;             // work: of all layers
    std::vector<int64_t> layers;  // work of those that are left, the next one last
    int slices;                   // a layer
    int slice = 0;                // of the layer at work
    int64_t admitted_at = 0;      // the clock is the work done so far
    int64_t finished_at = -1;
    int64_t largest_layer = 0;  // among the prompts at work at any time while it was
    bool always_shortest = true;

    int64_t left() const { return std::accumulate(layers.begin(), layers.end(), int64_t{0}); }
  };

  void Admit(int layers, int64_t layer_work, int slices) {
    Admit(std::vector<int64_t>(static_cast<size_t>(layers), layer_work), slices);
  }
  // Scores have layers and rows of logits of different work.
  void Admit(std::vector<int64_t> layers, int slices) {
    Prompt prompt;
    prompt.id = next_id_++;
    prompt.work = std::accumulate(layers.begin(), layers.end(), int64_t{0});
    prompt.layers = std::move(layers);
    prompt.slices = slices;
    prompt.admitted_at = clock_;
    prompts_.push_back(std::move(prompt));
  }

  SchedulerView View() const {
    SchedulerView view;
    for (const Prompt& p : prompts_) {
      view.sliced.push_back({.id = p.id,
                             .remaining_work = p.left(),
                             .layer_work = p.layers.back(),
                             .holds_layer = p.slice > 0});
    }
    return view;
  }

  bool Step() {
    if (prompts_.empty()) return false;
    const SchedulerView view = View();
    int64_t largest = 0;
    int64_t least = prompts_[0].left();
    for (const Prompt& p : prompts_) {
      largest = std::max(largest, *std::max_element(p.layers.begin(), p.layers.end()));
      least = std::min(least, p.left());
    }
    for (Prompt& p : prompts_) {
      p.largest_layer = std::max(p.largest_layer, largest);
      const bool first = std::none_of(prompts_.begin(), prompts_.end(), [&](const Prompt& q) {
        return q.id < p.id && q.left() <= p.left();
      });
      if (p.left() > least || !first) p.always_shortest = false;
    }
    const StepPlan plan = scheduler_.Next(view);
    EXPECT_EQ(plan.slice, StepPlan::Slice::kTask);
    const auto it = std::find_if(prompts_.begin(), prompts_.end(),
                                 [&](const Prompt& p) { return p.id == plan.task; });
    EXPECT_NE(it, prompts_.end());
    for (const Prompt& p : prompts_) {
      EXPECT_TRUE(p.slice == 0 || p.id == it->id) << "a layer was left before its end";
    }
    if (++it->slice == it->slices) {
      it->slice = 0;
      clock_ += it->layers.back();
      it->layers.pop_back();
      if (it->layers.empty()) {
        it->finished_at = clock_;
        finished.push_back(*it);
        if (it == prompts_.begin() && prompts_.size() > 1) became_oldest_[prompts_[1].id] = clock_;
        prompts_.erase(it);
      }
    }
    return true;
  }

  // When a prompt became the oldest.
  int64_t OldestSince(const Prompt& p) const {
    const auto it = became_oldest_.find(p.id);
    return it == became_oldest_.end() ? p.admitted_at : it->second;
  }
  bool WasOldest(const Prompt& p) const { return became_oldest_.contains(p.id) || p.id == 0; }
  size_t at_work() const { return prompts_.size(); }
  int64_t clock() const { return clock_; }

  std::vector<Prompt> finished;

 private:
  Scheduler scheduler_;
  std::vector<Prompt> prompts_;
  std::map<int64_t, int64_t> became_oldest_;
  int64_t next_id_ = 0;
  int64_t clock_ = 0;
};

TEST(SchedulerTest, NothingToDoIsAnEmptyPlan) { EXPECT_TRUE(Scheduler().Next({}).empty()); }

TEST(SchedulerTest, EveryTurnDecodesAllAndRunsOneSlice) {
  Scheduler scheduler;
  SchedulerView view;
  view.decoding = {2, 5, 9};
  view.sliced = {{.id = 3, .remaining_work = 10, .layer_work = 1},
                 {.id = 4, .remaining_work = 10, .layer_work = 1}};
  const StepPlan plan = scheduler.Next(view);
  EXPECT_THAT(plan.decode, ElementsAre(2, 5, 9));
  EXPECT_EQ(plan.slice, StepPlan::Slice::kTask);
  EXPECT_EQ(plan.task, 3) << "ties go to the older one";
}

TEST(SchedulerTest, AShortPromptPassesALongOne) {
  Simulation simulation;
  simulation.Admit(30, 1000, 33);
  for (int i = 0; i < 40; ++i) simulation.Step();  // into its second layer
  const int64_t then = simulation.clock();
  simulation.Admit(30, 10, 2);
  while (simulation.finished.empty()) simulation.Step();
  EXPECT_EQ(simulation.finished[0].id, 1);
  // The layer under way, then its own 300 units; the long one is owed less than a layer.
  EXPECT_LE(simulation.clock() - then, 1000 + 300);
  while (simulation.Step()) {
  }
}

// The bounds that the header promises, over random arrivals.
TEST(SchedulerTest, NobodyWaitsLongerThanPromised) {
  std::mt19937 random(3);
  int shortest = 0, oldest = 0;
  for (int run = 0; run < 400; ++run) {
    Simulation simulation;
    int arrivals = 60;
    while (simulation.at_work() > 0 || arrivals > 0) {
      if (arrivals > 0 && simulation.at_work() < 16 && random() % 8 == 0) {
        --arrivals;
        const int64_t layer_work = 1 + static_cast<int64_t>(random() % (random() % 2 ? 20 : 2000));
        std::vector<int64_t> layers(1 + random() % 30, layer_work);
        if (random() % 4 == 0) {
          for (int64_t& work : layers) work = 1 + static_cast<int64_t>(random() % 2000);
        }
        simulation.Admit(std::move(layers), 1 + static_cast<int>(random() % 4));
      }
      simulation.Step();
    }
    for (const auto& p : simulation.finished) {
      if (p.always_shortest) {
        ++shortest;
        EXPECT_LE(p.finished_at - p.admitted_at, 2 * p.work + 3 * p.largest_layer);
      }
      if (simulation.WasOldest(p)) {
        ++oldest;
        EXPECT_LE(p.finished_at - simulation.OldestSince(p), 2 * p.work + 2 * p.largest_layer);
      }
    }
  }
  EXPECT_GT(shortest, 1000);
  EXPECT_GT(oldest, 1000);
}

TEST(SchedulerTest, BackgroundHasAllTheTimeWhenThereIsNothingElse) {
  Scheduler scheduler;
  SchedulerView background;
  background.background = true;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(scheduler.Next(background).slice, StepPlan::Slice::kBackground);
    scheduler.Report(0, 0.05);
  }
}

TEST(SchedulerTest, BackgroundHasHalfOfTheTimeUnderLoad) {
  for (const double step : {0.004, 0.012, 0.04, 0.1}) {
    Scheduler scheduler;
    SchedulerView view;
    view.decoding = {1};
    view.background = true;
    double background = 0, decode = 0;
    int in_a_row = 0;
    for (int i = 0; i < 1000; ++i) {
      const StepPlan plan = scheduler.Next(view);
      EXPECT_THAT(plan.decode, ElementsAre(1)) << "decoding never waits for two slices";
      decode += step;
      if (plan.slice == StepPlan::Slice::kBackground) {
        background += 0.05;
        in_a_row = 0;
        scheduler.Report(step, 0.05);
      } else {
        ++in_a_row;
        scheduler.Report(step, 0);
      }
      EXPECT_LE(in_a_row * step, 0.05 + 1e-9);
    }
    // Slices as long as the steps between them; where a step is longer than a slice, one each.
    EXPECT_LE(background, decode + 0.1);
    EXPECT_GE(background,
              std::min(1.0, 0.05 / (0.05 + step)) * decode * 0.9 * (step > 0.05 ? 0.5 : 1));
  }
}

TEST(SchedulerTest, BackgroundSharesWithPromptsToo) {
  Scheduler scheduler;
  SchedulerView view;
  view.background = true;
  view.sliced = {{.id = 1, .remaining_work = 1000, .layer_work = 10}};
  int background = 0;
  for (int i = 0; i < 1000; ++i) {
    if (scheduler.Next(view).slice == StepPlan::Slice::kBackground) {
      ++background;
      scheduler.Report(0, 0.03);
    } else {
      scheduler.Report(0.01, 0);
    }
  }
  EXPECT_NEAR(background, 250, 5) << "every slice of 30 ms after three of 10 ms";
}

}  // namespace
}  // namespace ripplekv
