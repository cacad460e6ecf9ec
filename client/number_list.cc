#include "client/number_list.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ripplekv {
namespace {

constexpr size_t kQuotedBytes = 40;

std::string Quote(absl::string_view text) {
  return absl::StrCat("'", text.substr(0, kQuotedBytes), text.size() > kQuotedBytes ? "..." : "",
                      "'");
}

template <typename Number, typename Parse>
absl::StatusOr<std::vector<Number>> ParseList(absl::string_view text, absl::string_view what,
                                              Parse parse) {
  absl::string_view list = absl::StripAsciiWhitespace(text);
  const bool opens = !list.empty() && list.front() == '[';
  const bool closes = list.size() > 1 && list.back() == ']';
  if (opens != closes) {
    return absl::InvalidArgumentError("the list has one bracket without the other");
  }
  if (opens) list = list.substr(1, list.size() - 2);
  std::vector<Number> numbers;
  for (const absl::string_view word :
       absl::StrSplit(list, absl::ByAnyChar(", \t\r\n\v\f"), absl::SkipEmpty())) {
    Number number{};
    if (!parse(word, number)) {
      return absl::InvalidArgumentError(
          absl::StrCat("number ", numbers.size() + 1, " is ", Quote(word), ": not a ", what));
    }
    numbers.push_back(number);
  }
  if (numbers.empty()) return absl::InvalidArgumentError(absl::StrCat("there is no ", what));
  return numbers;
}

absl::StatusOr<std::vector<double>> SensitivitiesOfProfile(absl::string_view text) {
  const auto json =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  const auto error = [] {
    return absl::InvalidArgumentError(
        "not the JSON of a profile: expected {\"profile\": {\"layers\": [{\"mean_kl\": ...}]}}");
  };
  if (!json.is_object() || !json.contains("profile") || !json["profile"].is_object() ||
      !json["profile"].contains("layers") || !json["profile"]["layers"].is_array()) {
    return error();
  }
  std::vector<double> sensitivities;
  for (const auto& layer : json["profile"]["layers"]) {
    if (!layer.is_object() || !layer.contains("mean_kl") || !layer["mean_kl"].is_number()) {
      return error();
    }
    sensitivities.push_back(layer["mean_kl"].get<double>());
  }
  if (sensitivities.empty()) return error();
  return sensitivities;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseTokenIds(absl::string_view text) {
  return ParseList<int32_t>(text, "token id", [](absl::string_view word, int32_t& id) {
    return absl::SimpleAtoi(word, &id) && id >= 0;
  });
}

absl::StatusOr<std::vector<double>> ParseSensitivities(absl::string_view text) {
  if (!absl::StripLeadingAsciiWhitespace(text).empty() &&
      absl::StripLeadingAsciiWhitespace(text).front() == '{') {
    return SensitivitiesOfProfile(text);
  }
  return ParseList<double>(text, "sensitivity (a finite number of at least 0)",
                           [](absl::string_view word, double& value) {
                             return absl::SimpleAtod(word, &value) && std::isfinite(value) &&
                                    value >= 0;
                           });
}

}  // namespace ripplekv
