#include "client/config_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/bad_value.h"
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

std::string NoSections(absl::string_view section) {
  return absl::StrCat("options stand at the top, without sections: no [", section, "]");
}

// What is wrong with lines that CLI11 would pass over; empty: nothing.
std::string ProblemOfLines(absl::string_view text) {
  absl::string_view open;  // key of a list that goes on
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!open.empty()) {
      if (absl::EndsWith(line, "]")) open = "";
      continue;
    }
    if (line.empty() || line.front() == '#') continue;
    if (line.front() == '[') return NoSections(line.substr(1, line.find(']') - 1));
    const size_t equals = line.find('=');
    if (equals == absl::string_view::npos || line.front() == ';') {
      return absl::StrCat("'", line, "' is not a line KEY = VALUE (comments begin with #)");
    }
    const absl::string_view key = absl::StripAsciiWhitespace(line.substr(0, equals));
    absl::string_view value = line.substr(equals + 1);
    value = absl::StripAsciiWhitespace(value.substr(0, value.find('#')));
    if (value.empty()) return absl::StrCat(key, ": has no value");
    if (value.front() == '[' && value.back() != ']') open = key;
  }
  return open.empty() ? "" : absl::StrCat(open, ": its list is not closed: ] is missing");
}

bool IsSet(const std::string& variable) {
  const char* value = std::getenv(variable.c_str());
  return value != nullptr && *value != '\0';
}

// Why a file cannot be read.
std::string ReasonOf(const std::string& path) {
  struct stat found{};
  if (stat(path.c_str(), &found) != 0) return std::strerror(errno);
  if (S_ISDIR(found.st_mode)) return "it is a directory";
  std::FILE* const file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) return std::strerror(errno);
  std::fclose(file);
  return "it is no regular file";
}

}  // namespace

std::string FlagName(const CLI::Option& option) { return option.get_single_name(); }

std::shared_ptr<ConfigFile> ConfigFile::AddTo(CLI::App& app, const std::string& variable) {
  CLI::Option* option =
      app.set_config("--config", "",
                     "TOML file of options: lines such as KEY = VALUE, with the flags' names as "
                     "keys; flags and variables win");
  option->type_name("FILE")->envname(variable);
  if (IsSet(variable)) {
    // CLI11 reads the file before the environment.
    option->default_str(std::getenv(variable.c_str()))->required();
  }
  std::shared_ptr<ConfigFile> file(new ConfigFile(&app));
  app.config_formatter(file);
  return file;
}

std::vector<CLI::ConfigItem> ConfigFile::from_config(std::istream& input) const {
  const std::string text(std::istreambuf_iterator<char>(input), {});
  if (const std::string problem = ProblemOfLines(text); !problem.empty()) throw Refusal(problem);
  std::istringstream lines(text);
  std::vector<CLI::ConfigItem> items;
  std::set<std::string> seen;
  for (CLI::ConfigItem& item : CLI::ConfigTOML::from_config(lines)) {
    const CLI::Option& option = OptionOf(item);
    std::string problem = ProblemOf(item, option);
    if (!seen.insert(item.name).second) problem = "is given twice: must be given once";
    if (!problem.empty()) throw Refusal(absl::StrCat(item.name, ": ", problem));
    if (option.count() > 0 || IsSet(option.get_envname())) continue;
    item.inputs = {absl::StrJoin(item.inputs, ",")};
    taken_.insert("--" + FlagName(option));
    items.push_back(std::move(item));
  }
  return items;
}

const CLI::Option& ConfigFile::OptionOf(const CLI::ConfigItem& item) const {
  if (!item.parents.empty()) throw Refusal(NoSections(absl::StrJoin(item.parents, ".")));
  const CLI::Option* option = app_->get_option_no_throw("--" + item.name);
  if (option != nullptr && option->get_configurable()) return *option;
  std::vector<std::string> names;
  for (const CLI::Option* one : app_->get_options()) {
    if (one->get_configurable()) names.push_back(FlagName(*one));
  }
  const std::string nearest = NearestName(item.name, names);
  throw Refusal(absl::StrCat("there is no option ", item.name,
                             nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

CLI::ConfigError ConfigFile::Refusal(const std::string& problem) const {
  return CLI::ConfigError(absl::StrCat(Path(), ": ", problem));
}

std::string ConfigFile::Describe(const CLI::ParseError& error) const {
  if (error.get_name() == "FileError") return DescribeUnreadable();
  std::string problem = DescribeBadValue(error.get_name(), error.what());
  for (const std::string& name : taken_) {
    if (absl::StartsWith(problem, name + ":")) return absl::StrCat(Path(), ": ", problem);
  }
  return problem;
}

std::string ConfigFile::DescribeUnreadable() const {
  const CLI::Option& option = *app_->get_config_ptr();
  return absl::StrCat(option.count() > 0 ? "--config" : option.get_envname(), ": the file ", Path(),
                      " cannot be read: ", ReasonOf(Path()),
                      "; name a file of options that is there, or leave it out");
}

std::string ConfigFile::Path() const { return app_->get_config_ptr()->as<std::string>(); }

}  // namespace ripplekv
