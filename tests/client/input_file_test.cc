#include "client/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace ripplekv {
namespace {

using testing::HasSubstr;

std::string Write(const std::string& bytes) {
  const std::string path = testing::TempDir() + "/input_file_test_" + std::to_string(getpid());
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(InputFileTest, TextComesAsItIsWithoutAByteOrderMark) {
  std::string text = "line\r\n\tnaïve 🙂\n";
  text += std::string(200000, 'x');
  EXPECT_EQ(*ReadText(Write(text)), text);
  EXPECT_EQ(*ReadText(Write("\xEF\xBB\xBF" + text)), text);
  EXPECT_EQ(*ReadBytes(Write("\xFF\x00z")), "\xFF");
}

TEST(InputFileTest, WhatCannotBeReadIsNamed) {
  EXPECT_EQ(ReadText("/no/such/file").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ReadText("/no/such/file").status().message(),
              HasSubstr("/no/such/file: No such file"));
  EXPECT_THAT(ReadText("/").status().message(), HasSubstr("cannot read /"));
  EXPECT_THAT(ReadText(Write("")).status().message(), HasSubstr("is empty"));
  EXPECT_THAT(ReadText(Write("\xEF\xBB\xBF")).status().message(), HasSubstr("is empty"));
  EXPECT_THAT(ReadText(Write("caf\xE9 au lait")).status().message(), HasSubstr("see its byte 3"));
}

}  // namespace
}  // namespace ripplekv
