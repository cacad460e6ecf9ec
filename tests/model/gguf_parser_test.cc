#include "model/gguf_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/model/gguf_builder.h"

namespace ripplekv {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A small valid file to break.
GgufBuilder Valid() {
  GgufBuilder b;
  b.String("general.architecture", "llama").Uint32("a.uint", 7).Strings("a.strings", {"x", "yy"});
  b.Int32s("a.ints", {1, -2}).Bool("a.bool", true).Float32("a.float", 0.5f);
  b.RandomTensor("first", TensorType::kQ4_1, {64, 2}, 1);
  b.RandomTensor("second", TensorType::kF32, {3}, 2);
  return b;
}

absl::Status ParseStatus(const std::vector<std::byte>& bytes) { return ParseGguf(bytes).status(); }

TEST(ParseGguf, AcceptsAFileWithoutTensorsAndOneWithoutMetadata) {
  EXPECT_TRUE(ParseStatus(GgufBuilder().Build()).ok());
  EXPECT_TRUE(ParseStatus(GgufBuilder().F32Tensor("t", {1}, {1.0f}).Build()).ok());
}

TEST(ParseGguf, AcceptsTensorsInAnyOrderOfTheirData) {
  GgufBuilder b = Valid();
  b.tensors[0].offset = 32;
  b.tensors[1].offset = 0;
  // The data of the first takes 80 bytes at 32; the builder wrote 96 + 32.
  ASSERT_TRUE(ParseStatus(b.Build()).ok()) << ParseStatus(b.Build());
}

TEST(ParseGguf, AcceptsOtherAlignments) {
  for (uint32_t alignment : {8u, 64u, 4096u}) {
    GgufBuilder b = Valid().Uint32("general.alignment", alignment);
    b.alignment = alignment;
    EXPECT_TRUE(ParseStatus(b.Build()).ok()) << ParseStatus(b.Build());
  }
}

struct Broken {
  const char* name;
  void (*change)(GgufBuilder&);
  absl::StatusCode code;
  const char* message[4];  // parts of it
};

class BrokenGguf : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenGguf, IsRefusedWithTheReason) {
  GgufBuilder b = Valid();
  GetParam().change(b);
  const absl::Status status = ParseStatus(b.Build());
  EXPECT_EQ(status.code(), GetParam().code) << status;
  for (const char* part : GetParam().message) {
    if (part == nullptr) break;
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
}

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnsupported = absl::StatusCode::kUnimplemented;

// An array header: element type, count.
std::string ArrayHeader(uint32_t type, uint64_t count) {
  return GgufBuilder::Raw(type) + GgufBuilder::Raw(count);
}

constexpr Broken kRules[] = {
    {"Version1", [](GgufBuilder& b) { b.version = 1; }, kUnsupported, {"version 1", "2 and 3"}},
    {"Version4", [](GgufBuilder& b) { b.version = 4; }, kUnsupported, {"version 4"}},
    {"Version0", [](GgufBuilder& b) { b.version = 0; }, kUnsupported, {"version 0"}},
    {"BigEndian",
     [](GgufBuilder& b) { b.version = 0x03000000; },
     kUnsupported,
     {"big endian", "offset 4"}},
    {"TensorCount",
     [](GgufBuilder& b) { b.tensor_count = int64_t{1} << 60; },
     kInvalid,
     {"1152921504606846976 tensors", "offset 8"}},
    {"MetadataCount",
     [](GgufBuilder& b) { b.metadata_count = int64_t{1} << 60; },
     kInvalid,
     {"1152921504606846976 metadata entries", "offset 16"}},
    {"HugeString",
     [](GgufBuilder& b) { b.Set("s", 8, GgufBuilder::Raw(uint64_t{1} << 60)); },
     kInvalid,
     {"metadata key 's'", "1152921504606846976 bytes", "left in the file"}},
    {"HugeStringInArray",
     [](GgufBuilder& b) { b.Set("s", 9, ArrayHeader(8, 1) + GgufBuilder::Raw(~uint64_t{0})); },
     kInvalid,
     {"'s'", "18446744073709551615 bytes"}},
    {"HugeArray",
     [](GgufBuilder& b) { b.Set("n", 9, ArrayHeader(0, ~uint64_t{0})); },
     kInvalid,
     {"'n'", "18446744073709551615 elements"}},
    {"HugeWideArray",
     [](GgufBuilder& b) { b.Set("n", 9, ArrayHeader(10, 50)); },
     kInvalid,
     {"'n'", "50 elements of 8 bytes"}},
    {"HugeStringArray",
     [](GgufBuilder& b) { b.Set("n", 9, ArrayHeader(8, uint64_t{1} << 61)); },
     kInvalid,
     {"'n'", "2305843009213693952 elements of 8 bytes"}},
    {"TooLongArray",
     [](GgufBuilder& b) { b.Array("n", 0, std::vector<uint8_t>((size_t{1} << 24) + 1)); },
     kUnsupported,
     {"'n'", "16777217 elements", "up to 16777216"}},
    {"BigUint64InArray",
     [](GgufBuilder& b) { b.Array("n", 10, std::vector<uint64_t>{1, ~uint64_t{0}}); },
     kUnsupported,
     {"'n'", "element 1", "18446744073709551615"}},
    {"NestedArray",
     [](GgufBuilder& b) { b.Set("n", 9, ArrayHeader(9, 1) + ArrayHeader(4, 0)); },
     kUnsupported,
     {"'n'", "arrays of arrays"}},
    {"UnknownValueType",
     [](GgufBuilder& b) { b.Set("v", 13, "12345678"); },
     kInvalid,
     {"'v'", "value type 13", "0 to 12"}},
    {"UnknownElementType",
     [](GgufBuilder& b) { b.Set("v", 9, ArrayHeader(77, 1)); },
     kInvalid,
     {"'v'", "element type 77"}},
    {"BoolOf2", [](GgufBuilder& b) { b.Set("v", 7, "\2"); }, kInvalid, {"'v'", "not 2"}},
    {"BoolOf2InArray",
     [](GgufBuilder& b) { b.Set("v", 9, ArrayHeader(7, 1) + "\2"); },
     kInvalid,
     {"'v'", "not 2"}},
    {"EmptyKey",
     [](GgufBuilder& b) { b.Uint32("", 1); },
     kInvalid,
     {"metadata entry 7 of 7", "length of 0 bytes", "1 to 65535"}},
    {"LongKey",
     [](GgufBuilder& b) { b.Uint32(std::string(65536, 'k'), 1); },
     kInvalid,
     {"length of 65536 bytes"}},
    {"DuplicateKey",
     [](GgufBuilder& b) { b.entries.push_back(b.entries[1]); },
     kInvalid,
     {"metadata key 'a.uint'", "twice"}},
    {"UnprintableKey",
     [](GgufBuilder& b) { b.Set(std::string("k\n\0\xFF", 4), 13, ""); },
     kInvalid,
     {"'k\\n\\x00\\xff'"}},
    {"AlignmentNoPower",
     [](GgufBuilder& b) { b.Uint32("general.alignment", 24); },
     kInvalid,
     {"'general.alignment' is 24", "power of two"}},
    {"AlignmentZero",
     [](GgufBuilder& b) { b.Uint32("general.alignment", 0); },
     kInvalid,
     {"'general.alignment' is 0"}},
    {"AlignmentHuge",
     [](GgufBuilder& b) { b.Uint64("general.alignment", 1ull << 63); },
     kInvalid,
     {"'general.alignment' is 9223372036854775808"}},
    {"AlignmentString",
     [](GgufBuilder& b) { b.String("general.alignment", "32"); },
     kInvalid,
     {"'general.alignment' is of another type"}},
    {"EmptyTensorName",
     [](GgufBuilder& b) { b.tensors[1].name = ""; },
     kInvalid,
     {"tensor 2 of 2", "length of 0 bytes", "1 to 64"}},
    {"LongTensorName",
     [](GgufBuilder& b) { b.tensors[1].name = std::string(65, 'n'); },
     kInvalid,
     {"length of 65 bytes"}},
    {"DuplicateTensor",
     [](GgufBuilder& b) { b.tensors[1].name = "first"; },
     kInvalid,
     {"tensor 'first'", "twice"}},
    {"NoDimensions",
     [](GgufBuilder& b) { b.tensors[1].shape = {}; },
     kInvalid,
     {"tensor 'second'", "0 dimensions", "1 to 4"}},
    {"FiveDimensions",
     [](GgufBuilder& b) { b.tensors[1].shape = {3, 1, 1, 1, 1}; },
     kInvalid,
     {"tensor 'second'", "5 dimensions"}},
    {"DimensionZero",
     [](GgufBuilder& b) { b.tensors[1].shape = {3, 0}; },
     kInvalid,
     {"tensor 'second'", "dimension 1 is 0"}},
    {"ElementsOverflow",
     [](GgufBuilder& b) { b.tensors[1].shape = {1ull << 32, 1ull << 31}; },
     kInvalid,
     {"tensor 'second'", "dimension 1 is 2147483648", "overflows"}},
    {"ElementsWrapToSmall",
     [](GgufBuilder& b) { b.tensors[1].shape = {1ull << 32, 1ull << 32, 3}; },
     kInvalid,
     {"tensor 'second'", "overflows"}},
    {"DimensionNegative",
     [](GgufBuilder& b) { b.tensors[1].shape = {~0ull}; },
     kInvalid,
     {"tensor 'second'", "dimension 0 is 18446744073709551615", "overflows"}},
    {"BytesOverflow",
     [](GgufBuilder& b) { b.tensors[1].shape = {1ull << 62}; },
     kInvalid,
     {"tensor 'second'", "size in bytes", "overflows"}},
    {"RowNoMultipleOfBlock",
     [](GgufBuilder& b) { b.tensors[0].shape = {48, 2}; },
     kInvalid,
     {"tensor 'first'", "48", "Q4_1", "32"}},
    {"TypeQ4K",
     [](GgufBuilder& b) { b.tensors[0].ggml_type = 12; },
     kUnsupported,
     {"tensor 'first'", "type 12 (Q4_K)", "F32, F16, BF16, Q8_0, Q4_0, Q4_1"}},
    {"TypeMxfp4",
     [](GgufBuilder& b) { b.tensors[0].ggml_type = 39; },
     kUnsupported,
     {"type 39 (MXFP4)"}},
    {"TypeUnknown",
     [](GgufBuilder& b) { b.tensors[0].ggml_type = 0xFFFFFFFF; },
     kUnsupported,
     {"tensor 'first'", "type 4294967295 (unknown)"}},
    {"MisalignedOffset",
     [](GgufBuilder& b) { b.tensors[1].offset = 97; },
     kInvalid,
     {"tensor 'second'", "offset 97", "alignment 32"}},
    {"OffsetBeyondTheFile",
     [](GgufBuilder& b) { b.tensors[1].offset = 1 << 20; },
     kInvalid,
     {"tensor 'second'", "12 bytes at data offset 1048576", "truncated"}},
    {"OffsetThatWraps",
     [](GgufBuilder& b) { b.tensors[1].offset = std::numeric_limits<int64_t>::max() - 31; },
     kInvalid,
     {"tensor 'second'", "9223372036854775776"}},
    {"SizeBeyondTheFile",
     [](GgufBuilder& b) { b.tensors[1].shape = {9}; },
     kInvalid,
     {"tensor 'second'", "36 bytes at data offset 96", "128 bytes of tensor data"}},
    {"Overlap",
     [](GgufBuilder& b) { b.tensors[1].offset = 64; },
     kInvalid,
     {"tensor 'second'", "overlaps that of tensor 'first'"}},
    {"SamePlace",
     [](GgufBuilder& b) { b.tensors[1].offset = 0; },
     kInvalid,
     {"tensor 'second'", "overlaps that of tensor 'first'"}}};

INSTANTIATE_TEST_SUITE_P(Rules, BrokenGguf, ::testing::ValuesIn(kRules),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ParseGguf, SaysThatOtherFilesAreNoGguf) {
  const std::string text = "PK\x03\x04 a zip file, which is long enough";
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(text.data()),
                                          text.size());
  const absl::Status status = ParseGguf(bytes).status();
  EXPECT_EQ(status.code(), kInvalid);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("not a GGUF file"), HasSubstr("PK\\x03\\x04")));
  EXPECT_EQ(ParseGguf({}).status().code(), kInvalid);
}

TEST(ParseGguf, EveryTruncationIsRefused) {
  const std::vector<std::byte> whole = Valid().Build();
  const size_t end_of_data = whole.size() - 20;  // the last tensor takes 12 of its 32 bytes
  for (size_t size = 0; size < end_of_data; ++size) {
    // A vector of exactly that size, so that a sanitizer sees a read beyond it.
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + size);
    const absl::Status status = ParseStatus(cut);
    ASSERT_EQ(status.code(), kInvalid) << size;
    ASSERT_FALSE(status.message().empty()) << size;
  }
  EXPECT_TRUE(ParseStatus({whole.begin(), whole.begin() + end_of_data}).ok());
}

}  // namespace
}  // namespace ripplekv
