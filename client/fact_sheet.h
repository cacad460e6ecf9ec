#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/terminal.h"

namespace ripplekv {

// Labelled lines of short facts:
//   model   SmolLM2 · llama · 30 layers
//   memory  256 MiB
// Facts go on under the first one where a line is full; only a single fact that is longer than a
// line sticks out.
class FactSheet {
 public:
  // Empty facts are left out, and lines without facts too.
  void Add(absl::string_view label, std::vector<std::string> facts);

  // Each line ended by a line feed; labels dim.
  std::string Render(const Terminal& terminal) const;

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> lines_;
};

}  // namespace ripplekv
