#include "server/kv/row_mass.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace ripplekv {

RowMass::RowMass(int kv_heads, int64_t capacity_rows)
    : kv_heads_(kv_heads),
      stride_(capacity_rows),
      step_(std::make_unique<float[]>(static_cast<size_t>(kv_heads * capacity_rows))),
      sum_(static_cast<size_t>(kv_heads * capacity_rows)),
      added_(static_cast<size_t>(kv_heads * capacity_rows)) {}

void RowMass::AddRows(int64_t begin, int64_t end, int32_t steps) {
  assert(begin >= 0 && begin <= end && end <= stride_);
  for (int h = 0; h < kv_heads_; ++h) {
    for (int64_t r = begin; r < end; ++r) {
      sum_[At(h, r)] = 0;
      added_[At(h, r)] = steps;
    }
  }
}

void RowMass::CommitStep(int64_t rows) {
  assert(rows <= stride_);
  for (int h = 0; h < kv_heads_; ++h) {
    for (int64_t r = 0; r < rows; ++r) sum_[At(h, r)] += step_[At(h, r)];
  }
}

float RowMass::Mean(int kv_head, int64_t row, int32_t steps) const {
  const int32_t seen = steps - added_[At(kv_head, row)];
  const float sum = sum_[At(kv_head, row)];
  return seen > 0 && sum > 0 ? sum / static_cast<float>(seen) : 0;
}

void RowMass::Move(int kv_head, int64_t from, int64_t to) {
  sum_[At(kv_head, to)] = sum_[At(kv_head, from)];
  added_[At(kv_head, to)] = added_[At(kv_head, from)];
}

std::vector<int64_t> ChooseByMass(absl::Span<const float> mean, int64_t keep, int64_t first,
                                  int64_t last) {
  const auto rows = static_cast<int64_t>(mean.size());
  assert(first >= 0 && last >= 0 && first + last <= keep && keep <= rows);
  std::vector<int64_t> kept(static_cast<size_t>(rows));
  std::iota(kept.begin(), kept.end(), 0);
  const auto begin = kept.begin() + first;
  const auto chosen = begin + (keep - first - last);
  const auto end = kept.end() - last;
  std::nth_element(begin, chosen, end, [&](int64_t a, int64_t b) {
    const float x = mean[static_cast<size_t>(a)], y = mean[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  std::sort(begin, chosen);
  kept.erase(chosen, end);
  return kept;
}

}  // namespace ripplekv
