#include "model/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "model/gguf_cursor.h"
#include "model/gguf_value.h"

namespace ripplekv {
namespace {

// The format's limits.
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 64;
constexpr uint32_t kMaxDimensions = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;  // ours
// The fewest bytes an entry can take: they bound the counts in the header.
constexpr uint64_t kMinMetadataBytes = 8 + 1 + 4 + 1;        // key's length, key, type, value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, rank, dimension, type, offset

constexpr const char* kAlignmentKey = "general.alignment";

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

// The name of a GGML type, for error messages.
const char* GgmlTypeName(uint32_t ggml_type) {
  static constexpr const char* kNames[] = {
      "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
      "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
      "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
      "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
      "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
      "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",    "Q1_0"};
  return ggml_type < std::size(kNames) ? kNames[ggml_type] : "unknown";
}

std::string SupportedTypes() {
  std::string names;
  for (TensorType type : kTensorTypes)
    absl::StrAppend(&names, names.empty() ? "" : ", ", name(type));
  return names;
}

std::string TensorSubject(const std::string& name) {
  return absl::StrFormat("tensor '%s'", GgufCursor::Printable(name));
}

class Parser {
 public:
  explicit Parser(absl::Span<const std::byte> bytes) : bytes_(bytes), cursor_(bytes) {}

  absl::StatusOr<GgufContents> Run();

 private:
  // What belongs to a tensor beside GgufTensor.
  struct TensorPlace {
    uint64_t info_offset;  // of the tensor's entry in the file
    uint64_t data_offset;  // of its data in the data section
  };

  absl::Status ReadHeader(uint64_t* tensor_count, uint64_t* metadata_count);
  absl::Status ReadMetadata();
  absl::Status ReadAlignment();
  absl::Status ReadTensorInfo();
  absl::Status ReadShape(GgufTensor* tensor);
  absl::Status ReadType(GgufTensor* tensor);
  absl::Status PlaceTensors();
  absl::Status CheckOverlaps();

