#include "calibration/policy/pyramid.h"

namespace ripplekv {

std::vector<double> PyramidShares(int64_t total, int layers, int64_t tokens, int window,
                                  double beta) {
  const double mean = static_cast<double>(total) / layers;
  const double base = mean - window;
  const auto length = static_cast<double>(tokens);
  if (base <= 0 || length < 2 * base || layers == 1) return std::vector<double>(layers, mean);
  double low = base / beta;
  double high = 2 * base - low;
  if (high >= length - window) {
    high = length - window;
    low = 2 * base - high;
  }
  std::vector<double> shares;
  shares.reserve(layers);
  for (int l = 0; l < layers; ++l)
    shares.push_back(window + high - l * (high - low) / (layers - 1));
  return shares;
}

}  // namespace ripplekv
