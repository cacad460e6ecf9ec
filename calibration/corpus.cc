#include "calibration/corpus.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "calibration/canonical_digest.h"
#include "model/unicode.h"

namespace ripplekv {
namespace {

namespace fs = std::filesystem;

bool IsCorpusName(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

// What a client may name instead.
std::string KnownCorpora(const std::string& corpus_dir) {
  std::vector<std::string> names = {kDefaultCorpusName};
  std::error_code error;
  fs::directory_iterator it(corpus_dir, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    if (IsCorpusName(name) && it->is_directory(ignored)) names.push_back(name);
  }
  std::sort(names.begin() + 1, names.end());
  return absl::StrJoin(names, ", ");
}

absl::StatusOr<std::vector<fs::path>> TextFiles(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator it(directory, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    if (it->path().extension() == ".txt" && it->is_regular_file(ignored)) {
      files.push_back(it->path());
    }
  }
  if (error)
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot list ", directory.string()));
  std::sort(files.begin(), files.end());
  return files;
}

absl::Status CheckLimits(int64_t texts, int64_t bytes) {
  if (texts > kMaxCorpusTexts) {
    return absl::InvalidArgumentError(
        absl::StrCat("texts has ", texts, " entries: must be 1 to ", kMaxCorpusTexts));
  }
  if (bytes > kMaxCorpusBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("texts has ", bytes, " bytes: must be at most ", kMaxCorpusBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Corpus> CorpusFromTexts(std::string name, std::vector<std::string> texts) {
  if (texts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("texts is empty: must be 1 to ", kMaxCorpusTexts, " texts"));
  }
  int64_t bytes = 0;
  for (const std::string& text : texts) bytes += static_cast<int64_t>(text.size());
  if (absl::Status status = CheckLimits(static_cast<int64_t>(texts.size()), bytes); !status.ok()) {
    return status;
  }
  CanonicalDigest digest("ripplekv corpus");
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty() || FindInvalidUtf8(texts[i]) != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("texts[", i, "] is ",
                                                     texts[i].empty() ? "empty" : "not valid UTF-8",
                                                     ": each text must be non-empty UTF-8"));
    }
    digest.AddText("text", texts[i]);
  }
  return Corpus{std::move(name), std::move(texts), digest.Hex()};
}

absl::StatusOr<Corpus> LoadCorpus(const std::string& corpus_dir, const std::string& name) {
  if (!IsCorpusName(name)) {
    return absl::InvalidArgumentError(absl::StrCat("name is '", Excerpt(name),
                                                   "': must be 1 to 64 of a-z, 0-9, '-' and '_'"));
  }
  if (corpus_dir.empty()) {
    return absl::NotFoundError(
        absl::StrCat("corpus \"", name, "\" is unknown: this server has only ", kDefaultCorpusName,
                     "; a directory of others is named with --corpus-dir"));
  }
  const fs::path directory = fs::path(corpus_dir) / name;
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return absl::NotFoundError(
        absl::StrCat("corpus \"", name, "\" is unknown: this server has ", KnownCorpora(corpus_dir),
                     " (others: folders of .txt files in its --corpus-dir)"));
  }
  absl::StatusOr<std::vector<fs::path>> files = TextFiles(directory);
  if (!files.ok()) return files.status();
  if (files->empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("corpus \"", name, "\" has no *.txt files in ", directory.string()));
  }
  std::vector<std::string> texts;
  int64_t bytes = 0;
  for (const fs::path& file : *files) {
    bytes += static_cast<int64_t>(fs::file_size(file, error));
    if (error)
      return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot read ", file.string()));
    absl::Status status = CheckLimits(static_cast<int64_t>(files->size()), bytes);
    if (!status.ok()) return status;
    std::ifstream stream(file, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
    if (stream.bad() || !stream.is_open()) {
      return absl::UnknownError(absl::StrCat("cannot read ", file.string()));
    }
  }
  return CorpusFromTexts(name, std::move(texts));
}

absl::StatusOr<std::vector<std::vector<int32_t>>> MakeExamples(
    absl::Span<const std::vector<int32_t>> tokenized_texts, const CalibrationSettings& settings) {
  const int64_t length = settings.example_tokens();
  const auto wanted = static_cast<size_t>(settings.examples);
  std::vector<std::vector<int32_t>> examples;
  for (int64_t round = 0; examples.size() < wanted; ++round) {
    const size_t before = examples.size();
    for (const std::vector<int32_t>& text : tokenized_texts) {
      if (examples.size() == wanted) break;
      if (static_cast<int64_t>(text.size()) < (round + 1) * length) continue;
      const auto begin = text.begin() + round * length;
      examples.emplace_back(begin, begin + length);
    }
    if (examples.size() == before) {
      return absl::InvalidArgumentError(absl::StrCat(
          "examples is ", wanted, ": the corpus's ", tokenized_texts.size(), " texts give ",
          examples.size(), " of prefix_tokens + window_tokens = ", length,
          " tokens; ask for fewer or shorter examples, or give more or longer texts"));
    }
  }
  return examples;
}

}  // namespace ripplekv
