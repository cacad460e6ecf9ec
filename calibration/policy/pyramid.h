#pragma once

#include <cstdint>
#include <vector>

namespace ripplekv {

// PyramidKV's shares of `total` positions of a prompt of `tokens` over the layers (arXiv
// 2406.02069; Zefan-Cai/KVCache-Factory, pyramidkv_utils.py), in real numbers that sum to `total`.
//
// With the mean C = total / layers, base = C - window, low = base / beta, high = 2 base - low;
// where high >= tokens - window: high = tokens - window, low = 2 base - high. Layer l keeps
// window + high - l (high - low) / (layers - 1). Uniform where base <= 0, tokens < 2 base or there
// is one layer.
//
// KVCache-Factory divides in integers, twice, which loses or adds rows; here nothing is rounded,
// and the integers made of these shares (ShareInProportion) keep the sum exactly, with floors.
//
// total in [layers, layers * tokens], window >= 0, beta >= 1. Every share is positive.
std::vector<double> PyramidShares(int64_t total, int layers, int64_t tokens, int window,
                                  double beta);

}  // namespace ripplekv
