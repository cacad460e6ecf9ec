#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace ripplekv {

/// out[i] = logits[i] - log(sum of exp(logits)), natural log, in fp32. out may be logits.
void LogSoftmax(const float* logits, int64_t n, float* out, Isa isa = BestIsa());

/// KL(P || Q) in nats of two rows of log-probabilities. Elements in fp32, sums of 1,024 elements in
/// 16 lanes, sums of those in double. Equal rows give exactly 0; rounding can make nearly equal
/// rows slightly negative.
double KlDivergence(const float* p_log_probs, const float* q_log_probs, int64_t n,
                    Isa isa = BestIsa());

/// The same from logits: the bits of LogSoftmax on both, then KlDivergence, without storing them.
double KlDivergenceOfLogits(const float* p_logits, const float* q_logits, int64_t n,
                            Isa isa = BestIsa());

}  // namespace ripplekv
