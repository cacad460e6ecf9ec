#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
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

// A small valid file.
GgufBuilder Valid() {
  GgufBuilder b;
  b.String("general.architecture", "llama").Uint32("a.uint", 7).Int32("a.int", -7);
  b.Float32("a.float", 0.5f).Bool("a.bool", true).Strings("a.strings", {"x", "yy"});
  b.Int32s("a.ints", {1, -2}).Float32s("a.floats", {0.25f});
  b.RandomTensor("first", TensorType::kQ4_1, {64, 2}, 1);
  b.RandomTensor("second", TensorType::kF32, {3}, 2);
  return b;
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

// An array of T's extremes.
template <typename T>
void ExpectExtremesKept(uint32_t type) {
  const std::vector<T> extremes = {
      std::numeric_limits<T>::min(), 0,
      static_cast<T>(std::numeric_limits<T>::max() & 0x7FFFFFFFFFFFFFFF)};
  const std::vector<std::byte> bytes = GgufBuilder().Array("n", type, extremes).Build();
  absl::StatusOr<GgufFile> file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->GetIntArray("n").value(), std::vector<int64_t>(extremes.begin(), extremes.end()))
      << "value type " << type;
}

TEST(GgufFile, IntegerArraysOfEachType) {
  ExpectExtremesKept<uint8_t>(0);
  ExpectExtremesKept<int8_t>(1);
  ExpectExtremesKept<uint16_t>(2);
  ExpectExtremesKept<int16_t>(3);
  ExpectExtremesKept<uint32_t>(4);
  ExpectExtremesKept<int32_t>(5);
  ExpectExtremesKept<uint64_t>(10);
  ExpectExtremesKept<int64_t>(11);
}

TEST(GgufFile, FloatArraysOfBothTypes) {
  const std::vector<std::byte> bytes = GgufBuilder()
                                           .Array("f", 6, std::vector<float>{0.1f})
                                           .Array("d", 12, std::vector<double>{0.1})
                                           .Build();
  absl::StatusOr<GgufFile> file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->GetFloatArray("f").value(), ElementsAre(0.1f));
  EXPECT_THAT(file->GetFloatArray("d").value(), ElementsAre(0.1));
}

TEST(GgufFile, StaysValidWhenMoved) {
  const std::string path = TestdataPath("gguf_v3.gguf");
  absl::StatusOr<GgufFile> opened = GgufFile::Open(path);
  ASSERT_TRUE(opened.ok());
  GgufFile moved = *std::move(opened);
  opened = absl::NotFoundError("gone");
  EXPECT_EQ(LoadAt<float>(moved.FindTensor("vector")->data, 16), 4.0f);
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
  expect(empty, absl::StatusCode::kInvalidArgument, "empty");
  expect(folder, absl::StatusCode::kInvalidArgument, "directory");
  expect(fifo, absl::StatusCode::kInvalidArgument, "not a regular file");
  expect(broken, absl::StatusCode::kInvalidArgument, "'general.alignment' is 3");
  EXPECT_TRUE(GgufFile::Open(good).ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ripplekv
