#include "server/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/argmax.h"

namespace ripplekv {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

double UniformDraw(uint64_t seed, uint64_t step) {
  return static_cast<double>(Mix(Mix(seed) + step) >> 11) * 0x1p-53;
}

uint64_t MakeSeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

Sampler::Sampler(const SamplingParams& params, uint64_t seed, int vocab,
                 absl::Span<const int32_t> prompt)
    : params_(params), seed_(seed) {
  work_.resize(static_cast<size_t>(vocab));
  if (params_.repetition_penalty != 1) {
    seen_.assign(static_cast<size_t>(vocab), 0);
    for (int32_t id : prompt) {
      if (seen_[static_cast<size_t>(id)]) continue;
      seen_[static_cast<size_t>(id)] = 1;
      penalised_.push_back(id);
    }
  }
}

void Sampler::Accept(int32_t token) {
  ++step_;
  ++counts_[token];
  if (!seen_.empty() && !seen_[static_cast<size_t>(token)]) {
    seen_[static_cast<size_t>(token)] = 1;
    penalised_.push_back(token);
  }
}

int32_t Sampler::Sample(absl::Span<const float> logits, absl::Span<const int32_t> banned) {
  if (params_.temperature == 0 && penalised_.empty() && params_.presence_penalty == 0 &&
      params_.frequency_penalty == 0 && params_.logit_bias.empty() && banned.empty()) {
    return static_cast<int32_t>(ArgMax(logits.data(), static_cast<int64_t>(logits.size())).index);
  }
  std::copy(logits.begin(), logits.end(), work_.begin());
  for (int32_t id : penalised_) {
    double& x = work_[static_cast<size_t>(id)];
    x = x > 0 ? x / params_.repetition_penalty : x * params_.repetition_penalty;
  }
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0) {
    for (const auto& [id, count] : counts_) {
      work_[static_cast<size_t>(id)] -=
          params_.presence_penalty + params_.frequency_penalty * static_cast<double>(count);
    }
  }
  for (const auto& [id, bias] : params_.logit_bias) work_[static_cast<size_t>(id)] += bias;
  for (int32_t id : banned)
    work_[static_cast<size_t>(id)] = -std::numeric_limits<double>::infinity();

  if (params_.temperature == 0) {
    return static_cast<int32_t>(std::max_element(work_.begin(), work_.end()) - work_.begin());
  }

  candidates_.clear();
  for (size_t id = 0; id < work_.size(); ++id) {
    if (work_[id] == -std::numeric_limits<double>::infinity()) continue;
    candidates_.push_back({work_[id], static_cast<int32_t>(id)});
  }
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + params_.top_k, candidates_.end(),
                     Better);
    candidates_.resize(static_cast<size_t>(params_.top_k));
  }
  if (params_.top_p < 1) KeepTopP();

  const double best = std::min_element(candidates_.begin(), candidates_.end(), Better)->logit;
  weights_.clear();
  double total = 0;
  for (const Candidate& c : candidates_) {
    double weight = std::exp((c.logit - best) / params_.temperature);
    if (weight < params_.min_p) weight = 0;
    weights_.push_back(weight);
    total += weight;
  }
  double left = UniformDraw(seed_, static_cast<uint64_t>(step_)) * total;
  size_t last = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (weights_[i] == 0) continue;
    last = i;
    left -= weights_[i];
    if (left < 0) break;
  }
  return candidates_[last].id;
}

void Sampler::KeepTopP() {
  const double best = std::min_element(candidates_.begin(), candidates_.end(), Better)->logit;
  double total = 0;
  for (const Candidate& c : candidates_) total += std::exp((c.logit - best) / params_.temperature);
  // The answer is mostly a few tokens: sort a growing head instead of the whole vocabulary.
  double mass = 0;
  for (size_t sorted = 0, head = 64; sorted < candidates_.size(); head *= 8) {
    head = std::min(head, candidates_.size());
    const auto begin = candidates_.begin() + static_cast<ptrdiff_t>(sorted);
    const auto end = candidates_.begin() + static_cast<ptrdiff_t>(head);
    if (end != candidates_.end()) std::nth_element(begin, end, candidates_.end(), Better);
    std::sort(begin, end, Better);
    for (; sorted < head; ++sorted) {
      mass += std::exp((candidates_[sorted].logit - best) / params_.temperature);
      if (mass >= params_.top_p * total) {
        candidates_.resize(sorted + 1);
        return;
      }
    }
  }
}

double LogSumExp(absl::Span<const float> logits) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - best);
  return best + std::log(sum);
}

TokenLogprob Logprobs(absl::Span<const float> logits, int32_t token, int top) {
  const double log_sum = LogSumExp(logits);
  TokenLogprob result;
  result.token = token;
  result.logprob = static_cast<float>(logits[static_cast<size_t>(token)] - log_sum);
  // A sorted list of the best so far: `top` is at most 20.
  const size_t wanted = std::min(static_cast<size_t>(top), logits.size());
  for (size_t id = 0; id < logits.size() && wanted > 0; ++id) {
    if (result.top.size() == wanted && logits[id] <= result.top.back().second) continue;
    auto place = std::upper_bound(result.top.begin(), result.top.end(), logits[id],
                                  [](float x, const auto& entry) { return x > entry.second; });
    result.top.insert(place, {static_cast<int32_t>(id), logits[id]});
    if (result.top.size() > wanted) result.top.pop_back();
  }
  for (auto& entry : result.top) entry.second = static_cast<float>(entry.second - log_sum);
  return result;
}

}  // namespace ripplekv
