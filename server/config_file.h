#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

namespace ripplekv {

// The type name of options that take several values; all others take one.
inline constexpr char kListTypeName[] = "LIST";

// Reads the file of an app's config option: TOML without sections, a flag's name without dashes and
// its value a line. Values that flags or variables of the environment give are left out: those win.
// Throws CLI::ConfigError for what the file must not hold.
class ConfigFile final : public CLI::ConfigTOML {
 public:
  // The app outlives it. Options that may stand in the file are those with a variable, the config
  // option's own excepted.
  explicit ConfigFile(const CLI::App* app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

  // What to put before an error of the app's parsing: "FILE: " where it is about a value of the
  // file, else nothing.
  std::string PlaceOf(const CLI::ParseError& error) const;

 private:
  // The option that a key names.
  const CLI::Option& OptionOf(const CLI::ConfigItem& item) const;
  std::string Path() const;

  const CLI::App* const app_;
  mutable std::set<std::string> taken_;  // names of options with their dashes
};

}  // namespace ripplekv
