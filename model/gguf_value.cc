#include "model/gguf_value.h"

#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"

namespace ripplekv {
namespace {

// A limit of this reader, 50 times the largest vocabularies: elements are widened to 8 (strings:
// 32) bytes each.
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 24;

enum class ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

template <typename Stored, typename T>
absl::StatusOr<GgufValue> ReadScalar(GgufCursor& cursor) {
  Stored value{};
  if (absl::Status s = cursor.Read(&value, "value"); !s.ok()) return s;
  return GgufValue(static_cast<T>(value));
}

// Before an allocation: that `count` elements of at least `size` bytes can be in the file.
absl::Status CheckFits(const GgufCursor& cursor, uint64_t count, uint64_t size) {
  if (count > cursor.left() / size) {
    return cursor.Invalid(
        cursor.position(),
        absl::StrFormat("an array of %d elements of %d bytes or more does not fit the %d bytes "
                        "left in the file",
                        count, size, cursor.left()));
  }
  if (count > kMaxArrayElements) {
    return cursor.Unsupported(cursor.position(),
                              absl::StrFormat("an array has %d elements, supported are up to %d",
                                              count, kMaxArrayElements));
  }
  return absl::OkStatus();
}

template <typename Stored, typename Element>
absl::StatusOr<GgufValue> ReadNumbers(GgufCursor& cursor, uint64_t count) {
  if (absl::Status s = CheckFits(cursor, count, sizeof(Stored)); !s.ok()) return s;
  std::vector<Element> elements(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t start = cursor.position();
    Stored stored{};
    if (absl::Status s = cursor.Read(&stored, "array"); !s.ok()) return s;
    if constexpr (std::is_same_v<Stored, uint64_t>) {
      if (stored > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return cursor.Unsupported(
            start,
            absl::StrFormat("array element %d is %d, supported are up to 2^63 - 1", i, stored));
      }
    }
    elements[i] = static_cast<Element>(stored);
  }
  return GgufValue(std::move(elements));
}

absl::StatusOr<GgufValue> ReadBools(GgufCursor& cursor, uint64_t count) {
  if (absl::Status s = CheckFits(cursor, count, 1); !s.ok()) return s;
  std::vector<bool> elements(count);
  for (uint64_t i = 0; i < count; ++i) {
    absl::StatusOr<bool> value = cursor.ReadBool();
    if (!value.ok()) return value.status();
    elements[i] = *value;
  }
  return GgufValue(std::move(elements));
}

absl::StatusOr<GgufValue> ReadStrings(GgufCursor& cursor, uint64_t count) {
  if (absl::Status s = CheckFits(cursor, count, sizeof(uint64_t)); !s.ok()) return s;
  std::vector<std::string> elements(count);
  for (std::string& element : elements) {
    if (absl::Status s = cursor.ReadString(&element, "string", 0, cursor.left()); !s.ok()) return s;
  }
  return GgufValue(std::move(elements));
}

absl::StatusOr<GgufValue> ReadArray(GgufCursor& cursor) {
  const uint64_t start = cursor.position();
  uint32_t type = 0;
  uint64_t count = 0;
  if (absl::Status s = cursor.Read(&type, "array's element type"); !s.ok()) return s;
  if (absl::Status s = cursor.Read(&count, "array's length"); !s.ok()) return s;
  switch (static_cast<ValueType>(type)) {
    case ValueType::kUint8:
      return ReadNumbers<uint8_t, int64_t>(cursor, count);
    case ValueType::kInt8:
      return ReadNumbers<int8_t, int64_t>(cursor, count);
    case ValueType::kUint16:
      return ReadNumbers<uint16_t, int64_t>(cursor, count);
    case ValueType::kInt16:
      return ReadNumbers<int16_t, int64_t>(cursor, count);
    case ValueType::kUint32:
      return ReadNumbers<uint32_t, int64_t>(cursor, count);
    case ValueType::kInt32:
      return ReadNumbers<int32_t, int64_t>(cursor, count);
    case ValueType::kUint64:
      return ReadNumbers<uint64_t, int64_t>(cursor, count);
    case ValueType::kInt64:
      return ReadNumbers<int64_t, int64_t>(cursor, count);
    case ValueType::kFloat32:
      return ReadNumbers<float, double>(cursor, count);
    case ValueType::kFloat64:
      return ReadNumbers<double, double>(cursor, count);
    case ValueType::kBool:
      return ReadBools(cursor, count);
    case ValueType::kString:
      return ReadStrings(cursor, count);
    case ValueType::kArray:
      return cursor.Unsupported(start, "arrays of arrays are not supported");
  }
  return cursor.Invalid(start,
                        absl::StrFormat("array element type %d is none of GGUF's (0 to 12)", type));
}

}  // namespace

absl::StatusOr<GgufValue> ReadGgufValue(GgufCursor& cursor, uint32_t type) {
  switch (static_cast<ValueType>(type)) {
    case ValueType::kUint8:
      return ReadScalar<uint8_t, uint64_t>(cursor);
    case ValueType::kInt8:
      return ReadScalar<int8_t, int64_t>(cursor);
    case ValueType::kUint16:
      return ReadScalar<uint16_t, uint64_t>(cursor);
    case ValueType::kInt16:
      return ReadScalar<int16_t, int64_t>(cursor);
    case ValueType::kUint32:
      return ReadScalar<uint32_t, uint64_t>(cursor);
    case ValueType::kInt32:
      return ReadScalar<int32_t, int64_t>(cursor);
    case ValueType::kUint64:
      return ReadScalar<uint64_t, uint64_t>(cursor);
    case ValueType::kInt64:
      return ReadScalar<int64_t, int64_t>(cursor);
    case ValueType::kFloat32:
      return ReadScalar<float, double>(cursor);
    case ValueType::kFloat64:
      return ReadScalar<double, double>(cursor);
    case ValueType::kBool: {
      absl::StatusOr<bool> value = cursor.ReadBool();
      if (!value.ok()) return value.status();
      return GgufValue(*value);
    }
    case ValueType::kString: {
      std::string text;
      if (absl::Status s = cursor.ReadString(&text, "string", 0, cursor.left()); !s.ok()) return s;
      return GgufValue(std::move(text));
    }
    case ValueType::kArray:
      return ReadArray(cursor);
  }
  return cursor.Invalid(cursor.position() - sizeof(uint32_t),
                        absl::StrFormat("value type %d is none of GGUF's (0 to 12)", type));
}

}  // namespace ripplekv
