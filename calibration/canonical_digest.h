#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace ripplekv {

// SHA-256 over named fields in an unambiguous encoding, for identities that must not depend on how
// a file or message happens to be written. The bytes hashed are, for the domain and then each field
// in order of the calls, all integers little-endian:
//   u32 length of the name, the name, u8 kind, u64 length of the value, the value
// kind 0 text: its bytes; 1 signed and 2 unsigned integer: 8 bytes; 3 double: its IEEE 754 bits, 8
// bytes, -0 as 0; 4 list of doubles: 8 bytes each. The domain is a field named "domain" of kind 0.
class CanonicalDigest {
 public:
  explicit CanonicalDigest(std::string_view domain);
  ~CanonicalDigest();

  void AddText(std::string_view name, std::string_view value);
  void AddInt(std::string_view name, int64_t value);
  void AddUint(std::string_view name, uint64_t value);
  void AddDouble(std::string_view name, double value);
  void AddDoubles(std::string_view name, absl::Span<const double> values);

  // 64 lower-case hex digits. Call once, last.
  std::string Hex();

 private:
  class Hash;
  void Add(std::string_view name, uint8_t kind, std::string_view value);

  std::unique_ptr<Hash> hash_;
};

// Whether `text` is 64 lower-case hex digits.
bool IsSha256Hex(const std::string& text);

}  // namespace ripplekv
