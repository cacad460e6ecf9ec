#include "model/gguf_cursor.h"

#include <bit>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ripplekv {

static_assert(std::endian::native == std::endian::little, "GGUF's numbers are copied as they are");

absl::StatusOr<bool> GgufCursor::ReadBool() {
  const uint64_t start = position_;
  uint8_t value = 0;
  if (absl::Status s = Read(&value, "bool"); !s.ok()) return s;
  if (value > 1) return Invalid(start, absl::StrFormat("a bool is 0 or 1, not %d", value));
  return value == 1;
}

absl::Status GgufCursor::ReadString(std::string* text, const char* what, uint64_t min,
                                    uint64_t max) {
  const uint64_t start = position_;
  uint64_t length = 0;
  if (absl::Status s = Read(&length, what); !s.ok()) return s;
  if (length > left()) {
    return Invalid(start, absl::StrFormat("the %s has a length of %d bytes, but only %d are left "
                                          "in the file",
                                          what, length, left()));
  }
  if (length < min || length > max) {
    return Invalid(start, absl::StrFormat("the %s has a length of %d bytes, allowed are %d to %d",
                                          what, length, min, max));
  }
  text->assign(reinterpret_cast<const char*>(bytes_.data() + position_), length);
  position_ += length;
  return absl::OkStatus();
}

absl::Status GgufCursor::Invalid(uint64_t offset, absl::string_view message) const {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s, at offset %d: %s", subject_, offset, message));
}

absl::Status GgufCursor::Unsupported(uint64_t offset, absl::string_view message) const {
  return absl::UnimplementedError(
      absl::StrFormat("%s, at offset %d: %s", subject_, offset, message));
}

absl::Status GgufCursor::Truncated(const char* what, uint64_t size) const {
  return Invalid(position_, absl::StrFormat("the file ends within the %s (%d of its %d bytes are "
                                            "left): it is truncated",
                                            what, left(), size));
}

std::string GgufCursor::Printable(absl::string_view text) {
  constexpr size_t kMaxShown = 80;
  if (text.size() <= kMaxShown) return absl::CHexEscape(text);
  return absl::StrCat(absl::CHexEscape(text.substr(0, kMaxShown)), "...");
}

}  // namespace ripplekv
