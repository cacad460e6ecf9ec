#include "model/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace ripplekv {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are read in place");

// Limits of the format (tensor name, dimensions, key) and of this reader (array, alignment).
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 64;
constexpr uint32_t kMaxDimensions = 4;
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 24;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
// The fewest bytes one entry can take: they bound the counts in the header.
constexpr uint64_t kMinMetadataBytes = 8 + 1 + 4 + 1;  // key length, key, value type, value
constexpr uint64_t kMinTensorBytes =
    8 + 1 + 4 + 8 + 4 + 8;  // name, rank, one dimension, type, offset

constexpr const char* kAlignmentKey = "general.alignment";

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

std::optional<TensorType> TensorTypeOf(uint32_t ggml_type) {
  switch (ggml_type) {
    case 0:
      return TensorType::kF32;
    case 1:
      return TensorType::kF16;
    case 2:
      return TensorType::kQ4_0;
    case 3:
      return TensorType::kQ4_1;
    case 8:
      return TensorType::kQ8_0;
    case 30:
      return TensorType::kBF16;
    default:
      return std::nullopt;
  }
}

// Names of the GGML types, for error messages; the gaps were removed from GGML.
std::string GgmlTypeName(uint32_t ggml_type) {
  static constexpr const char* kNames[] = {
      "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
      "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
      "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
      "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
      "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
      "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4"};
  if (ggml_type < std::size(kNames)) return kNames[ggml_type];
  return "unknown";
}

std::string SupportedTypes() {
  std::string names;
  for (TensorType type : kTensorTypes)
    absl::StrAppend(&names, names.empty() ? "" : ", ", name(type));
  return names;
}