  absl::Span<const std::byte> bytes_;
  GgufCursor cursor_;
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<TensorPlace> places_;  // beside contents_.tensors
  GgufContents contents_;
};

absl::Status Parser::ReadHeader(uint64_t* tensor_count, uint64_t* metadata_count) {
  constexpr absl::string_view kMagic = "GGUF";
  const absl::string_view start(reinterpret_cast<const char*>(bytes_.data()),
                                std::min(bytes_.size(), kMagic.size()));
  if (start != kMagic) {
    return cursor_.Invalid(0,
                           absl::StrFormat("not a GGUF file: it begins with '%s' instead of 'GGUF'",
                                           absl::CHexEscape(start)));
  }
  uint32_t magic = 0;
  uint32_t version = 0;
  if (absl::Status s = cursor_.Read(&magic, "magic"); !s.ok()) return s;
  if (absl::Status s = cursor_.Read(&version, "version"); !s.ok()) return s;
  if (version != 0 && (version & 0xFFFF) == 0) {
    return cursor_.Unsupported(4, "the file is big endian: convert it to little endian");
  }
  if (version < 2 || version > 3) {
    return cursor_.Unsupported(
        4, absl::StrFormat("GGUF version %d is not supported, supported are 2 and 3: "
                           "convert the model again with a current tool",
                           version));
  }
  contents_.version = static_cast<int>(version);
  if (absl::Status s = cursor_.Read(tensor_count, "tensor count"); !s.ok()) return s;
  if (absl::Status s = cursor_.Read(metadata_count, "metadata count"); !s.ok()) return s;
  if (*tensor_count > cursor_.left() / kMinTensorBytes) {
    return cursor_.Invalid(8, absl::StrFormat("%d tensors do not fit the %d bytes left in the file",
                                              *tensor_count, cursor_.left()));
  }
  if (*metadata_count > cursor_.left() / kMinMetadataBytes) {
    return cursor_.Invalid(
        16, absl::StrFormat("%d metadata entries do not fit the %d bytes left in the file",
                            *metadata_count, cursor_.left()));
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadMetadata() {
  const uint64_t start = cursor_.position();
  std::string key;
  if (absl::Status s = cursor_.ReadString(&key, "key", 1, kMaxKeyBytes); !s.ok()) return s;
  cursor_.set_subject(absl::StrFormat("metadata key '%s'", GgufCursor::Printable(key)));
  uint32_t type = 0;
  if (absl::Status s = cursor_.Read(&type, "value type"); !s.ok()) return s;
  absl::StatusOr<GgufValue> value = ReadGgufValue(cursor_, type);
  if (!value.ok()) return value.status();
  if (!contents_.metadata.try_emplace(std::move(key), *std::move(value)).second) {
    return cursor_.Invalid(start, "the key is in the file twice");
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

absl::Status Parser::ReadShape(GgufTensor* tensor) {
  const uint64_t rank_offset = cursor_.position();
  uint32_t rank = 0;
  if (absl::Status s = cursor_.Read(&rank, "dimension count"); !s.ok()) return s;
  if (rank < 1 || rank > kMaxDimensions) {
    return cursor_.Invalid(rank_offset, absl::StrFormat("it has %d dimensions, allowed are 1 to %d",
                                                        rank, kMaxDimensions));
  }
  tensor->elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const uint64_t offset = cursor_.position();
    uint64_t dimension = 0;
    if (absl::Status s = cursor_.Read(&dimension, "dimensions"); !s.ok()) return s;
    if (dimension == 0) {
      return cursor_.Invalid(offset,
                             absl::StrFormat("dimension %d is 0, allowed is 1 and more", i));
    }
    // Overflow is that of the signed product; a dimension of 2^63 and more overflows too.
    if (__builtin_mul_overflow(tensor->elements, dimension, &tensor->elements)) {
      return cursor_.Invalid(
          offset,
          absl::StrFormat("dimension %d is %d: the number of elements overflows", i, dimension));
    }
    tensor->shape.push_back(static_cast<int64_t>(dimension));
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadType(GgufTensor* tensor) {
  const uint64_t offset = cursor_.position();
  uint32_t ggml_type = 0;
  if (absl::Status s = cursor_.Read(&ggml_type, "type"); !s.ok()) return s;
  const std::optional<TensorType> type = TensorTypeOf(ggml_type);
  if (!type) {
    return cursor_.Unsupported(
        offset, absl::StrFormat("its type %d (%s) is not supported, supported are %s", ggml_type,
                                GgmlTypeName(ggml_type), SupportedTypes()));
  }
  tensor->type = *type;
  const int64_t block = block_elements(*type);
  if (tensor->shape[0] % block != 0) {
    return cursor_.Invalid(offset,
                           absl::StrFormat("rows of %d numbers are no multiple of %s's block of %d",
                                           tensor->shape[0], name(*type), block));
  }
  if (__builtin_mul_overflow(tensor->elements / block, block_bytes(*type), &tensor->size_bytes)) {
    return cursor_.Invalid(
        offset, absl::StrFormat("the size in bytes of %d numbers overflows", tensor->elements));
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadTensorInfo() {
  const uint64_t start = cursor_.position();
  GgufTensor tensor;
  if (absl::Status s = cursor_.ReadString(&tensor.name, "name", 1, kMaxTensorNameBytes); !s.ok())
    return s;
  cursor_.set_subject(TensorSubject(tensor.name));
  if (absl::Status s = ReadShape(&tensor); !s.ok()) return s;
  if (absl::Status s = ReadType(&tensor); !s.ok()) return s;
  const uint64_t offset_offset = cursor_.position();
  uint64_t data_offset = 0;
  if (absl::Status s = cursor_.Read(&data_offset, "data offset"); !s.ok()) return s;
  if (data_offset % alignment_ != 0) {
    return cursor_.Invalid(offset_offset,
                           absl::StrFormat("its data offset %d is no multiple of the alignment %d",
                                           data_offset, alignment_));
  }
  if (!contents_.tensor_index.try_emplace(tensor.name, contents_.tensors.size()).second) {
    return cursor_.Invalid(start, "the name is in the file twice");
  }
  contents_.tensors.push_back(std::move(tensor));
  places_.push_back({.info_offset = start, .data_offset = data_offset});
  return absl::OkStatus();
}

// Gives every tensor its data, inside the file.
absl::Status Parser::PlaceTensors() {
  const uint64_t data_start = (cursor_.position() + alignment_ - 1) / alignment_ * alignment_;
  const uint64_t data_size = bytes_.size() > data_start ? bytes_.size() - data_start : 0;
  for (size_t i = 0; i < places_.size(); ++i) {
    GgufTensor& tensor = contents_.tensors[i];
    const uint64_t offset = places_[i].data_offset;
    if (offset > data_size || tensor.size_bytes > data_size - offset) {
      cursor_.set_subject(TensorSubject(tensor.name));
      return cursor_.Invalid(
          places_[i].info_offset,
          absl::StrFormat("its %d bytes at data offset %d do not fit the file's %d bytes of "
                          "tensor data: the file is truncated or damaged",
                          tensor.size_bytes, offset, data_size));
    }
    tensor.data = bytes_.data() + data_start + offset;
  }
  return absl::OkStatus();
}

absl::Status Parser::CheckOverlaps() {
  std::vector<size_t> order(places_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
    return std::pair(places_[a].data_offset, a) < std::pair(places_[b].data_offset, b);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = contents_.tensors[order[i - 1]];
    const uint64_t before_offset = places_[order[i - 1]].data_offset;
    const TensorPlace& place = places_[order[i]];
    if (before_offset + before.size_bytes <= place.data_offset) continue;
    cursor_.set_subject(TensorSubject(contents_.tensors[order[i]].name));
    return cursor_.Invalid(
        place.info_offset,
        absl::StrFormat("its data at data offset %d overlaps that of tensor '%s' (%d bytes at %d)",
                        place.data_offset, GgufCursor::Printable(before.name), before.size_bytes,
                        before_offset));
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufContents> Parser::Run() {
  uint64_t tensor_count = 0;
  uint64_t metadata_count = 0;
  if (absl::Status s = ReadHeader(&tensor_count, &metadata_count); !s.ok()) return s;
  for (uint64_t i = 0; i < metadata_count; ++i) {
    cursor_.set_subject(absl::StrFormat("metadata entry %d of %d", i + 1, metadata_count));
    if (absl::Status s = ReadMetadata(); !s.ok()) return s;
  }
  if (absl::Status s = ReadAlignment(); !s.ok()) return s;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    cursor_.set_subject(absl::StrFormat("tensor %d of %d", i + 1, tensor_count));
    if (absl::Status s = ReadTensorInfo(); !s.ok()) return s;
  }
  if (absl::Status s = PlaceTensors(); !s.ok()) return s;
  if (absl::Status s = CheckOverlaps(); !s.ok()) return s;
  return std::move(contents_);
}

}  // namespace

absl::StatusOr<GgufContents> ParseGguf(absl::Span<const std::byte> bytes) {
  return Parser(bytes).Run();
}

}  // namespace ripplekv
