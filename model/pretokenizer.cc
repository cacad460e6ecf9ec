#include "model/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "model/concat.h"

namespace ripplekv {
namespace {

// The character classes that the `tokenizers` library has, whatever version of Unicode PCRE2 was built with (10.42:
// Unicode 14).
// clang-format off

// White_Space. PCRE2's own \s differs (it takes U+180E).
#define SPACE \
  "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
// Categories L and N of Unicode 16: what versions 15 and 16 added is written out.
#define LETTER "\\p{L}" \
  "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}" \
  "\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}" \
  "\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}\\x{11380}-\\x{11389}" \
  "\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}" \
  "\\x{113B7}\\x{113D1}\\x{113D3}" \
  "\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}" \
  "\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}" \
  "\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}" \
  "\\x{18CFF}\\x{1B132}\\x{1B155}" \
  "\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}" \
  "\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}" \
  "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"
#define NUMERAL "\\p{N}" \
  "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}" \
  "\\x{11F50}-\\x{11F59}\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}" \
  "\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}\\x{1E4F0}-\\x{1E4F9}" \
  "\\x{1E5F1}-\\x{1E5FA}"
// clang-format on

// https://github.com/openai/gpt-2/blob/master/src/encoder.py, with \s, \p{L} and \p{N} written out.
constexpr std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?[" LETTER "]+| ?[" NUMERAL "]+| ?[^" SPACE LETTER NUMERAL "]+|[" SPACE
    "]+(?![^" SPACE "])|[" SPACE "]+";

// That library cuts numerals off by another table, of Unicode 17.
constexpr std::string_view kEachNumeral = "[" NUMERAL "\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]";
#undef SPACE
#undef LETTER
#undef NUMERAL

}  // namespace

class PreTokenizer::Pattern {
 public:
  static absl::StatusOr<std::shared_ptr<const Pattern>> Compile(std::string_view source) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                     PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    if (code == nullptr) {
      return absl::InternalError(
          Concat("PCRE2 error ", error, " at offset ", offset, " of the pattern ", source));
    }
    // Where the system forbids writable code pages this fails, and matching interprets the pattern
    // instead.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return std::shared_ptr<const Pattern>(new Pattern(code));
  }
  ~Pattern() { pcre2_code_free(code_); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  const pcre2_code* code() const { return code_; }

 private:
  explicit Pattern(pcre2_code* code) : code_(code) {}
  pcre2_code* code_;
};

absl::StatusOr<PreTokenizer> PreTokenizer::Create(std::string_view name) {
  std::vector<std::string_view> patterns;
  if (name == "gpt-2") {
    patterns = {kGpt2Pattern};
  } else if (name == "smollm") {
    patterns = {kEachNumeral, kGpt2Pattern};
  } else {
    return absl::UnimplementedError(
        Concat("pre-tokenizer '", name, "' is not supported; supported: gpt-2, smollm"));
  }
  PreTokenizer made;
  for (std::string_view pattern : patterns) {
    absl::StatusOr<std::shared_ptr<const Pattern>> compiled = Pattern::Compile(pattern);
    if (!compiled.ok()) return compiled.status();
    made.stages_.push_back(*std::move(compiled));
  }
  return made;
}

absl::Status PreTokenizer::Split(std::string_view text,
                                 absl::FunctionRef<void(std::string_view)> piece) const {
  return SplitFrom(0, text, piece);
}

absl::Status PreTokenizer::SplitFrom(size_t stage, std::string_view text,
                                     absl::FunctionRef<void(std::string_view)> piece) const {
  if (text.empty()) return absl::OkStatus();
  if (stage == stages_.size()) {
    piece(text);
    return absl::OkStatus();
  }
  const pcre2_code* code = stages_[stage]->code();
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
  for (size_t at = 0; at < text.size();) {
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                  PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) return SplitFrom(stage + 1, text.substr(at), piece);
    if (found < 0) {
      return absl::InternalError(
          Concat("pre-tokenizing stopped at byte ", at, ": PCRE2 error ", found));
    }
    const size_t begin = range[0], end = range[1];
    if (absl::Status status = SplitFrom(stage + 1, text.substr(at, begin - at), piece);
        !status.ok())
      return status;
    if (absl::Status status = SplitFrom(stage + 1, text.substr(begin, end - begin), piece);
        !status.ok()) {
      return status;
    }
    at = end;
  }
  return absl::OkStatus();
}

}  // namespace ripplekv
