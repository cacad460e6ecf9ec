#include "model/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "model/concat.h"

namespace ripplekv {
namespace {

// GPT-2's byte alphabet: printable Latin-1 characters stand for themselves, the other bytes, in
// order, for U+0100 on.
std::array<char32_t, 256> ByteAlphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 256;
  for (unsigned b = 0; b < 256; ++b) {
    const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    alphabet[b] = itself ? b : next++;
  }
  return alphabet;
}

// The bytes that `token` writes in the byte alphabet; `token` itself if it is not written in it.
std::string FromByteAlphabet(std::string_view token,
                             const absl::flat_hash_map<char32_t, char>& bytes) {
  std::string out;
  for (size_t at = 0; at < token.size();) {
    const Utf8Step step = NextUtf8(token.substr(at));
    const auto found =
        step.kind == Utf8Step::Kind::kCharacter ? bytes.find(step.code_point) : bytes.end();
    if (found == bytes.end()) return std::string(token);
    out.push_back(found->second);
    at += step.size;
  }
  return out;
}

absl::Status CheckId(std::string_view name, std::optional<int32_t> id, size_t vocab) {
  if (!id || (*id >= 0 && static_cast<size_t>(*id) < vocab)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Concat("tokenizer: the ", name, " token id ", *id, " is outside of 0 to ", vocab - 1));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerData data) {
  std::unique_ptr<Tokenizer> made(new Tokenizer);
  const size_t vocab = data.tokens.size();
  if (vocab == 0 || vocab > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(Concat("tokenizer: a vocabulary of ", vocab, " tokens"));
  }
  if (data.types.size() != vocab) {
    return absl::InvalidArgumentError(
        Concat("tokenizer: ", vocab, " tokens but ", data.types.size(), " token types"));
  }
  for (const auto& [name, id] :
       {std::pair("bos", data.bos), std::pair("eos", data.eos), std::pair("eot", data.eot),
        std::pair("eom", data.eom), std::pair("unknown", data.unknown),
        std::pair("padding", data.padding)}) {
    if (absl::Status status = CheckId(name, id, vocab); !status.ok()) return status;
  }
  if ((data.add_bos && !data.bos) || (data.add_eos && !data.eos)) {
    return absl::InvalidArgumentError("tokenizer: a bos or eos token is to be added but has no id");
  }
  absl::StatusOr<PreTokenizer> pre = PreTokenizer::Create(data.pre);
  if (!pre.ok()) return pre.status();
  made->pre_ = *std::move(pre);
  made->bos_ = data.bos;
  made->eos_ = data.eos;
  made->eot_ = data.eot;
  made->eom_ = data.eom;
  made->unknown_ = data.unknown;
  made->padding_ = data.padding;
  made->add_bos_ = data.add_bos;
  made->add_eos_ = data.add_eos;
  if (absl::Status status = made->IndexTokens(data); !status.ok()) return status;
  return made;
}

absl::Status Tokenizer::IndexTokens(const TokenizerData& data) {
  const std::array<char32_t, 256> alphabet = ByteAlphabet();
  absl::flat_hash_map<char32_t, char> bytes;
  for (unsigned b = 0; b < 256; ++b) bytes[alphabet[b]] = static_cast<char>(b);

  absl::flat_hash_map<std::string, int32_t> ids;
  ids.reserve(data.tokens.size());
  bytes_.reserve(data.tokens.size());
  types_ = data.types;
  whole_.resize(256);
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const std::string& token = data.tokens[i];
    const int32_t id = static_cast<int32_t>(i);
    if (token.empty() || FindInvalidUtf8(token) != std::string_view::npos) {
      return absl::InvalidArgumentError(
          Concat("tokenizer: token ", id, " is empty or not valid UTF-8"));
    }
    if (const auto [twin, fresh] = ids.emplace(token, id); !fresh) {
      return absl::InvalidArgumentError(
          Concat("tokenizer: tokens ", twin->second, " and ", id, " are both '", token, "'"));
    }
    switch (types_[i]) {
      case TokenType::kNormal:
      case TokenType::kUnused:
        bytes_.push_back(FromByteAlphabet(token, bytes));
        break;
      case TokenType::kUnknown:
      case TokenType::kControl:
      case TokenType::kUserDefined:
        bytes_.push_back(token);
        whole_[static_cast<unsigned char>(token[0])].push_back(id);
        break;
      default:
        return absl::UnimplementedError(Concat("tokenizer: token ", id, " '", token, "' has type ",
                                               static_cast<int32_t>(types_[i]),
                                               "; supported: 1 (normal) to 5 (unused)"));
    }
  }
  for (std::vector<int32_t>& bucket : whole_) {
    std::stable_sort(bucket.begin(), bucket.end(),
                     [&](int32_t a, int32_t b) { return bytes_[a].size() > bytes_[b].size(); });
  }

