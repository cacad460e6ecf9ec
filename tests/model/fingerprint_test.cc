#include "model/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace ripplekv {
namespace {

std::string HashOf(const std::string& content) {
  const std::string path = ::testing::TempDir() + "/fingerprint_test_" + std::to_string(getpid());
  std::ofstream(path, std::ios::binary) << content;
  absl::StatusOr<std::string> hash = FileSha256(path);
  std::remove(path.c_str());
  return hash.ok() ? *hash : hash.status().ToString();
}

// Vectors of FIPS 180-2, and a length beyond one read.
TEST(FileSha256, MatchesTheStandard) {
  EXPECT_EQ(HashOf(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HashOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HashOf(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  // sha256sum of 3 MiB of zeros.
  EXPECT_EQ(HashOf(std::string(3 << 20, '\0')),
            "bbd05cf6097ac9b1f89ea29d2542c1b7b67ee46848393895f5a9e43fa1f621e5");
}

TEST(FileSha256, NamesThePath) {
  const absl::Status absent = FileSha256("/nonexistent/model.gguf").status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(absent.message(), ::testing::HasSubstr("/nonexistent/model.gguf"));
  EXPECT_EQ(FileSha256("/").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FileSha256, IsTheChecksumThatGetModelPins) {
  const char* configured = std::getenv("RIPPLEKV_MODEL");
  if (configured != nullptr) GTEST_SKIP() << "RIPPLEKV_MODEL is another model";
  absl::StatusOr<std::string> hash = FileSha256(RIPPLEKV_DEFAULT_MODEL);
  ASSERT_TRUE(hash.ok()) << hash.status() << "\nGet the model with scripts/get_model.sh";
  std::ifstream script(std::string(RIPPLEKV_SOURCE_DIR) + "/scripts/get_model.sh");
  const std::string text((std::istreambuf_iterator<char>(script)),
                         std::istreambuf_iterator<char>());
  EXPECT_THAT(text, ::testing::HasSubstr("sha256=" + *hash + "\n"));
}

}  // namespace
}  // namespace ripplekv
