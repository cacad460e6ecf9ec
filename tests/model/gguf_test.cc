#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "tests/model/gguf_builder.h"

namespace ripplekv {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string TestdataPath(const std::string& name) {
  return std::string(RIPPLEKV_SOURCE_DIR) + "/tests/model/testdata/" + name;
}

float HalfToFloat(uint16_t half) {
  const int exponent = half >> 10 & 0x1F;
  const float mantissa = static_cast<float>(half & 0x3FF) / 1024;
  const float magnitude =
      exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1 + mantissa, exponent - 15);
  return half & 0x8000 ? -magnitude : magnitude;
}

template <typename T>
T LoadAt(const std::byte* data, size_t offset) {
  T value;
  std::memcpy(&value, data + offset, sizeof(T));
  return value;
}

// A tensor's numbers, by the block layouts that kernels/tensor_type.h states.
std::vector<float> Values(const GgufTensor& tensor) {
  std::vector<float> values;
  const auto byte = [&tensor](size_t offset) { return std::to_integer<int>(tensor.data[offset]); };
  for (size_t at = 0; at < tensor.size_bytes; at += block_bytes(tensor.type)) {
    const float d = HalfToFloat(LoadAt<uint16_t>(tensor.data, at));
    switch (tensor.type) {
      case TensorType::kF32:
        values.push_back(LoadAt<float>(tensor.data, at));
        break;
      case TensorType::kF16:
        values.push_back(d);
        break;
      case TensorType::kBF16:
        values.push_back(std::bit_cast<float>(uint32_t{LoadAt<uint16_t>(tensor.data, at)} << 16));
        break;
      case TensorType::kQ8_0:
        for (int i = 0; i < 32; ++i) values.push_back(d * LoadAt<int8_t>(tensor.data, at + 2 + i));
        break;
      case TensorType::kQ4_0:
        for (int i = 0; i < 16; ++i) values.push_back(d * ((byte(at + 2 + i) & 15) - 8));
        for (int i = 0; i < 16; ++i) values.push_back(d * ((byte(at + 2 + i) >> 4) - 8));
        break;
      case TensorType::kQ4_1: {
        const float m = HalfToFloat(LoadAt<uint16_t>(tensor.data, at + 2));
        for (int i = 0; i < 16; ++i) values.push_back(d * (byte(at + 4 + i) & 15) + m);
        for (int i = 0; i < 16; ++i) values.push_back(d * (byte(at + 4 + i) >> 4) + m);
        break;
      }
    }
  }
  return values;
}

// The value as the goldens write it.
nlohmann::json AsJson(const GgufValue& value) {
  return std::visit([](const auto& v) { return nlohmann::json(v); }, value);
}

class GgufGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(GgufGolden, ReadsWhatTheReferenceImplementationWrote) {
  std::ifstream stream(TestdataPath("gguf_goldens.json"));
  const nlohmann::json golden = nlohmann::json::parse(stream).at(GetParam());
  absl::StatusOr<GgufFile> file = GgufFile::Open(TestdataPath(GetParam()));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->version(), golden["version"]);

  EXPECT_GE(golden["metadata"].size(), 18u);
  for (const auto& [key, expected] : golden["metadata"].items()) {
    const GgufValue* value = file->Find(key);
    ASSERT_NE(value, nullptr) << key;
    EXPECT_EQ(AsJson(*value), expected) << key;
  }

  ASSERT_EQ(file->tensors().size(), 8u);
  ASSERT_EQ(golden["tensors"].size(), 8u);
  for (size_t i = 0; i < file->tensors().size(); ++i) {
    const nlohmann::json& expected = golden["tensors"][i];
    const GgufTensor& tensor = file->tensors()[i];
    SCOPED_TRACE(tensor.name);
    EXPECT_EQ(tensor.name, expected["name"]);
    EXPECT_EQ(file->FindTensor(tensor.name), &tensor);
    EXPECT_EQ(name(tensor.type), expected["type"].get<std::string>());
    EXPECT_EQ(tensor.shape, expected["shape"].get<std::vector<int64_t>>());
    EXPECT_EQ(tensor.data - file->bytes().data(), expected["file_offset"]);
    EXPECT_EQ(
        absl::BytesToHexString({reinterpret_cast<const char*>(tensor.data), tensor.size_bytes}),
        expected["data"].get<std::string>());
    const auto values = expected["values"].get<std::vector<float>>();
    EXPECT_EQ(tensor.elements, static_cast<int64_t>(values.size()));
    // Exact: d * q has at most 18 significant bits; only Q4_1's sum may round, and rounds the same.
    EXPECT_EQ(Values(tensor), values);
  }
}