bool Multiply(uint64_t a, uint64_t b, uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

// A name from the file, safe to print: escaped and cut.
std::string Printable(absl::string_view text) {
  constexpr size_t kMaxShown = 80;
  if (text.size() <= kMaxShown) return absl::CHexEscape(text);
  return absl::StrCat(absl::CHexEscape(text.substr(0, kMaxShown)), "...");
}

class Parser {
 public:
  explicit Parser(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  absl::StatusOr<GgufContents> Run();

 private:
  // What is known of a tensor before the start of the data section is.
  struct TensorPlace {
    uint64_t info_offset;  // of the tensor's entry in the file
    uint64_t data_offset;  // from the start of the data section
  };

  absl::Status ReadHeader(uint64_t* tensor_count, uint64_t* metadata_count);
  absl::Status ReadMetadata();
  absl::StatusOr<GgufValue> ReadValue(ValueType type);
  absl::StatusOr<GgufValue> ReadArray();
  absl::Status ReadAlignment();
  absl::Status ReadTensorInfo();
  absl::Status PlaceTensors();

  template <typename T>
  absl::Status Read(T* value, const char* what);
  template <typename Element, typename Stored>
  absl::StatusOr<GgufValue> ReadElements(uint64_t count);
  template <typename Stored, typename T>
  absl::StatusOr<GgufValue> ReadScalar();
  absl::StatusOr<bool> ReadBool();
  // A length and that many bytes, `min`..`max` of them.
  absl::Status ReadString(std::string* text, const char* what, uint64_t min, uint64_t max);

  uint64_t left() const { return bytes_.size() - position_; }
  // An error at file offset `offset`, about the entry being read.
  absl::Status Invalid(uint64_t offset, absl::string_view message) const {
    return absl::InvalidArgumentError(Message(offset, message));
  }
  absl::Status Unsupported(uint64_t offset, absl::string_view message) const {
    return absl::UnimplementedError(Message(offset, message));
  }
  std::string Message(uint64_t offset, absl::string_view message) const {
    return absl::StrFormat("%s, at offset %d: %s", subject_, offset, message);
  }

  absl::Span<const std::byte> bytes_;
  uint64_t position_ = 0;
  std::string subject_ = "GGUF header";  // what is being read: starts each error
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<TensorPlace> places_;  // beside contents_.tensors
  GgufContents contents_;
};

template <typename T>
absl::Status Parser::Read(T* value, const char* what) {
  static_assert(std::is_arithmetic_v<T>);
  if (left() < sizeof(T)) {
    return Invalid(position_,
                   absl::StrFormat("the file ends within the %s (%d of its %d bytes left): "
                                   "it is truncated",
                                   what, left(), sizeof(T)));
  }
  std::memcpy(value, bytes_.data() + position_, sizeof(T));
  position_ += sizeof(T);
  return absl::OkStatus();
}

absl::Status Parser::ReadString(std::string* text, const char* what, uint64_t min, uint64_t max) {
  const uint64_t start = position_;
  uint64_t length = 0;
  if (absl::Status status = Read(&length, what); !status.ok()) return status;
  if (length > left()) {
    return Invalid(
        start, absl::StrFormat("the %s has a length of %d bytes, but only %d are left in the file",
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

absl::StatusOr<bool> Parser::ReadBool() {
  const uint64_t start = position_;
  uint8_t value = 0;
  if (absl::Status status = Read(&value, "bool"); !status.ok()) return status;
  if (value > 1) return Invalid(start, absl::StrFormat("a bool is 0 or 1, not %d", value));
  return value == 1;
}

template <typename Stored, typename T>
absl::StatusOr<GgufValue> Parser::ReadScalar() {
  Stored value{};
  if (absl::Status status = Read(&value, "value"); !status.ok()) return status;
  return GgufValue(static_cast<T>(value));
}

template <typename Element, typename Stored>
absl::StatusOr<GgufValue> Parser::ReadElements(uint64_t count) {
  if (count > left() / sizeof(Stored)) {
    return Invalid(position_,
                   absl::StrFormat("an array of %d elements of %d bytes does not fit the %d bytes "
                                   "left in the file",
                                   count, sizeof(Stored), left()));
  }
  std::vector<Element> elements(count);
  for (uint64_t i = 0; i < count; ++i) {
    Stored stored;
    std::memcpy(&stored, bytes_.data() + position_, sizeof(Stored));
    if constexpr (std::is_same_v<Stored, uint64_t>) {
      if (stored > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Invalid(
            position_,
            absl::StrFormat("array element %d is %d, allowed is up to 2^63 - 1", i, stored));
      }
    }
    elements[i] = static_cast<Element>(stored);
    position_ += sizeof(Stored);
  }
  return GgufValue(std::move(elements));
}

absl::StatusOr<GgufValue> Parser::ReadArray() {
  const uint64_t start = position_;
  uint32_t type = 0;
  uint64_t count = 0;
  if (absl::Status status = Read(&type, "array's element type"); !status.ok()) return status;
  if (absl::Status status = Read(&count, "array's length"); !status.ok()) return status;
  // Before an allocation. Every element takes at least a byte; ReadElements checks with the true
  // size.
  if (count > left()) {
    return Invalid(
        start, absl::StrFormat("an array of %d elements does not fit the %d bytes left in the file",
                               count, left()));
  }
  if (count > kMaxArrayElements) {
    return Unsupported(start, absl::StrFormat("an array has %d elements, supported are up to %d",
                                              count, kMaxArrayElements));
  }
  switch (static_cast<ValueType>(type)) {
    case ValueType::kUint8:
      return ReadElements<int64_t, uint8_t>(count);
    case ValueType::kInt8:
      return ReadElements<int64_t, int8_t>(count);
    case ValueType::kUint16:
      return ReadElements<int64_t, uint16_t>(count);
    case ValueType::kInt16:
      return ReadElements<int64_t, int16_t>(count);
    case ValueType::kUint32:
      return ReadElements<int64_t, uint32_t>(count);
    case ValueType::kInt32:
      return ReadElements<int64_t, int32_t>(count);
    case ValueType::kUint64:
      return ReadElements<int64_t, uint64_t>(count);
    case ValueType::kInt64:
      return ReadElements<int64_t, int64_t>(count);
    case ValueType::kFloat32:
      return ReadElements<double, float>(count);
    case ValueType::kFloat64:
      return ReadElements<double, double>(count);
    case ValueType::kBool: {
      std::vector<bool> values(count);
      for (uint64_t i = 0; i < count; ++i) {
        absl::StatusOr<bool> value = ReadBool();
        if (!value.ok()) return value.status();
        values[i] = *value;
      }
      return GgufValue(std::move(values));
    }
    case ValueType::kString: {
      if (count > left() / sizeof(uint64_t)) {
        return Invalid(
            start,
            absl::StrFormat("an array of %d strings does not fit the %d bytes left in the file",
                            count, left()));
      }
      std::vector<std::string> values(count);
      for (std::string& value : values) {
        if (absl::Status status = ReadString(&value, "string of an array", 0, left());
            !status.ok()) {
          return status;
        }
      }
      return GgufValue(std::move(values));
    }
    case ValueType::kArray:
      return Unsupported(start, "arrays of arrays are not supported");
  }
  return Invalid(start, absl::StrFormat("array element type %d is none of GGUF's (0 to 12)", type));
}

absl::StatusOr<GgufValue> Parser::ReadValue(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
      return ReadScalar<uint8_t, uint64_t>();
    case ValueType::kInt8:
      return ReadScalar<int8_t, int64_t>();
    case ValueType::kUint16:
      return ReadScalar<uint16_t, uint64_t>();
    case ValueType::kInt16:
      return ReadScalar<int16_t, int64_t>();
    case ValueType::kUint32:
      return ReadScalar<uint32_t, uint64_t>();
    case ValueType::kInt32:
      return ReadScalar<int32_t, int64_t>();
    case ValueType::kUint64:
      return ReadScalar<uint64_t, uint64_t>();
    case ValueType::kInt64:
      return ReadScalar<int64_t, int64_t>();
    case ValueType::kFloat32:
      return ReadScalar<float, double>();
    case ValueType::kFloat64:
      return ReadScalar<double, double>();
    case ValueType::kBool: {
      absl::StatusOr<bool> value = ReadBool();
      if (!value.ok()) return value.status();
      return GgufValue(*value);
    }
    case ValueType::kString: {
      std::string text;
      if (absl::Status status = ReadString(&text, "string", 0, left()); !status.ok()) return status;
      return GgufValue(std::move(text));
    }
    case ValueType::kArray:
      return ReadArray();
  }
  return Invalid(
      position_ - sizeof(uint32_t),
      absl::StrFormat("value type %d is none of GGUF's (0 to 12)", static_cast<uint32_t>(type)));
}

absl::Status Parser::ReadHeader(uint64_t* tensor_count, uint64_t* metadata_count) {
  constexpr absl::string_view kMagic = "GGUF";
  if (bytes_.size() < kMagic.size() ||
      std::memcmp(bytes_.data(), kMagic.data(), kMagic.size()) != 0) {
    return Invalid(0, absl::StrFormat("not a GGUF file: it begins with '%s' instead of 'GGUF'",
                                      absl::CHexEscape(absl::string_view(
                                          reinterpret_cast<const char*>(bytes_.data()),
                                          std::min(bytes_.size(), kMagic.size())))));
  }
  position_ = kMagic.size();
  uint32_t version = 0;
  if (absl::Status status = Read(&version, "version"); !status.ok()) return status;
  if (version != 0 && (version & 0xFFFF) == 0) {
    return Unsupported(4, "the file is big endian: convert it to little endian");
  }
  if (version < 2 || version > 3) {
    return Unsupported(
        4, absl::StrFormat("GGUF version %d is not supported, supported are 2 and 3: convert "
                           "the model again with a current tool",
                           version));
  }
  contents_.version = static_cast<int>(version);
  if (absl::Status status = Read(tensor_count, "tensor count"); !status.ok()) return status;
  if (absl::Status status = Read(metadata_count, "metadata count"); !status.ok()) return status;
  if (*metadata_count > left() / kMinMetadataBytes) {
    return Invalid(16,
                   absl::StrFormat("%d metadata entries do not fit the %d bytes left in the file",
                                   *metadata_count, left()));
  }
  if (*tensor_count > left() / kMinTensorBytes) {
    return Invalid(8, absl::StrFormat("%d tensors do not fit the %d bytes left in the file",
                                      *tensor_count, left()));
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadMetadata() {
  const uint64_t start = position_;
  std::string key;
  if (absl::Status status = ReadString(&key, "key", 1, kMaxKeyBytes); !status.ok()) return status;
  subject_ = absl::StrFormat("metadata key '%s'", Printable(key));
  uint32_t type = 0;
  if (absl::Status status = Read(&type, "value type"); !status.ok()) return status;
  absl::StatusOr<GgufValue> value = ReadValue(static_cast<ValueType>(type));
  if (!value.ok()) return value.status();
  if (!contents_.metadata.try_emplace(std::move(key), *std::move(value)).second) {
    return Invalid(start, "the key is in the file twice");
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadAlignment() {
  const auto found = contents_.metadata.find(kAlignmentKey);
  if (found == contents_.metadata.end()) return absl::OkStatus();
  const uint64_t* alignment = std::get_if<uint64_t>(&found->second);
  if (alignment == nullptr || !std::has_single_bit(*alignment) || *alignment < kMinAlignment ||
      *alignment > kMaxAlignment) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "metadata key '%s' is %s, expected an unsigned power of two from %d to %d", kAlignmentKey,
        alignment != nullptr ? absl::StrCat(*alignment) : "of another type", kMinAlignment,
        kMaxAlignment));
  }
  alignment_ = *alignment;
  return absl::OkStatus();
}

absl::Status Parser::ReadTensorInfo() {
  const uint64_t start = position_;
  GgufTensor tensor;
  if (absl::Status status = ReadString(&tensor.name, "name", 1, kMaxTensorNameBytes);
      !status.ok()) {
    return status;
  }
  subject_ = absl::StrFormat("tensor '%s'", Printable(tensor.name));

  const uint64_t rank_offset = position_;
  uint32_t rank = 0;
  if (absl::Status status = Read(&rank, "dimension count"); !status.ok()) return status;
  if (rank < 1 || rank > kMaxDimensions) {
    return Invalid(rank_offset, absl::StrFormat("it has %d dimensions, allowed are 1 to %d", rank,
                                                kMaxDimensions));
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const uint64_t dimension_offset = position_;
    uint64_t dimension = 0;
    if (absl::Status status = Read(&dimension, "dimensions"); !status.ok()) return status;
    if (dimension == 0) {
      return Invalid(dimension_offset,
                     absl::StrFormat("dimension %d is 0, allowed is 1 and more", i));
    }
    if (!Multiply(elements, dimension, &elements) ||
        elements > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Invalid(
          dimension_offset,
          absl::StrFormat("dimension %d is %d: the number of elements overflows", i, dimension));
    }
    tensor.shape.push_back(static_cast<int64_t>(dimension));
  }
  tensor.elements = static_cast<int64_t>(elements);

  const uint64_t type_offset = position_;
  uint32_t ggml_type = 0;
  if (absl::Status status = Read(&ggml_type, "type"); !status.ok()) return status;
  const std::optional<TensorType> type = TensorTypeOf(ggml_type);
  if (!type) {
    return Unsupported(type_offset,
                       absl::StrFormat("its type %d (%s) is not supported, supported are %s",
                                       ggml_type, GgmlTypeName(ggml_type), SupportedTypes()));
  }
  tensor.type = *type;
  const uint64_t block = static_cast<uint64_t>(block_elements(*type));
  if (tensor.shape[0] % block_elements(*type) != 0) {
    return Invalid(type_offset,
                   absl::StrFormat("rows of %d numbers are no multiple of %s's block of %d",
                                   tensor.shape[0], name(*type), block));
  }
  uint64_t size = 0;
  if (!Multiply(elements / block, static_cast<uint64_t>(block_bytes(*type)), &size)) {
    return Invalid(type_offset,
                   absl::StrFormat("the size in bytes of %d numbers overflows", elements));
  }
  tensor.size_bytes = size;

  const uint64_t offset_offset = position_;
  uint64_t data_offset = 0;
  if (absl::Status status = Read(&data_offset, "data offset"); !status.ok()) return status;
  if (data_offset % alignment_ != 0) {
    return Invalid(offset_offset,
                   absl::StrFormat("its data offset %d is no multiple of the alignment %d",
                                   data_offset, alignment_));
  }
  if (!contents_.tensor_index.try_emplace(tensor.name, contents_.tensors.size()).second) {
    return Invalid(start, "the name is in the file twice");
  }
  contents_.tensors.push_back(std::move(tensor));
  places_.push_back({.info_offset = start, .data_offset = data_offset});
  return absl::OkStatus();
}

// Gives every tensor its data: inside the file, none over another.
absl::Status Parser::PlaceTensors() {
  std::vector<GgufTensor>& tensors = contents_.tensors;
  if (tensors.empty()) return absl::OkStatus();
  const uint64_t data_start = (position_ + alignment_ - 1) / alignment_ * alignment_;
  const uint64_t data_size = bytes_.size() > data_start ? bytes_.size() - data_start : 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t offset = places_[i].data_offset;
    if (offset > data_size || tensors[i].size_bytes > data_size - offset) {
      subject_ = absl::StrFormat("tensor '%s'", Printable(tensors[i].name));
      return Invalid(
          places_[i].info_offset,
          absl::StrFormat("its %d bytes at data offset %d do not fit the file's %d bytes of tensor "
                          "data: the file is truncated or damaged",
                          tensors[i].size_bytes, offset, data_size));
    }
    tensors[i].data = bytes_.data() + data_start + offset;
  }
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
    return std::pair(places_[a].data_offset, a) < std::pair(places_[b].data_offset, b);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const size_t before = order[i - 1];
    const size_t after = order[i];
    if (places_[before].data_offset + tensors[before].size_bytes > places_[after].data_offset) {
      subject_ = absl::StrFormat("tensor '%s'", Printable(tensors[after].name));
      return Invalid(
          places_[after].info_offset,
          absl::StrFormat(
              "its data at data offset %d overlaps the data of tensor '%s' (%d bytes at %d)",
              places_[after].data_offset, Printable(tensors[before].name),
              tensors[before].size_bytes, places_[before].data_offset));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufContents> Parser::Run() {
  uint64_t tensor_count = 0;
  uint64_t metadata_count = 0;
  if (absl::Status status = ReadHeader(&tensor_count, &metadata_count); !status.ok()) return status;
  for (uint64_t i = 0; i < metadata_count; ++i) {
    subject_ = absl::StrFormat("metadata entry %d of %d", i + 1, metadata_count);
    if (absl::Status status = ReadMetadata(); !status.ok()) return status;
  }
  if (absl::Status status = ReadAlignment(); !status.ok()) return status;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    subject_ = absl::StrFormat("tensor %d of %d", i + 1, tensor_count);
    if (absl::Status status = ReadTensorInfo(); !status.ok()) return status;
  }
  if (absl::Status status = PlaceTensors(); !status.ok()) return status;
  return std::move(contents_);
}

}  // namespace

absl::StatusOr<GgufContents> ParseGguf(absl::Span<const std::byte> bytes) {
  return Parser(bytes).Run();
}

}  // namespace ripplekv
