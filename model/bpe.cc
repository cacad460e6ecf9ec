#include "model/bpe.h"

#include <algorithm>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "model/concat.h"

namespace ripplekv {
namespace {

using Candidate = BpeMerges::Scratch::Candidate;
using Symbol = BpeMerges::Scratch::Symbol;

constexpr int32_t kNone = -1;

// Heap order: the lowest rank on top, of equal ranks the leftmost.
bool Later(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

}  // namespace

absl::StatusOr<BpeMerges> BpeMerges::Create(absl::Span<const std::string> merges,
                                            const absl::flat_hash_map<std::string, int32_t>& ids) {
  BpeMerges made;
  made.merges_.reserve(merges.size());
  made.results_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto fail = [&](std::string_view why) {
      return absl::InvalidArgumentError(Concat("merge ", rank, " '", merges[rank], "' ", why));
    };
    const std::vector<std::string> parts = absl::StrSplit(merges[rank], ' ');
    if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
      return fail("is not two tokens with one space between them");
    }
    const auto left = ids.find(parts[0]);
    const auto right = ids.find(parts[1]);
    const auto merged = ids.find(parts[0] + parts[1]);
    if (left == ids.end() || right == ids.end() || merged == ids.end()) {
      return fail("joins or makes a token that the vocabulary does not have");
    }
    const Merge merge{static_cast<int32_t>(rank), merged->second};
    if (!made.merges_.emplace(PairKey(left->second, right->second), merge).second) {
      return fail("is listed twice");
    }
    made.results_.push_back(merged->second);
  }
  return made;
}

const BpeMerges::Merge* BpeMerges::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BpeMerges::Apply(absl::Span<const int32_t> input, Scratch& scratch,
                      std::vector<int32_t>& out) const {
  if (input.size() < 2) {
    out.insert(out.end(), input.begin(), input.end());
    return;
  }
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Candidate>& heap = scratch.heap;
  const int32_t count = static_cast<int32_t>(input.size());
  symbols.resize(input.size());
  heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols[i] = {input[i], i - 1, i + 1 < count ? i + 1 : kNone};
    if (i + 1 == count) break;
    if (const Merge* merge = Find(input[i], input[i + 1])) {
      heap.push_back({merge->rank, i, merge->merged});
    }
  }
  std::make_heap(heap.begin(), heap.end(), Later);
  const auto offer = [&](int32_t left) {
    if (left == kNone || symbols[left].next == kNone) return;
    if (const Merge* merge = Find(symbols[left].id, symbols[symbols[left].next].id)) {
      heap.push_back({merge->rank, left, merge->merged});
      std::push_heap(heap.begin(), heap.end(), Later);
    }
  };
  while (!heap.empty()) {
    const Candidate top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), Later);
    heap.pop_back();
    Symbol& left = symbols[top.position];
    // Stale when one of its symbols has been merged since: then another pair, so another rank,
    // stands here.
    if (left.id == kNone || left.next == kNone) continue;
    const Merge* merge = Find(left.id, symbols[left.next].id);
    if (merge == nullptr || merge->rank != top.rank) continue;
    Symbol& right = symbols[left.next];
    left.id = top.merged;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) symbols[left.next].previous = top.position;
    offer(left.previous);
    offer(top.position);
  }
  for (int32_t i = 0; i != kNone; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace ripplekv