INSTANTIATE_TEST_SUITE_P(Versions, GgufGolden, ::testing::Values("gguf_v2.gguf", "gguf_v3.gguf"),
                         [](const auto& info) { return info.param.substr(0, 7); });

// A small valid file to break.
GgufBuilder Valid() {
  GgufBuilder b;
  b.String("general.architecture", "llama").Uint32("a.uint", 7).Int32("a.int", -7);
  b.Float32("a.float", 0.5f).Bool("a.bool", true).Strings("a.strings", {"x", "yy"});
  b.Int32s("a.ints", {1, -2}).Float32s("a.floats", {0.25f});
  b.RandomTensor("first", TensorType::kQ4_1, {64, 2}, 1);
  b.RandomTensor("second", TensorType::kF32, {3}, 2);
  return b;
}

absl::Status ParseStatus(const std::vector<std::byte>& bytes) {
  return GgufFile::Parse(bytes).status();
}

TEST(GgufFile, GettersAnswerAndNameTheKey) {
  const std::vector<std::byte> bytes = Valid().Build();
  absl::StatusOr<GgufFile> file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->GetString("general.architecture").value(), "llama");
  EXPECT_EQ(file->GetUint("a.uint").value(), 7u);
  EXPECT_EQ(file->GetFloat("a.float").value(), 0.5);
  EXPECT_TRUE(file->GetBool("a.bool").value());
  EXPECT_THAT(file->GetStringArray("a.strings").value(), ElementsAre("x", "yy"));
  EXPECT_THAT(file->GetIntArray("a.ints").value(), ElementsAre(1, -2));
  EXPECT_THAT(file->GetFloatArray("a.floats").value(), ElementsAre(0.25));
  EXPECT_FALSE(file->Has("absent"));
  EXPECT_EQ(file->Find("absent"), nullptr);
  EXPECT_EQ(file->FindTensor("absent"), nullptr);
  EXPECT_EQ(file->GetUintOr("absent", 9).value(), 9u);
  EXPECT_EQ(file->GetFloatOr("absent", 0.75).value(), 0.75);
  EXPECT_EQ(file->GetStringOr("absent", "none").value(), "none");
  EXPECT_FALSE(file->GetBoolOr("absent", false).value());

  EXPECT_EQ(file->GetUint("absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(file->GetUint("absent").status().message(), HasSubstr("'absent'"));
  for (const absl::Status& status :
       {file->GetUint("a.int").status(), file->GetUintOr("a.int", 1).status(),
        file->GetString("a.int").status(), file->GetFloat("a.int").status(),
        file->GetBool("a.int").status(), file->GetIntArray("a.int").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'a.int'"), HasSubstr("the integer -7")));
  }
  EXPECT_THAT(file->GetString("a.strings").status().message(), HasSubstr("an array of 2 strings"));
}

TEST(GgufFile, StaysValidWhenMoved) {
  const std::string path = TestdataPath("gguf_v3.gguf");
  absl::StatusOr<GgufFile> opened = GgufFile::Open(path);
  ASSERT_TRUE(opened.ok());
  GgufFile moved = *std::move(opened);
  opened = absl::NotFoundError("gone");
  EXPECT_EQ(LoadAt<float>(moved.FindTensor("vector")->data, 16), 4.0f);
}

TEST(GgufFile, AcceptsAFileWithoutTensorsAndOneWithoutMetadata) {
  EXPECT_TRUE(ParseStatus(GgufBuilder().Build()).ok());
  EXPECT_TRUE(ParseStatus(GgufBuilder().F32Tensor("t", {1}, {1.0f}).Build()).ok());
}

TEST(GgufFile, AcceptsTensorsInAnyOrderOfTheirData) {
  GgufBuilder b = Valid();
  b.tensors[0].offset = 32;
  b.tensors[1].offset = 0;
  // The data of the first takes 80 bytes at 32; the builder wrote 96 + 32.
  ASSERT_TRUE(ParseStatus(b.Build()).ok()) << ParseStatus(b.Build());
}

TEST(GgufFile, AcceptsOtherAlignments) {
  for (uint32_t alignment : {8u, 64u, 4096u}) {
    GgufBuilder b = Valid().Uint32("general.alignment", alignment);
    b.alignment = alignment;
    absl::StatusOr<GgufFile> file = GgufFile::Parse(b.Build());
    EXPECT_TRUE(file.ok()) << file.status();
  }
}

struct Broken {
  const char* name;
  std::function<void(GgufBuilder&)> change;
  absl::StatusCode code;
  std::vector<std::string> message;  // parts of it
};

class GgufBroken : public ::testing::TestWithParam<Broken> {};

TEST_P(GgufBroken, IsRefusedWithTheReason) {
  GgufBuilder b = Valid();
  GetParam().change(b);
  const absl::Status status = ParseStatus(b.Build());
  EXPECT_EQ(status.code(), GetParam().code) << status;
  for (const std::string& part : GetParam().message) EXPECT_THAT(status.message(), HasSubstr(part));
}

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnsupported = absl::StatusCode::kUnimplemented;

// An array header: element type, count.
std::string ArrayHeader(uint32_t type, uint64_t count) {
  return GgufBuilder::Raw(type) + GgufBuilder::Raw(count);
}

INSTANTIATE_TEST_SUITE_P(
    Rules, GgufBroken,
    ::testing::Values(
        Broken{"Version1",
               [](GgufBuilder& b) { b.version = 1; },
               kUnsupported,
               {"version 1", "2 and 3"}},
        Broken{"Version4", [](GgufBuilder& b) { b.version = 4; }, kUnsupported, {"version 4"}},
        Broken{"Version0", [](GgufBuilder& b) { b.version = 0; }, kUnsupported, {"version 0"}},
        Broken{"BigEndian",
               [](GgufBuilder& b) { b.version = 0x03000000; },
               kUnsupported,
               {"big endian", "offset 4"}},
        Broken{"TensorCount",
               [](GgufBuilder& b) { b.tensor_count = int64_t{1} << 60; },
               kInvalid,
               {"1152921504606846976 tensors", "offset 8"}},
        Broken{"MetadataCount",
               [](GgufBuilder& b) { b.metadata_count = int64_t{1} << 60; },
               kInvalid,
               {"1152921504606846976 metadata entries", "offset 16"}},
        Broken{"HugeString",
               [](GgufBuilder& b) { b.Set("s", 8, GgufBuilder::Raw(uint64_t{1} << 60)); },
               kInvalid,
               {"metadata key 's'", "1152921504606846976 bytes", "left in the file"}},
        Broken{"HugeStringInArray",
               [](GgufBuilder& b) {
                 b.Set("s", 9, ArrayHeader(8, 1) + GgufBuilder::Raw(~uint64_t{0}));
               },
               kInvalid,
               {"'s'", "18446744073709551615 bytes"}},
        Broken{"HugeArray",
               [](GgufBuilder& b) { b.Set("n", 9, ArrayHeader(0, ~uint64_t{0})); },
               kInvalid,
               {"'n'", "18446744073709551615 elements"}},
        Broken{"HugeWideArray",
               [](GgufBuilder& b) { b.Set("n", 9, ArrayHeader(10, 50)); },
               kInvalid,
               {"'n'", "50 elements of 8 bytes"}},
        Broken{"HugeStringArray",
               [](GgufBuilder& b) { b.Set("n", 9, ArrayHeader(8, uint64_t{1} << 61)); },
               kInvalid,
               {"'n'", "2305843009213693952 elements of 8 bytes"}},
        Broken{"TooLongArray",
               [](GgufBuilder& b) { b.Array("n", 0, std::vector<uint8_t>((size_t{1} << 24) + 1)); },
               kUnsupported,
               {"'n'", "16777217 elements", "up to 16777216"}},
        Broken{"BigUint64InArray",
               [](GgufBuilder& b) { b.Array("n", 10, std::vector<uint64_t>{1, ~uint64_t{0}}); },
               kUnsupported,
               {"'n'", "element 1", "18446744073709551615"}},
        Broken{"NestedArray",
               [](GgufBuilder& b) { b.Set("n", 9, ArrayHeader(9, 1) + ArrayHeader(4, 0)); },
               kUnsupported,
               {"'n'", "arrays of arrays"}},
        Broken{"UnknownValueType",
               [](GgufBuilder& b) { b.Set("v", 13, "12345678"); },
               kInvalid,
               {"'v'", "value type 13", "0 to 12"}},
        Broken{"UnknownElementType",
               [](GgufBuilder& b) { b.Set("v", 9, ArrayHeader(77, 1)); },
               kInvalid,
               {"'v'", "element type 77"}},
        Broken{"BoolOf2", [](GgufBuilder& b) { b.Set("v", 7, "\2"); }, kInvalid, {"'v'", "not 2"}},
        Broken{"BoolOf2InArray",
               [](GgufBuilder& b) { b.Set("v", 9, ArrayHeader(7, 1) + "\2"); },
               kInvalid,
               {"'v'", "not 2"}},
        Broken{"EmptyKey",
               [](GgufBuilder& b) { b.Uint32("", 1); },
               kInvalid,
               {"metadata entry 9 of 9", "length of 0 bytes", "1 to 65535"}},
        Broken{"LongKey",
               [](GgufBuilder& b) { b.Uint32(std::string(65536, 'k'), 1); },
               kInvalid,
               {"length of 65536 bytes"}},
        Broken{"DuplicateKey",
               [](GgufBuilder& b) { b.entries.push_back(b.entries[1]); },
               kInvalid,
               {"metadata key 'a.uint'", "twice"}},
        Broken{"UnprintableKey",
               [](GgufBuilder& b) { b.Set(std::string("k\n\0\xFF", 4), 13, ""); },
               kInvalid,
               {"'k\\n\\x00\\xff'"}},
        Broken{"AlignmentNoPower",
               [](GgufBuilder& b) { b.Uint32("general.alignment", 24); },
               kInvalid,
               {"'general.alignment' is 24", "power of two"}},
        Broken{"AlignmentZero",
               [](GgufBuilder& b) { b.Uint32("general.alignment", 0); },
               kInvalid,
               {"'general.alignment' is 0"}},
        Broken{"AlignmentHuge",
               [](GgufBuilder& b) { b.Uint64("general.alignment", 1ull << 63); },
               kInvalid,
               {"'general.alignment' is 9223372036854775808"}},
        Broken{"AlignmentString",
               [](GgufBuilder& b) { b.String("general.alignment", "32"); },
               kInvalid,
               {"'general.alignment' is of another type"}},
        Broken{"EmptyTensorName",
               [](GgufBuilder& b) { b.tensors[1].name = ""; },
               kInvalid,
               {"tensor 2 of 2", "length of 0 bytes", "1 to 64"}},
        Broken{"LongTensorName",
               [](GgufBuilder& b) { b.tensors[1].name = std::string(65, 'n'); },
               kInvalid,
               {"length of 65 bytes"}},
        Broken{"DuplicateTensor",
               [](GgufBuilder& b) { b.tensors[1].name = "first"; },
               kInvalid,
               {"tensor 'first'", "twice"}},
        Broken{"NoDimensions",
               [](GgufBuilder& b) { b.tensors[1].shape = {}; },
               kInvalid,
               {"tensor 'second'", "0 dimensions", "1 to 4"}},
        Broken{"FiveDimensions",
               [](GgufBuilder& b) { b.tensors[1].shape = {3, 1, 1, 1, 1}; },
               kInvalid,
               {"tensor 'second'", "5 dimensions"}},
        Broken{"DimensionZero",
               [](GgufBuilder& b) { b.tensors[1].shape = {3, 0}; },
               kInvalid,
               {"tensor 'second'", "dimension 1 is 0"}},
        Broken{"ElementsOverflow",
               [](GgufBuilder& b) { b.tensors[1].shape = {1ull << 32, 1ull << 31}; },
               kInvalid,
               {"tensor 'second'", "dimension 1 is 2147483648", "overflows"}},
        Broken{"ElementsWrapToSmall",
               [](GgufBuilder& b) { b.tensors[1].shape = {1ull << 32, 1ull << 32, 3}; },
               kInvalid,
               {"tensor 'second'", "overflows"}},
        Broken{"DimensionNegative",
               [](GgufBuilder& b) { b.tensors[1].shape = {~0ull}; },
               kInvalid,
               {"tensor 'second'", "dimension 0 is 18446744073709551615", "overflows"}},
        Broken{"BytesOverflow",
               [](GgufBuilder& b) { b.tensors[1].shape = {1ull << 62}; },
               kInvalid,
               {"tensor 'second'", "size in bytes", "overflows"}},
        Broken{"RowNoMultipleOfBlock",
               [](GgufBuilder& b) { b.tensors[0].shape = {48, 2}; },
               kInvalid,
               {"tensor 'first'", "48", "Q4_1", "32"}},
        Broken{"TypeQ4K",
               [](GgufBuilder& b) { b.tensors[0].ggml_type = 12; },
               kUnsupported,
               {"tensor 'first'", "type 12 (Q4_K)", "F32, F16, BF16, Q8_0, Q4_0, Q4_1"}},
        Broken{"TypeMxfp4",
               [](GgufBuilder& b) { b.tensors[0].ggml_type = 39; },
               kUnsupported,
               {"type 39 (MXFP4)"}},
        Broken{"TypeUnknown",
               [](GgufBuilder& b) { b.tensors[0].ggml_type = 0xFFFFFFFF; },
               kUnsupported,
               {"tensor 'first'", "type 4294967295 (unknown)"}},
        Broken{"MisalignedOffset",
               [](GgufBuilder& b) { b.tensors[1].offset = 97; },
               kInvalid,
               {"tensor 'second'", "offset 97", "alignment 32"}},
        Broken{"OffsetBeyondTheFile",
               [](GgufBuilder& b) { b.tensors[1].offset = 1 << 20; },
               kInvalid,
               {"tensor 'second'", "12 bytes at data offset 1048576", "truncated"}},
        Broken{
            "OffsetThatWraps",
            [](GgufBuilder& b) { b.tensors[1].offset = std::numeric_limits<int64_t>::max() - 31; },
            kInvalid,
            {"tensor 'second'", "9223372036854775776"}},
        Broken{"SizeBeyondTheFile",
               [](GgufBuilder& b) { b.tensors[1].shape = {9}; },
               kInvalid,
               {"tensor 'second'", "36 bytes at data offset 96", "128 bytes of tensor data"}},
        Broken{"Overlap",
               [](GgufBuilder& b) { b.tensors[1].offset = 64; },
               kInvalid,
               {"tensor 'second'", "overlaps that of tensor 'first'"}},
        Broken{"SamePlace",
               [](GgufBuilder& b) { b.tensors[1].offset = 0; },
               kInvalid,
               {"tensor 'second'", "overlaps that of tensor 'first'"}}),
    [](const auto& info) { return info.param.name; });

TEST(GgufFile, SaysThatOtherFilesAreNoGguf) {
  const std::string text = "PK\x03\x04 a zip file, which is long enough";
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(text.data()),
                                          text.size());
  const absl::Status status = GgufFile::Parse(bytes).status();
  EXPECT_EQ(status.code(), kInvalid);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("not a GGUF file"), HasSubstr("PK\\x03\\x04")));
  EXPECT_EQ(GgufFile::Parse({}).status().code(), kInvalid);
}

TEST(GgufFile, EveryTruncationIsRefused) {
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

TEST(GgufFile, OpenNamesThePathAndTheReason) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("gguf_test_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string empty = folder / "empty.gguf";
  std::ofstream(empty).close();
  const std::string fifo = folder / "fifo.gguf";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::string broken = folder / "broken.gguf";
  ASSERT_TRUE(Valid().Uint32("general.alignment", 3).Write(broken));
  const std::string good = folder / "good.gguf";
  ASSERT_TRUE(Valid().Write(good));

  const auto expect = [](const std::string& path, absl::StatusCode code, const char* reason) {
    const absl::Status status = GgufFile::Open(path).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status.message(), AllOf(HasSubstr(path), HasSubstr(reason)));
  };
  expect(folder / "absent.gguf", absl::StatusCode::kNotFound, "No such file");
  expect(empty, kInvalid, "empty");
  expect(folder, kInvalid, "directory");
  expect(fifo, kInvalid, "not a regular file");
  expect(broken, kInvalid, "'general.alignment' is 3");
  EXPECT_TRUE(GgufFile::Open(good).ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ripplekv
