#include "client/fact_sheet.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/utf8.h"

namespace ripplekv {

void FactSheet::Add(absl::string_view label, std::vector<std::string> facts) {
  facts.erase(std::remove(facts.begin(), facts.end(), ""), facts.end());
  if (!facts.empty()) lines_.emplace_back(label, std::move(facts));
}

std::string FactSheet::Render(const Terminal& terminal) const {
  int labels = 0;
  for (const auto& [label, facts] : lines_) labels = std::max(labels, Columns(label));
  const std::string indent(labels + 2, ' ');
  const absl::string_view separator = terminal.separator();
  std::string sheet;
  for (const auto& [label, facts] : lines_) {
    absl::StrAppend(&sheet, terminal.Dim(label), std::string(labels + 2 - Columns(label), ' '));
    int column = labels + 2;
    for (size_t i = 0; i < facts.size(); ++i) {
      if (i > 0) {
        if (column + Columns(separator) + Columns(facts[i]) > terminal.width) {
          absl::StrAppend(&sheet, "\n", indent);
          column = labels + 2;
        } else {
          absl::StrAppend(&sheet, separator);
          column += Columns(separator);
        }
      }
      sheet += facts[i];
      column += Columns(facts[i]);
    }
    sheet += "\n";
  }
  return sheet;
}

}  // namespace ripplekv
