#include "client/cli/help.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

constexpr int kIndent = 2;
constexpr int kDescriptionColumn = 30;
constexpr int kMinDescriptionColumns = 30;

}  // namespace

std::string HelpFormatter::Entry(const std::string& name, const std::string& description) const {
  const std::string margin(kDescriptionColumn, ' ');
  const int room = std::max(width_ - kDescriptionColumn, kMinDescriptionColumns);
  std::string text = std::string(kIndent, ' ') + name;
  // A long name has a line of its own.
  if (Columns(text) > kDescriptionColumn - 2) {
    text += "\n" + margin;
  } else {
    text += std::string(kDescriptionColumn - Columns(text), ' ');
  }
  int column = 0;
  for (const std::string& word :
       std::vector<std::string>(absl::StrSplit(description, ' ', absl::SkipEmpty()))) {
    if (column > 0 && column + 1 + Columns(word) > room) {
      text += "\n" + margin;
      column = 0;
    }
    absl::StrAppend(&text, column > 0 ? " " : "", word);
    column += (column > 0) + Columns(word);
  }
  return text + "\n";
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  std::string help = CLI::Formatter::make_help(app, name, mode);
  // One empty line between parts is enough.
  for (size_t at = 0; (at = help.find("\n\n\n", at)) != std::string::npos;) help.erase(at, 1);
  return help;
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string name = is_positional ? option->get_name(true) : option->get_name(false, true);
  for (size_t at = 0; (at = name.find(",--", at)) != std::string::npos; at += 2) {
    name.insert(at + 1, " ");
  }
  const bool takes_value = option->get_type_size() != 0;
  if (takes_value && !is_positional) absl::StrAppend(&name, " ", option->get_type_name());
  std::string description = option->get_description();
  if (option->get_required()) description += " (required)";
  std::vector<std::string> otherwise;
  if (!option->get_default_str().empty()) {
    otherwise.push_back(absl::StrCat("default ", option->get_default_str()));
  }
  if (!option->get_envname().empty()) {
    otherwise.push_back(absl::StrCat("or the environment's ", option->get_envname()));
  }
  if (!otherwise.empty()) {
    absl::StrAppend(&description, " (", absl::StrJoin(otherwise, ", "), ")");
  }
  return Entry(name, description);
}

std::string HelpFormatter::make_group(std::string group, bool is_positional,
                                      std::vector<const CLI::Option*> options) const {
  std::string text = absl::StrCat("\n", group, ":\n");
  for (const CLI::Option* option : options) text += make_option(option, is_positional);
  return text;
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return Entry(command->get_name(), command->get_description());
}

CLI::Validator Quiet(CLI::Validator validator) {
  validator.description("");
  return validator;
}

CLI::Validator OneOf(std::vector<std::string> names) {
  return Quiet(CLI::Validator(
      [names = std::move(names)](std::string& text) -> std::string {
        if (std::find(names.begin(), names.end(), text) != names.end()) return "";
        return absl::StrCat("'", text, "' is not one of ", absl::StrJoin(names, ", "));
      },
      "names"));
}

CLI::Validator Seconds(bool may_be_zero) {
  return Quiet(CLI::Validator(
      [may_be_zero](std::string& text) -> std::string {
        double seconds = 0;
        if (absl::SimpleAtod(text, &seconds) && std::isfinite(seconds) &&
            (seconds > 0 || (may_be_zero && seconds == 0))) {
          return "";
        }
        return absl::StrCat("'", text, "' is not a number of seconds ",
                            may_be_zero ? "from 0" : "above 0");
      },
      "seconds"));
}

CLI::Validator RequestId() {
  return Quiet(CLI::Validator(
      [](std::string& text) -> std::string {
        bool plain = text.size() <= 128;
        for (const char c : text) plain = plain && c > ' ' && c < 0x7f;
        if (plain) return "";
        return absl::StrCat("is not a request id (", text.size(),
                            " bytes): must be 1 to 128 printable ASCII characters without spaces");
      },
      "id"));
}

CLI::Validator NotNegative() {
  return Quiet(CLI::Validator(
      [](std::string& text) -> std::string {
        return absl::StartsWith(text, "-") ? absl::StrCat("'", text, "' is below 0") : "";
      },
      "not negative"));
}

CLI::Validator Decimal() {
  return Quiet(CLI::Validator(
      [](std::string& text) -> std::string {
        absl::string_view digits = text;
        absl::ConsumePrefix(&digits, "-");
        if (digits.size() < 2 || digits[0] != '0' || !absl::ascii_isalnum(digits[1])) return "";
        return absl::StrCat("'", text, "' is not a decimal number: must not begin with 0");
      },
      "decimal"));
}

}  // namespace ripplekv
