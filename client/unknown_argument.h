#pragma once

#include <string>
#include <vector>

namespace ripplekv {

// What is wrong with a command line that has `unexpected` arguments (not empty), in their order:
// "there is no option --retentoin; did you mean --retention?". `options` are those there are, with
// their dashes. The first argument that looks like an option is named, since what follows it was
// meant for it.
std::string DescribeUnknownArgument(const std::vector<std::string>& unexpected,
                                    const std::vector<std::string>& options);

// The candidate with the fewest edits (a letter more, less or another, two swapped) from `name`, or
// empty where that is more than a third of it.
std::string NearestName(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace ripplekv
