#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace ripplekv {

// The lines of a golden file of this directory, as words; comments (#) left out.
inline std::vector<std::vector<std::string>> ReadGoldenFile(const std::string& name) {
  std::ifstream stream(std::string(RIPPLEKV_SOURCE_DIR) + "/tests/calibration/policy/testdata/" +
                       name);
  std::vector<std::vector<std::string>> lines;
  for (std::string line; std::getline(stream, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::vector<std::string>& fields = lines.emplace_back();
    for (std::string word; words >> word;) fields.push_back(word);
  }
  return lines;
}

}  // namespace ripplekv
