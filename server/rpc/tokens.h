#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

// The bearer tokens that a server takes, and whose each is. Only their digests are kept.
class Tokens {
 public:
  // One "NAME TOKEN" a line; empty lines and those that begin with '#' are left out. A name is 1 to
  // 64, a token 16 to 512 printable ASCII characters without spaces; each at most once.
  // INVALID_ARGUMENT begins with "line N" and never holds a token; also where there is none at all.
  static absl::StatusOr<Tokens> Parse(absl::string_view text);

  // Whose token that is; null where nobody's. How long it takes does not depend on what of it is
  // right, nor on whose it is.
  const std::string* NameOf(absl::string_view token) const;

  size_t size() const { return entries_.size(); }

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Entry {
    std::string name;
    Digest digest;
  };
  static Digest DigestOf(absl::string_view token);

  std::vector<Entry> entries_;
};

}  // namespace ripplekv
