#include "client/unknown_argument.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

// Damerau-Levenshtein distance, each pair of neighbours swapped once at most.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string NearestName(const std::string& name, const std::vector<std::string>& candidates) {
  std::string nearest;
  size_t fewest = name.size() / 3 + 1;
  for (const std::string& candidate : candidates) {
    const size_t edits = EditDistance(name, candidate);
    if (edits < fewest) {
      fewest = edits;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string DescribeUnknownArgument(const std::vector<std::string>& unexpected,
                                    const std::vector<std::string>& options) {
  for (const std::string& argument : unexpected) {
    if (argument.size() < 2 || argument[0] != '-') continue;
    const std::string name = argument.substr(0, argument.find('='));
    const std::string nearest = NearestName(name, options);
    return absl::StrCat("there is no option ", name,
                        nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"));
  }
  return absl::StrCat("'", unexpected.front(), "' is not expected: no option takes it");
}

}  // namespace ripplekv
