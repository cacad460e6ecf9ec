#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ripplekv {

// Byte-pair merges over token ids: the adjacent pair whose merge was listed first is joined, the
// leftmost of equal ones, until none is left (Sennrich et al., arXiv 1508.07909). n log n in the
// number of symbols. Immutable after Create, so safe to share between threads.
class BpeMerges {
 public:
  // merges[rank] is "left right"; left, right and their concatenation must be in `ids`.
  // INVALID_ARGUMENT names the rank and the merge that breaks this, or that is listed twice.
  static absl::StatusOr<BpeMerges> Create(absl::Span<const std::string> merges,
                                          const absl::flat_hash_map<std::string, int32_t>& ids);

  // Memory that Apply reuses between calls; one a thread at a time.
  struct Scratch {
    struct Symbol {
      int32_t id;
      int32_t previous, next;  // index of the neighbours, -1 at the ends
    };
    struct Candidate {
      int32_t rank;
      int32_t position;  // index of the left symbol
      int32_t merged;    // id that the pair becomes
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends to `out` what is left of `symbols` (at most 2^31 - 1 of them) after all merges.
  void Apply(absl::Span<const int32_t> symbols, Scratch& scratch, std::vector<int32_t>& out) const;

  // Ids that some merge makes.
  const std::vector<int32_t>& results() const { return results_; }

 private:
  struct Merge {
    int32_t rank, merged;
  };
  const Merge* Find(int32_t left, int32_t right) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;  // by left << 32 | right
  std::vector<int32_t> results_;                 // by rank
};

}  // namespace ripplekv
