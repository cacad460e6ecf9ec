#pragma once

#include <cstddef>
#include <vector>

namespace ripplekv {

// Indices of the lower convex hull of points with strictly ascending x, the first and the last
// among them. Slopes between neighbours, as (y2 - y1) / (x2 - x1) computes them, rise strictly: of
// points on one line only the outer ones stay.
template <typename X, typename Y>
std::vector<size_t> LowerHull(size_t points, X&& x, Y&& y) {
  const auto slope = [&](size_t a, size_t b) { return (y(b) - y(a)) / (x(b) - x(a)); };
  std::vector<size_t> hull;
  for (size_t i = 0; i < points; ++i) {
    while (hull.size() > 1 && slope(hull[hull.size() - 2], hull.back()) >= slope(hull.back(), i)) {
      hull.pop_back();
    }
    hull.push_back(i);
  }
  return hull;
}

}  // namespace ripplekv
