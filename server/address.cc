#include "server/address.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ripplekv {

std::string Address::ToString() const {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  const auto error = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' is not an address: HOST:PORT, e.g. 127.0.0.1:50051 or [::1]:50051, with a "
                     "port of 0 to 65535"));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return error();
  absl::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const absl::string_view digits = text.substr(colon + 1);
  int port = 0;
  if (host.empty() || (!bracketed && absl::StrContains(host, ':')) || digits.empty() ||
      digits.size() > 5 || digits.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(digits, &port) || port > 65535) {
    return error();
  }
  return Address{std::string(host), port};
}

}  // namespace ripplekv
