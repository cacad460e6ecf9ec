#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "calibration/settings.h"

namespace ripplekv {

inline constexpr char kDefaultCorpusName[] = "default";
inline constexpr char kInlineCorpusName[] = "inline";
inline constexpr int64_t kMaxCorpusTexts = 4096;
inline constexpr int64_t kMaxCorpusBytes = int64_t{64} << 20;

// Texts that calibration examples are cut from.
struct Corpus {
  std::string name;
  std::vector<std::string> texts;
  // SHA-256 over the texts in order, in the encoding of canonical_digest.h. The name is not part.
  std::string digest;
};

// Checks the texts: at least one, none empty, valid UTF-8, within the limits above.
// INVALID_ARGUMENT names the text's index. `name` is kInlineCorpusName for a request's own texts.
absl::StatusOr<Corpus> CorpusFromTexts(std::string name, std::vector<std::string> texts);

// The corpus in `corpus_dir`/`name`: its *.txt files in byte order of their names. `name` matches
// [a-z0-9_-]{1,64}, never a path. INVALID_ARGUMENT for a name; NOT_FOUND saying what there is and
// how there can be more, also where the server has no corpus directory (empty `corpus_dir`);
// FAILED_PRECONDITION for a folder without texts. The default corpus is in default_corpus.h.
absl::StatusOr<Corpus> LoadCorpus(const std::string& corpus_dir, const std::string& name);

// Cuts settings.examples examples of settings.example_tokens() tokens: first the start of each
// text, in order; where more are asked for, the next stretch of each text in turn, never
// overlapping. Texts too short for a stretch are passed over. INVALID_ARGUMENT with the numbers
// when the texts do not give enough.
absl::StatusOr<std::vector<std::vector<int32_t>>> MakeExamples(
    absl::Span<const std::vector<int32_t>> tokenized_texts, const CalibrationSettings& settings);

}  // namespace ripplekv
