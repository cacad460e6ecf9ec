#pragma once

#include <bit>
#include <cmath>
#include <vector>

namespace ripplekv {

/// What HadamardRow is to give, by the matrix: (-1)^(bits that i and j share) / sqrt(n).
inline std::vector<double> SlowHadamardRow(const std::vector<double>& x) {
  std::vector<double> out = x;
  size_t first = 0;
  for (const size_t n : {64, 32}) {
    for (; first + n <= x.size(); first += n) {
      for (size_t i = 0; i < n; ++i) {
        double sum = 0;
        for (size_t j = 0; j < n; ++j)
          sum += x[first + j] * (std::popcount(i & j) % 2 == 0 ? 1 : -1);
        out[first + i] = sum / std::sqrt(static_cast<double>(n));
      }
    }
  }
  return out;
}

}  // namespace ripplekv
