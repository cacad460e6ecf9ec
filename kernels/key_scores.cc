#include "kernels/key_scores.h"

#include <algorithm>
#include <atomic>
#include <cassert>

#include "kernels/isa_functions.h"

namespace ripplekv {
namespace {

/// Queries whose sums are taken together: a fixed number, so that the order of the sums is fixed.
constexpr int kPartQueries = 64;

int Parts(const KeyScoresArgs& args) { return (args.queries + kPartQueries - 1) / kPartQueries; }

constexpr int64_t kLineFloats = 16;

/// Of one thread: a block's scores, or a head's with the padding around them. Whole cache lines.
int64_t ScratchFloats(const KeyScoresArgs& args) {
  const int64_t floats = std::max(args.rows * kKeyScoresLanes, args.end + kKeyScoresMaxKernel);
  return (floats + kLineFloats - 1) / kLineFloats * kLineFloats;
}

/// scores [end] = the sums of a head's parts, divided and pooled. Each part: [end]; the first is
/// overwritten.
void FinishHead(const KeyScoresArgs& args, float* parts, float* padded, float* scores) {
  const int64_t end = args.end;
  for (int p = 1; p < Parts(args); ++p) {
    const float* const part = parts + p * end;
    for (int64_t u = 0; u < end; ++u) parts[u] += part[u];
  }
  if (args.divisor == KeyScoreDivisor::kCount) {
    int64_t u = 0;
    for (int query = 0; query < args.queries; ++query) {
      // Keys that this query sees, but not the one before it.
      const auto count = static_cast<float>(args.queries - query);
      for (; u < end && u <= args.positions[query]; ++u) parts[u] /= count;
    }
  }
  if (args.pooling == Pooling::kNone || args.kernel == 1) {
    std::copy(parts, parts + end, scores);
    return;
  }
  const bool max = args.pooling == Pooling::kMax;
  const int half = args.kernel / 2;
  std::fill(padded, padded + half, 0.0f);
  std::copy(parts, parts + end, padded + half);
  std::fill(padded + half + end, padded + 2 * half + end, 0.0f);
  std::copy(padded, padded + end, scores);
  for (int j = 1; j < args.kernel; ++j) {
    const float* const other = padded + j;
    if (max) {
      // Scores are at least 0: the padding is never more than what exists.
      for (int64_t u = 0; u < end; ++u) scores[u] = other[u] > scores[u] ? other[u] : scores[u];
    } else {
      for (int64_t u = 0; u < end; ++u) scores[u] += other[u];
    }
  }
  if (max) return;
  for (int64_t u = 0; u < end; ++u) scores[u] /= static_cast<float>(args.kernel);
}

/// Threads that have work.
int Slots(const KeyScoresArgs& args, int threads) {
  return std::min(threads, args.heads * Parts(args));
}

}  // namespace

int64_t KeyScoresWorkspaceFloats(const KeyScoresArgs& args, int threads) {
  return Slots(args, threads) * ScratchFloats(args) + int64_t{args.heads} * Parts(args) * args.end +
         kLineFloats;
}

void KeyScores(const KeyScoresArgs& args, ThreadPool* pool, Isa isa) {
  assert(args.queries >= 1 && args.end >= 1 && args.end <= args.rows);
  assert(args.rows <= kKeyScoresMaxRows && args.kernel <= kKeyScoresMaxKernel);
  const auto part_of = ForIsa(isa, isa_base::KeyScoresPart, isa_v3::KeyScoresPart,
                              isa_v4::KeyScoresPart, isa_v4dot::KeyScoresPart);
  const int parts = Parts(args);
  const int slots = Slots(args, pool == nullptr ? 1 : pool->threads());
  const auto misaligned = reinterpret_cast<uintptr_t>(args.workspace) / sizeof(float) % kLineFloats;
  float* const scratch = args.workspace + (kLineFloats - static_cast<int64_t>(misaligned));
  float* const sums = scratch + slots * ScratchFloats(args);  // [heads, parts, end]
  // Every thread takes items until none is left, in a scratch of its own.
  const auto for_items = [&](int64_t items, const auto& f) {
    std::atomic<int64_t> next = 0;
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
          f(item, scratch + slot * ScratchFloats(args));
        }
      }
    };
    if (pool == nullptr) return run(0, 1);
    pool->ParallelFor(slots, 1, run);
  };
  for_items(int64_t{args.heads} * parts, [&](int64_t item, float* own) {
    const int first = static_cast<int>(item % parts) * kPartQueries;
    part_of(args, static_cast<int>(item / parts), first,
            std::min(first + kPartQueries, args.queries), own, sums + item * args.end);
  });
  for_items(args.heads, [&](int64_t head, float* own) {
    FinishHead(args, sums + head * parts * args.end, own, args.scores + head * args.end);
  });
}

void MeanOverGroup(const float* scores, int heads, int kv_heads, int64_t positions, float* out) {
  const int group = heads / kv_heads;
  for (int h = 0; h < kv_heads; ++h) {
    const float* in = scores + static_cast<int64_t>(h) * group * positions;
    for (int64_t u = 0; u < positions; ++u) {
      float sum = in[u];
      for (int g = 1; g < group; ++g) sum += in[g * positions + u];
      out[h * positions + u] = sum / static_cast<float>(group);
    }
  }
}

}  // namespace ripplekv
