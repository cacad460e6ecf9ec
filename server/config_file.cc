#include "server/config_file.h"

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/unknown_argument.h"

namespace ripplekv {
namespace {

bool IsFlag(const CLI::Option& option) { return option.get_expected_max() == 0; }

// What is wrong with a key's values; empty: nothing that the option itself would not find.
std::string ProblemOf(const CLI::ConfigItem& item, const CLI::Option& option) {
  for (const std::string& value : item.inputs) {
    if (absl::StrContains(value, '\\')) {
      return absl::StrCat("'", value, "' holds a backslash: TOML's escapes are not read here");
    }
    if (value.find('"') == std::string::npos && !absl::StartsWith(value, "'")) continue;
    return absl::StrCat("'", value,
                        "' has quotes that do not match, or hold a '#' or another quote");
  }
  if (item.inputs.size() > 1 && option.get_type_name() != kListTypeName) {
    return absl::StrCat("has ", item.inputs.size(), " values: must be given once, with one");
  }
  if (IsFlag(option) && item.inputs.front() != "true" && item.inputs.front() != "false") {
    return absl::StrCat("'", item.inputs.front(), "' is not true or false");
  }
  return "";
}

bool InEnvironment(const CLI::Option& option) {
  const char* value = std::getenv(option.get_envname().c_str());
  return value != nullptr && *value != '\0';
}

}  // namespace

std::vector<CLI::ConfigItem> ConfigFile::from_config(std::istream& input) const {
  std::vector<CLI::ConfigItem> items;
  std::set<std::string> seen;
  for (CLI::ConfigItem& item : CLI::ConfigTOML::from_config(input)) {
    const CLI::Option& option = OptionOf(item);
    std::string problem = ProblemOf(item, option);
    if (!seen.insert(item.name).second) problem = "is given twice: must be given once";
    if (!problem.empty()) {
      throw CLI::ConfigError(absl::StrCat(Path(), ": ", item.name, ": ", problem));
    }
    if (option.count() > 0 || InEnvironment(option)) continue;
    item.inputs = {absl::StrJoin(item.inputs, ",")};
    taken_.insert(option.get_name());
    items.push_back(std::move(item));
  }
  return items;
}

const CLI::Option& ConfigFile::OptionOf(const CLI::ConfigItem& item) const {
  const auto refuse = [&](const std::string& problem) {
    return CLI::ConfigError(absl::StrCat(Path(), ": ", problem));
  };
  if (!item.parents.empty()) {
    throw refuse(absl::StrCat("options stand at the top, without sections: no [",
                              absl::StrJoin(item.parents, "."), "]"));
  }
  const CLI::Option* option = app_->get_option_no_throw("--" + item.name);
  if (option != nullptr && option->get_configurable() && !option->get_envname().empty()) {
    return *option;
  }
  std::vector<std::string> names;
  for (const CLI::Option* one : app_->get_options()) {
    if (!one->get_envname().empty() && one->get_configurable()) {
      names.push_back(one->get_name().substr(2));
    }
  }
  const std::string nearest = NearestName(item.name, names);
  throw refuse(absl::StrCat("there is no option ", item.name,
                            nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

std::string ConfigFile::PlaceOf(const CLI::ParseError& error) const {
  const std::string message = error.what();
  for (const std::string& name : taken_) {
    if (absl::StartsWith(message, name + ":")) return Path() + ": ";
  }
  return "";
}

std::string ConfigFile::Path() const { return app_->get_config_ptr()->as<std::string>(); }

}  // namespace ripplekv
