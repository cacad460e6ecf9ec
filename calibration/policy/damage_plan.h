#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "calibration/policy/damage_curve.h"
#include "kernels/kv_type.h"

namespace ripplekv {

// One way to store a layer's rows.
struct StorageOption {
  KvTypes types;
  int64_t row_cost = 1;  // of one row in one layer, in the unit of the budget; at least 1
  // damage[l]: what storing all rows of layer l so costs, nats; empty: nothing.
  std::vector<double> damage;
};

// Rows and the storage option of each layer.
struct DamagePlan {
  std::vector<int64_t> rows;
  std::vector<size_t> option;  // index into the options
  int64_t cost = 0;            // sum of rows * row_cost: at most the budget
};

// Of every layer's floor in the cheapest option.
int64_t LeastCost(int64_t layers, int64_t floor, absl::Span<const StorageOption> options);
// Of all rows in the dearest.
int64_t MostCost(int64_t layers, int64_t tokens, absl::Span<const StorageOption> options);

// Spends a budget where the measured marginal damage per unit is greatest.
//
// A layer that keeps b rows of a prompt of T, stored in option o, is taken to cost
// D_l(b / T) + damage_o[l]: that damages of layers, and of dropping and of rounding rows, add up is
// an assumption. Prompts of other lengths than the measured have the measured curve by the share of
// rows. Per layer the choices (16 numbers of rows between neighbouring kept points of the curve,
// the floor and T, each in every option) are reduced to their lower convex hull over cost; from the
// cheapest choices on, the steps of all hulls are taken in the order of damage saved per unit, ties
// to the lower layer. Of a step that stays in its option, as many rows as the budget holds are
// taken, and equal steps that do not all fit share evenly; one that changes the option is taken
// whole or not at all, and the layer stays there. What is then left buys rows evenly, in the
// options chosen.
//
// So what is left at last is less than a row of any layer that could have another. With one option
// of cost 1 the budget is spent exactly and more budget never gives a layer fewer rows.
//
// floor in [1, tokens]; options: at least one; budget at least LeastCost.
DamagePlan SpendOnDamage(absl::Span<const DamageCurve> curves, int64_t tokens, int64_t floor,
                         absl::Span<const StorageOption> options, int64_t budget);

}  // namespace ripplekv
