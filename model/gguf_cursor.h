#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ripplekv {

// Reads a GGUF file's bytes from front to back, never past their end. Errors name the subject (what
// is being read), the offset in the file and the broken rule.
class GgufCursor {
 public:
  explicit GgufCursor(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  // Starts each error from here on, e.g. "tensor 'output.weight'".
  void set_subject(std::string subject) { subject_ = std::move(subject); }

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  // A little-endian number; `what` names it in the error of a truncated file.
  template <typename T>
  absl::Status Read(T* value, const char* what) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    if (left() < sizeof(T)) return Truncated(what, sizeof(T));
    std::memcpy(value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return absl::OkStatus();
  }

  // A byte that is 0 or 1.
  absl::StatusOr<bool> ReadBool();

  // A length (8 bytes) from min to max and that many bytes.
  absl::Status ReadString(std::string* text, const char* what, uint64_t min, uint64_t max);

  // Errors at file offset `offset`: a broken file, and a file that only others can read.
  absl::Status Invalid(uint64_t offset, absl::string_view message) const;
  absl::Status Unsupported(uint64_t offset, absl::string_view message) const;

  // A name from the file as errors show it: escaped, and cut after 80 bytes.
  static std::string Printable(absl::string_view text);

 private:
  absl::Status Truncated(const char* what, uint64_t size) const;

  absl::Span<const std::byte> bytes_;
  uint64_t position_ = 0;
  std::string subject_ = "GGUF header";
};

}  // namespace ripplekv
