#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace ripplekv {

// The type name of options that take several values; all others take one.
inline constexpr char kListTypeName[] = "LIST";

// An option's long name without dashes, of one that --help does not show too (CLI11's get_name() is
// empty then).
std::string FlagName(const CLI::Option& option);

// Reads the file of an app's config option: TOML without sections, a flag's name without dashes and
// its value a line. Values that flags or variables of the environment give are left out: those win.
// Throws CLI::ConfigError for what the file must not hold.
class ConfigFile final : public CLI::ConfigTOML {
 public:
  // Adds the option --config, which `variable` may give as well, to the app, which outlives the
  // result. All of the app's own options may stand in the file but those that are not configurable;
  // --help, --version and --config itself never are.
  static std::shared_ptr<ConfigFile> AddTo(CLI::App& app, const std::string& variable);

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

  // The file gave that option (named without dashes) its value.
  bool Gave(const std::string& name) const { return taken_.contains("--" + name); }

  // An error of the app's parsing in a sentence, which names the file where it is about the file or
  // a value in it.
  std::string Describe(const CLI::ParseError& error) const;

 private:
  explicit ConfigFile(const CLI::App* app) : app_(app) {}
  // The option that a key names.
  const CLI::Option& OptionOf(const CLI::ConfigItem& item) const;
  CLI::ConfigError Refusal(const std::string& problem) const;
  std::string Path() const;
  std::string DescribeUnreadable() const;

  const CLI::App* const app_;
  mutable std::set<std::string> taken_;  // names of options with their dashes
};

}  // namespace ripplekv
