#include "calibration/policy/damage_plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <tuple>

#include "calibration/policy/convex_hull.h"

namespace ripplekv {
namespace {

constexpr int kPieces = 16;  // between neighbouring points of a curve

// What a layer may choose: a vertex of its hull.
struct Choice {
  int64_t cost = 0;
  double damage = 0;
  size_t option = 0;
  int64_t rows = 0;
};

// From one vertex of a layer's hull to the next.
struct Step {
  double gain = 0;  // damage saved per unit of cost
  size_t layer = 0;
  size_t from = 0;
};

std::vector<int64_t> RowCounts(const DamageCurve& curve, int64_t tokens, int64_t floor) {
  std::vector<int64_t> counts = {floor, tokens};
  double left = 0;
  for (const auto& [right, damage] : curve.points()) {
    for (int i = 0; i <= kPieces; ++i) {
      const double share = left + (right - left) * i / kPieces;
      const auto rows = static_cast<int64_t>(std::floor(share * static_cast<double>(tokens)));
      if (rows > floor && rows < tokens) counts.push_back(rows);
    }
    left = right;
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

// Cost rises and damage falls from one to the next, ever more slowly.
std::vector<Choice> HullOf(const DamageCurve& curve, size_t layer, int64_t tokens, int64_t floor,
                           absl::Span<const StorageOption> options) {
  const std::vector<int64_t> counts = RowCounts(curve, tokens, floor);
  std::vector<Choice> choices;
  choices.reserve(counts.size() * options.size());
  for (int64_t rows : counts) {
    const double kept = curve.At(static_cast<double>(rows) / static_cast<double>(tokens));
    for (size_t o = 0; o < options.size(); ++o) {
      const double stored = options[o].damage.empty() ? 0.0 : options[o].damage[layer];
      choices.push_back({rows * options[o].row_cost, kept + stored, o, rows});
    }
  }
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return std::tie(a.cost, a.damage, a.option) < std::tie(b.cost, b.damage, b.option);
  });
  choices.erase(std::unique(choices.begin(), choices.end(),
                            [](const Choice& a, const Choice& b) { return a.cost == b.cost; }),
                choices.end());
  std::vector<Choice> hull;
  for (size_t i : LowerHull(
           choices.size(), [&](size_t c) { return static_cast<double>(choices[c].cost); },
           [&](size_t c) { return choices[c].damage; })) {
    hull.push_back(choices[i]);
  }
  return hull;
}

// Layers that may take up to `room` more rows at `row_cost` each.
struct Buyer {
  size_t layer = 0;
  int64_t row_cost = 1;
  int64_t room = 0;
};

// Gives every buyer the same number of rows as far as room and `left` go, then one more each in
// their order. More `left` never gives one fewer where all costs are alike.
void BuyEvenly(std::vector<Buyer> buyers, int64_t& left, std::vector<int64_t>& rows) {
  const auto take = [&](Buyer& buyer, int64_t count) {
    rows[buyer.layer] += count;
    buyer.room -= count;
    left -= count * buyer.row_cost;
  };
  while (true) {
    std::erase_if(buyers, [&](const Buyer& b) { return b.room == 0 || b.row_cost > left; });
    if (buyers.empty()) return;
    int64_t round_cost = 0;
    int64_t room = buyers.front().room;
    for (const Buyer& buyer : buyers) {
      round_cost += buyer.row_cost;
      room = std::min(room, buyer.room);
    }
    const int64_t rounds = std::min(room, left / round_cost);
    if (rounds > 0) {
      for (Buyer& buyer : buyers) take(buyer, rounds);
      continue;
    }
    for (Buyer& buyer : buyers) {
      if (buyer.row_cost <= left) take(buyer, 1);
    }
  }
}

class Spender {
 public:
  Spender(absl::Span<const DamageCurve> curves, int64_t tokens, int64_t floor,
          absl::Span<const StorageOption> options, int64_t budget)
      : options_(options), tokens_(tokens), left_(budget), at_(curves.size(), 0) {
    for (size_t l = 0; l < curves.size(); ++l) {
      hulls_.push_back(HullOf(curves[l], l, tokens, floor, options));
      const std::vector<Choice>& hull = hulls_.back();
      for (size_t i = 0; i + 1 < hull.size(); ++i) {
        const double gain = (hull[i].damage - hull[i + 1].damage) /
                            static_cast<double>(hull[i + 1].cost - hull[i].cost);
        steps_.push_back({gain, l, i});
      }
      left_ -= hull.front().cost;
    }
    std::sort(steps_.begin(), steps_.end(), [](const Step& a, const Step& b) {
      return std::tie(b.gain, a.layer, a.from) < std::tie(a.gain, b.layer, b.from);
    });
  }

