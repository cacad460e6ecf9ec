#pragma once

#include <string_view>
#include <vector>

namespace ripplekv {

// The files calibration/corpus/[0-9]*.txt, byte for byte, in byte order of their names. Generated
// by calibration/corpus/embed.cmake.
std::vector<std::string_view> EmbeddedCorpusTexts();

}  // namespace ripplekv
