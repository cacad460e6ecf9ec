#include "calibration/corpus.h"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>

#include "calibration/default_corpus.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/calibration/temporary_directory.h"

namespace ripplekv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<int32_t> Tokens(int first, int count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(CorpusTest, DigestCoversTextsInOrderAndNotTheName) {
  const Corpus corpus = *CorpusFromTexts("inline", {"one", "two\n"});
  // hashlib.sha256 over the documented encoding.
  EXPECT_EQ(corpus.digest, "c66bf1efdf16495796bf6cec05698258362c0edc34ab0aaa7f62414275de9bb0");
  EXPECT_EQ(CorpusFromTexts("other", {"one", "two\n"})->digest, corpus.digest);
  EXPECT_NE(CorpusFromTexts("inline", {"two\n", "one"})->digest, corpus.digest);
  EXPECT_NE(CorpusFromTexts("inline", {"onetwo\n"})->digest, corpus.digest);
}

TEST(CorpusTest, BadTextsAreNamed) {
  const auto message = [](std::vector<std::string> texts) {
    const absl::Status status = CorpusFromTexts("inline", std::move(texts)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({}), HasSubstr("texts is empty"));
  EXPECT_THAT(message({"a", ""}), HasSubstr("texts[1] is empty"));
  EXPECT_THAT(message({"a", "b", "\xff"}), HasSubstr("texts[2] is not valid UTF-8"));
  EXPECT_THAT(message(std::vector<std::string>(4097, "a")),
              HasSubstr("texts has 4097 entries: must be 1 to 4096"));
  EXPECT_THAT(message({std::string((64 << 20) + 1, 'a')}),
              HasSubstr("texts has 67108865 bytes: must be at most 67108864"));
}

TEST(CorpusTest, LoadsTextFilesInNameOrder) {
  const TemporaryDirectory directory;
  fs::create_directory(directory.path() + "/notes");
  WriteFile(directory.path() + "/notes/b.txt", "second\r\n");
  WriteFile(directory.path() + "/notes/a.txt", "first");
  WriteFile(directory.path() + "/notes/README.md", "not a text");
  fs::create_directory(directory.path() + "/notes/c.txt");
  const Corpus corpus = *LoadCorpus(directory.path(), "notes");
  EXPECT_EQ(corpus.name, "notes");
  EXPECT_THAT(corpus.texts, ElementsAre("first", "second\r\n"));
  EXPECT_EQ(corpus.digest, CorpusFromTexts("x", {"first", "second\r\n"})->digest);
}

TEST(CorpusTest, UnknownNamesListWhatThereIs) {
  const TemporaryDirectory directory;
  fs::create_directory(directory.path() + "/notes");
  fs::create_directory(directory.path() + "/code");
  const absl::Status unknown = LoadCorpus(directory.path(), "nots").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(
      unknown.message(),
      "corpus \"nots\" is unknown: this server has default, code, notes (others: folders of .txt "
      "files in its --corpus-dir)");
  const absl::Status no_directory = LoadCorpus("", "notes").status();
  EXPECT_EQ(no_directory.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(no_directory.message(),
            "corpus \"notes\" is unknown: this server has only default; a directory of others is "
            "named with --corpus-dir");
  const absl::Status empty = LoadCorpus(directory.path(), "notes").status();
  EXPECT_EQ(empty.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(empty.message()), HasSubstr("no *.txt files"));
}

TEST(CorpusTest, NamesAreNeverPaths) {
  const TemporaryDirectory directory;
  fs::create_directory(directory.path() + "/a");
  WriteFile(directory.path() + "/a/secret.txt", "text");
  ASSERT_TRUE(LoadCorpus(directory.path(), "a").ok());
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../a"), std::string("a/"),
        std::string("./a"), std::string("/a"), directory.path() + "/a", std::string("A"),
        std::string("a\0b", 3), std::string(65, 'a'), std::string("\xc3\xa9")}) {
    EXPECT_EQ(LoadCorpus(directory.path() + "/a/..", name).status().code(),
              absl::StatusCode::kInvalidArgument)
        << name;
  }
}

TEST(CorpusTest, TheDefaultCorpusIsTheFilesOfTheSource) {
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(RIPPLEKV_SOURCE_DIR "/calibration/corpus")) {
    const std::string name = entry.path().filename();
    if (isdigit(name[0]) && name.ends_with(".txt")) files.insert(entry.path());
  }
  const Corpus corpus = *DefaultCorpus();
  EXPECT_EQ(corpus.name, "default");
  ASSERT_GE(files.size(), 24u);
  ASSERT_EQ(corpus.texts.size(), files.size());
  auto text = corpus.texts.begin();
  for (const fs::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    EXPECT_EQ(*text++, std::string(std::istreambuf_iterator<char>(stream), {})) << file;
  }
  EXPECT_EQ(FindCorpus("", "")->digest, corpus.digest);
  EXPECT_EQ(FindCorpus("/nowhere", "default")->digest, corpus.digest);
  EXPECT_EQ(FindCorpus("", "notes").status().code(), absl::StatusCode::kNotFound);
}

TEST(CorpusTest, ExamplesAreTheStartsOfTextsThenTheNextStretches) {
  const std::vector<std::vector<int32_t>> texts = {Tokens(100, 7), Tokens(200, 10), Tokens(300, 2),
                                                   Tokens(400, 3)};
  CalibrationSettings settings{.examples = 6, .prefix_tokens = 2, .window_tokens = 1};
  const auto examples = MakeExamples(texts, settings);
  ASSERT_TRUE(examples.ok()) << examples.status();
  EXPECT_THAT(*examples, ElementsAre(Tokens(100, 3), Tokens(200, 3), Tokens(400, 3), Tokens(103, 3),
                                     Tokens(203, 3), Tokens(206, 3)));
  settings.examples = 2;
  EXPECT_THAT(*MakeExamples(texts, settings), ElementsAre(Tokens(100, 3), Tokens(200, 3)));
}

TEST(CorpusTest, TooFewTokensSaysTheNumbers) {
  const std::vector<std::vector<int32_t>> texts = {Tokens(100, 7), Tokens(200, 10)};
  const absl::Status status =
      MakeExamples(texts, {.examples = 6, .prefix_tokens = 2, .window_tokens = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "examples is 6: the corpus's 2 texts give 5 of prefix_tokens + window_tokens = 3 "
            "tokens; ask for fewer or shorter examples, or give more or longer texts");
  EXPECT_THAT(std::string(MakeExamples({}, {}).status().message()), HasSubstr("0 texts give 0 of"));
}

}  // namespace
}  // namespace ripplekv
