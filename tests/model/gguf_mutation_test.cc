#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "model/gguf.h"
#include "model/model_config.h"
#include "tests/model/tiny_llama.h"

namespace ripplekv {
namespace {

// Damaged model files either are refused with a reason or read as another valid model. Under
// AddressSanitizer and UBSan these tests also show that nothing outside the file is read, and that
// memory stays in proportion to it.

struct Outcomes {
  int accepted = 0;
  int refused = 0;
};

// Reads everything that a loader would, tensor data included.
void Check(absl::Span<const std::byte> bytes, const absl::StatusOr<GgufFile>& file,
           Outcomes* outcomes) {
  absl::Status status = file.status();
  if (status.ok()) {
    EXPECT_LE(file->tensors().size(), bytes.size() / 33);
    unsigned sum = 0;
    for (const GgufTensor& tensor : file->tensors()) {
      ASSERT_GE(tensor.data, file->bytes().data());
      ASSERT_LE(tensor.size_bytes, bytes.size());
      for (size_t i = 0; i < tensor.size_bytes; ++i)
        sum += std::to_integer<unsigned>(tensor.data[i]);
    }
    volatile unsigned keep = sum;
    (void)keep;
    status = ModelConfig::FromGguf(*file).status();
  }
  if (status.ok()) {
    ++outcomes->accepted;
    return;
  }
  ++outcomes->refused;
  EXPECT_TRUE(status.code() == absl::StatusCode::kInvalidArgument ||
              status.code() == absl::StatusCode::kUnimplemented)
      << status;
  EXPECT_GE(status.message().size(), 20u) << status;
}

void CheckMemory(const std::vector<std::byte>& mutated, Outcomes* outcomes) {
  Check(mutated, GgufFile::Parse(mutated), outcomes);
}

GgufBuilder SmallModel() {
  TinyLlamaOptions options;
  options.layers = 1;
  options.hidden = 32;
  options.ffn = 32;
  options.heads = 2;
  options.kv_heads = 1;
  return TinyLlama(options);
}

TEST(GgufMutation, TheUnharmedModelIsAccepted) {
  Outcomes outcomes;
  CheckMemory(SmallModel().Build(), &outcomes);
  EXPECT_EQ(outcomes.accepted, 1);
}

TEST(GgufMutation, Truncated) {
  const GgufBuilder model = SmallModel();
  const std::vector<std::byte> whole = model.Build();
  Outcomes outcomes;
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    const size_t limit = i % 2 == 0 ? model.HeaderBytes() : whole.size();
    const size_t size = random() % limit;
    CheckMemory({whole.begin(), whole.begin() + size}, &outcomes);
  }
  // All but cuts in the last tensor's padding, of which this file has none.
  EXPECT_EQ(outcomes.refused, 300);
}

TEST(GgufMutation, BitsFlipped) {
  const GgufBuilder model = SmallModel();
  const std::vector<std::byte> whole = model.Build();
  // The token strings fill most of the header: flip within the numbers around them more often.
  Outcomes outcomes;
  std::mt19937_64 random(2);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> mutated = whole;
    const size_t limit = i % 4 == 0 ? whole.size() : i % 4 == 1 ? 700 : model.HeaderBytes();
    for (uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
      mutated[random() % limit] ^= std::byte{1} << (random() % 8);
    }
    CheckMemory(mutated, &outcomes);
  }
  EXPECT_GT(outcomes.refused, 500);
  EXPECT_GT(outcomes.accepted, 100);
}

TEST(GgufMutation, NumbersReplacedByExtremes) {
  const GgufBuilder model = SmallModel();
  const std::vector<std::byte> whole = model.Build();
  const uint64_t extremes[] = {
      0, 1, 0x7FFFFFFF, 0xFFFFFFFF, uint64_t{1} << 60, ~uint64_t{0} >> 1, ~uint64_t{0}};
  Outcomes outcomes;
  std::mt19937_64 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> mutated = whole;
    const size_t limit = (i % 2 == 0 ? 1000 : model.HeaderBytes()) - sizeof(uint64_t);
    const size_t bytes = random() % 2 == 0 ? 4 : 8;
    std::memcpy(mutated.data() + random() % limit, &extremes[random() % std::size(extremes)],
                bytes);
    CheckMemory(mutated, &outcomes);
  }
  EXPECT_GT(outcomes.refused, 1000);
}

TEST(GgufMutation, BytesRemovedAndInserted) {
  const GgufBuilder model = SmallModel();
  const std::vector<std::byte> whole = model.Build();
  Outcomes outcomes;
  std::mt19937_64 random(4);
  for (int i = 0; i < 500; ++i) {
    std::vector<std::byte> mutated = whole;
    const auto at = mutated.begin() + static_cast<int64_t>(random() % (model.HeaderBytes() - 64));
    const int64_t count = 1 + static_cast<int64_t>(random() % 64);
    if (i % 2 == 0) {
      mutated.erase(at, at + count);
    } else {
      mutated.insert(at, static_cast<size_t>(count), static_cast<std::byte>(random()));
    }
    CheckMemory(mutated, &outcomes);
  }
  EXPECT_GT(outcomes.refused, 400);
}

// The same through a mapping: the bytes after a mapped file's end are the kernel's, not the
// sanitizer's.
TEST(GgufMutation, MappedFiles) {
  const GgufBuilder model = SmallModel();
  const std::vector<std::byte> whole = model.Build();
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) /
                                     ("gguf_mutation_" + std::to_string(getpid()) + ".gguf");
  Outcomes outcomes;
  std::mt19937_64 random(5);
  for (int i = 0; i < 200; ++i) {
    std::vector<std::byte> mutated = whole;
    if (i % 2 == 0) {
      mutated.resize(1 + random() % (mutated.size() - 1));
    } else {
      mutated[random() % model.HeaderBytes()] ^= std::byte{1} << (random() % 8);
    }
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(mutated.data()),
               static_cast<std::streamsize>(mutated.size()));
    Check(mutated, GgufFile::Open(path), &outcomes);
  }
  EXPECT_GT(outcomes.refused, 100);
  std::filesystem::remove(path);
}

// The head of a real model, whose metadata is that of files in the wild.
TEST(GgufMutation, RealModelsHeader) {
  const char* configured = std::getenv("RIPPLEKV_MODEL");
  const std::string path = configured != nullptr ? configured : RIPPLEKV_DEFAULT_MODEL;
  absl::StatusOr<GgufFile> model = GgufFile::Open(path);
  ASSERT_TRUE(model.ok()) << model.status() << "\nGet the model with scripts/get_model.sh";
  size_t header = model->bytes().size();
  for (const GgufTensor& tensor : model->tensors()) {
    header = std::min(header, static_cast<size_t>(tensor.data - model->bytes().data()));
  }
  Outcomes outcomes;
  std::mt19937_64 random(6);
  for (int i = 0; i < 60; ++i) {
    std::vector<std::byte> mutated(model->bytes().begin(), model->bytes().begin() + header);
    if (i % 2 == 0) {
      mutated.resize(random() % header);
    } else {
      mutated[random() % header] ^= std::byte{1} << (random() % 8);
    }
    CheckMemory(mutated, &outcomes);
  }
  EXPECT_EQ(outcomes.refused, 60);  // the tensors' data is cut off in all of them
}

}  // namespace
}  // namespace ripplekv