  DamagePlan Spend() {
    for (size_t first = 0, end = 0; first < steps_.size(); first = end) {
      while (end < steps_.size() && steps_[end].gain == steps_[first].gain) ++end;
      TakeAlike({steps_.data() + first, end - first});
    }
    DamagePlan plan;
    std::vector<Buyer> buyers;
    for (size_t l = 0; l < hulls_.size(); ++l) {
      const Choice& choice = hulls_[l][at_[l]];
      plan.rows.push_back(choice.rows + extra(l));
      plan.option.push_back(choice.option);
      buyers.push_back({l, options_[choice.option].row_cost, tokens_ - plan.rows[l]});
    }
    BuyEvenly(std::move(buyers), left_, plan.rows);
    for (size_t l = 0; l < hulls_.size(); ++l) {
      plan.cost += plan.rows[l] * options_[plan.option[l]].row_cost;
    }
    return plan;
  }

 private:
  int64_t extra(size_t layer) const { return extra_.empty() ? 0 : extra_[layer]; }
  const Choice& From(const Step& step) const { return hulls_[step.layer][step.from]; }
  const Choice& To(const Step& step) const { return hulls_[step.layer][step.from + 1]; }
  int64_t CostOf(const Step& step) const { return To(step).cost - From(step).cost; }

  // Steps of one gain, one a layer.
  void TakeAlike(absl::Span<const Step> steps) {
    std::vector<Buyer> partial;
    int64_t cost = 0;
    for (const Step& step : steps) {
      if (Reached(step)) cost += CostOf(step);
    }
    const bool all_fit = cost <= left_;
    for (const Step& step : steps) {
      if (!Reached(step)) continue;
      const bool same_option = From(step).option == To(step).option;
      if (all_fit || (!same_option && CostOf(step) <= left_)) {
        left_ -= CostOf(step);
        at_[step.layer] = step.from + 1;
      } else if (same_option) {
        partial.push_back(
            {step.layer, options_[From(step).option].row_cost, To(step).rows - From(step).rows});
      }
    }
    if (partial.empty()) return;
    if (extra_.empty()) extra_.assign(hulls_.size(), 0);
    BuyEvenly(std::move(partial), left_, extra_);
    // A layer that got its whole step goes on from its end.
    for (const Step& step : steps) {
      if (Reached(step) && extra_[step.layer] == To(step).rows - From(step).rows &&
          From(step).option == To(step).option) {
        extra_[step.layer] = 0;
        at_[step.layer] = step.from + 1;
      }
    }
  }

  // The layer took every step before this one, and no part of this one.
  bool Reached(const Step& step) const { return at_[step.layer] == step.from; }

  const absl::Span<const StorageOption> options_;
  const int64_t tokens_;
  int64_t left_;
  std::vector<std::vector<Choice>> hulls_;
  std::vector<Step> steps_;
  std::vector<size_t> at_;      // vertex that each layer has reached
  std::vector<int64_t> extra_;  // rows beyond it
};

}  // namespace

int64_t LeastCost(int64_t layers, int64_t floor, absl::Span<const StorageOption> options) {
  int64_t least = options.front().row_cost;
  for (const StorageOption& option : options) least = std::min(least, option.row_cost);
  return layers * floor * least;
}

int64_t MostCost(int64_t layers, int64_t tokens, absl::Span<const StorageOption> options) {
  int64_t most = options.front().row_cost;
  for (const StorageOption& option : options) most = std::max(most, option.row_cost);
  return layers * tokens * most;
}

DamagePlan SpendOnDamage(absl::Span<const DamageCurve> curves, int64_t tokens, int64_t floor,
                         absl::Span<const StorageOption> options, int64_t budget) {
  return Spender(curves, tokens, floor, options, budget).Spend();
}

}  // namespace ripplekv
