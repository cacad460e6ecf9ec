#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/bpe.h"
#include "model/gguf.h"
#include "model/pretokenizer.h"
#include "model/text_segment.h"
#include "model/unicode.h"

namespace ripplekv {

// GGUF's tokenizer.ggml.token_type.
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// A byte-level BPE tokenizer as a checkpoint stores it.
struct TokenizerData {
  std::vector<std::string> tokens;  // by id; bytes written with GPT-2's byte alphabet
  std::vector<TokenType> types;     // by id
  std::vector<std::string> merges;  // by rank, "left right"
  std::string pre;                  // see PreTokenizer::Create
  std::optional<int32_t> bos, eos, eot, eom, unknown, padding;
  bool add_bos = false;  // the model expects bos before a raw text
  bool add_eos = false;
};

// How control tokens written out in a text are taken.
enum class SpecialTokens {
  kParse,   // as the tokens
  kAsText,  // as the characters that they are written with
};

// Text to token ids and back. Immutable, so one object serves many threads.
class Tokenizer {
 public:
  // INVALID_ARGUMENT names the entry that is inconsistent; UNIMPLEMENTED what is not supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerData data);

  // Reads tokenizer.ggml.*. Model "gpt2" with a pre-tokenizer that PreTokenizer knows; any other
  // model, and any field that would change ids and is not understood, is UNIMPLEMENTED, naming
  // field and value.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);

  // The ids of `text`. Never adds bos or eos (see add_bos). User-defined tokens, which control
  // nothing, are recognised in any text, as the libraries that models are trained with do; control
  // tokens only with kParse. A byte for which the vocabulary has no token is left out (see
  // FirstMissingByte). INVALID_ARGUMENT: not valid UTF-8, with the offset; larger than 2^31 - 1
  // bytes.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, SpecialTokens special) const;

  // The ids of the concatenated segments, with control tokens recognised only where all of their
  // characters are outside of from_user segments. Between control tokens the text is one run
  // whoever wrote it, so the ids are those of the whole text wherever users write no control
  // tokens.
  absl::StatusOr<std::vector<int32_t>> EncodeSegments(absl::Span<const TextSegment> segments) const;

  // Offset of the first byte of `text` that no token can carry and Encode leaves out. Vocabularies
  // trained without every byte exist (SmolLM2's lacks some control characters and the lead bytes of
  // unassigned planes); leaving such a byte out, rather than an "unknown" token in its place, is
  // what the `tokenizers` library does.
  std::optional<size_t> FirstMissingByte(std::string_view text) const;

  // The text of `ids`: their bytes joined, each ill-formed part replaced by U+FFFD.
  // INVALID_ARGUMENT for an id out of range, naming index, value and range.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids, bool skip_special) const;

  // The exact bytes of one token, not always valid UTF-8. Empty for an id out of range.
  std::string_view TokenBytes(int32_t id) const;

  int vocab_size() const { return static_cast<int>(bytes_.size()); }
  bool Contains(int32_t id) const { return id >= 0 && id < vocab_size(); }
  // A control or unknown token. False for an id out of range.
  bool IsSpecial(int32_t id) const;
  // eos, end of turn or end of message.
  bool IsEndOfGeneration(int32_t id) const;

  std::optional<int32_t> bos() const { return bos_; }
  std::optional<int32_t> eos() const { return eos_; }
  std::optional<int32_t> unknown() const { return unknown_; }
  std::optional<int32_t> padding() const { return padding_; }
  bool add_bos() const { return add_bos_; }
  bool add_eos() const { return add_eos_; }

 private:
  struct Range {
    size_t begin, end;
  };
  Tokenizer() = default;

  absl::Status IndexTokens(const TokenizerData& data);
  absl::StatusOr<std::vector<int32_t>> EncodeOwned(std::string_view text,
                                                   absl::Span<const Range> owned) const;
  absl::Status EncodeRun(std::string_view text, BpeMerges::Scratch& scratch,
                         std::vector<int32_t>& symbols, std::vector<int32_t>& out) const;
  // The longest whole token that `text` starts with: a control token only if it ends by
  // `owned_bytes`.
  std::optional<int32_t> MatchWhole(std::string_view text, size_t owned_bytes) const;

  std::vector<std::string> bytes_;  // by id
  std::vector<TokenType> types_;    // by id
  std::vector<int32_t> byte_ids_;   // [256], -1 where the vocabulary has no token
  std::vector<std::vector<int32_t>>
      whole_;  // [256] control and user-defined tokens by first byte, longest first
  BpeMerges merges_;
  std::optional<PreTokenizer> pre_;
  std::optional<int32_t> bos_, eos_, eot_, eom_, unknown_, padding_;
  bool add_bos_ = false, add_eos_ = false;
};

// Decodes ids one by one. The outputs of Push and Flush, joined, are what Decode gives for all the
// ids.
class StreamDecoder {
 public:
  // `tokenizer` must outlive the decoder.
  StreamDecoder(const Tokenizer* tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The whole characters that this id completes, often none. An id out of range gives nothing.
  std::string Push(int32_t id);
  // Ends the text: U+FFFD if a character was left unfinished.
  std::string Flush() { return stream_.Flush(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace ripplekv