  byte_ids_.assign(256, -1);
  for (unsigned b = 0; b < 256; ++b) {
    std::string symbol;
    AppendUtf8(alphabet[b], symbol);
    if (const auto found = ids.find(symbol); found != ids.end()) byte_ids_[b] = found->second;
  }
  absl::StatusOr<BpeMerges> merges = BpeMerges::Create(data.merges, ids);
  if (!merges.ok()) {
    return absl::InvalidArgumentError(Concat("tokenizer: ", merges.status().message()));
  }
  merges_ = *std::move(merges);
  // Otherwise a user's text could spell a control token.
  const auto check_plain = [&](int32_t id) {
    if (id < 0 || !IsSpecial(id)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        Concat("tokenizer: control token ", id, " '", bytes_[id], "' can be made from plain text"));
  };
  for (int32_t id : byte_ids_) {
    if (absl::Status status = check_plain(id); !status.ok()) return status;
  }
  for (int32_t id : merges_.results()) {
    if (absl::Status status = check_plain(id); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       SpecialTokens special) const {
  const Range all{0, text.size()};
  return EncodeOwned(text, absl::MakeConstSpan(&all, special == SpecialTokens::kParse ? 1 : 0));
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeSegments(
    absl::Span<const TextSegment> segments) const {
  std::string text;
  std::vector<Range> owned;
  for (const TextSegment& segment : segments) {
    const size_t begin = text.size();
    text.append(segment.text);
    if (segment.from_user || segment.text.empty()) continue;
    if (!owned.empty() && owned.back().end == begin) {
      owned.back().end = text.size();
    } else {
      owned.push_back({begin, text.size()});
    }
  }
  return EncodeOwned(text, owned);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeOwned(std::string_view text,
                                                            absl::Span<const Range> owned) const {
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(
        Concat("the text has ", text.size(), " bytes; at most 2147483647"));
  }
  if (const size_t at = FindInvalidUtf8(text); at != std::string_view::npos) {
    return absl::InvalidArgumentError(Concat("the text is not valid UTF-8 at byte ", at));
  }
  std::vector<int32_t> out, symbols;
  BpeMerges::Scratch scratch;
  size_t run = 0;  // begin of the text not yet encoded
  size_t range = 0;
  for (size_t at = 0; at < text.size();) {
    if (whole_[static_cast<unsigned char>(text[at])].empty()) {
      ++at;
      continue;
    }
    while (range < owned.size() && owned[range].end <= at) ++range;
    const bool inside = range < owned.size() && owned[range].begin <= at;
    const std::optional<int32_t> id =
        MatchWhole(text.substr(at), inside ? owned[range].end - at : 0);
    if (!id) {
      ++at;
      continue;
    }
    if (absl::Status status = EncodeRun(text.substr(run, at - run), scratch, symbols, out);
        !status.ok()) {
      return status;
    }
    out.push_back(*id);
    at += bytes_[*id].size();
    run = at;
  }
  if (absl::Status status = EncodeRun(text.substr(run), scratch, symbols, out); !status.ok())
    return status;
  return out;
}

std::optional<int32_t> Tokenizer::MatchWhole(std::string_view text, size_t owned_bytes) const {
  for (int32_t id : whole_[static_cast<unsigned char>(text[0])]) {
    if (IsSpecial(id) && bytes_[id].size() > owned_bytes) continue;
    if (text.substr(0, bytes_[id].size()) == bytes_[id]) return id;
  }
  return std::nullopt;
}

absl::Status Tokenizer::EncodeRun(std::string_view text, BpeMerges::Scratch& scratch,
                                  std::vector<int32_t>& symbols, std::vector<int32_t>& out) const {
  return pre_->Split(text, [&](std::string_view piece) {
    symbols.clear();
    for (const char c : piece) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
      if (id >= 0) symbols.push_back(id);
    }
    merges_.Apply(symbols, scratch, out);
  });
}

std::optional<size_t> Tokenizer::FirstMissingByte(std::string_view text) const {
  for (size_t at = 0; at < text.size(); ++at) {
    if (byte_ids_[static_cast<unsigned char>(text[at])] < 0) return at;
  }
  return std::nullopt;
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids,
                                              bool skip_special) const {
  StreamDecoder decoder(this, skip_special);
  std::string out;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!Contains(ids[i])) {
      return absl::InvalidArgumentError(
          Concat("token_ids[", i, "] is ", ids[i], "; allowed: 0 to ", vocab_size() - 1));
    }
    out += decoder.Push(ids[i]);
  }
  return out + decoder.Flush();
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return Contains(id) ? std::string_view(bytes_[id]) : std::string_view();
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return Contains(id) && (types_[id] == TokenType::kControl || types_[id] == TokenType::kUnknown);
}

bool Tokenizer::IsEndOfGeneration(int32_t id) const {
  return id >= 0 && (id == eos_ || id == eot_ || id == eom_);
}

std::string StreamDecoder::Push(int32_t id) {
  if (skip_special_ && tokenizer_->IsSpecial(id)) return "";
  return stream_.Push(tokenizer_->TokenBytes(id));
}

}  // namespace ripplekv
