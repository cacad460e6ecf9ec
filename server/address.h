#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

// A place to listen at.
struct Address {
  std::string host;  // without the brackets of an IPv6 address
  int port = 0;

  // "host:port", brackets around a host that holds ':'.
  std::string ToString() const;
  bool operator==(const Address&) const = default;
};

// "HOST:PORT", "[IPV6]:PORT". INVALID_ARGUMENT quotes the text and says what is accepted.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

}  // namespace ripplekv
