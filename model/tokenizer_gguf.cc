#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "model/concat.h"
#include "model/tokenizer.h"

namespace ripplekv {
namespace {

// Read here.
constexpr std::string_view kRead[] = {
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_space_prefix",
};

// Change no ids of a plain text: names of tokens for uses that are not offered (infilling,
// classifiers), scores (byte-level BPE goes by merges), and what other readers take.
constexpr std::string_view kWithoutEffect[] = {
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type_count",
    "tokenizer.ggml.seperator_token_id",  // spelled so in the format
    "tokenizer.ggml.cls_token_id",
    "tokenizer.ggml.mask_token_id",
    "tokenizer.ggml.prefix_token_id",
    "tokenizer.ggml.suffix_token_id",
    "tokenizer.ggml.middle_token_id",
    "tokenizer.ggml.fim_pre_token_id",
    "tokenizer.ggml.fim_suf_token_id",
    "tokenizer.ggml.fim_mid_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
    "tokenizer.huggingface.json",
    "tokenizer.chat_template",   // read by ChatTemplate
    "tokenizer.chat_templates",  // names of further templates
};

absl::Status CheckKeys(const GgufFile& file) {
  std::string unknown;
  for (const auto& [key, value] : file.metadata()) {
    if (!absl::StartsWith(key, "tokenizer.") || absl::StartsWith(key, "tokenizer.chat_template."))
      continue;
    if (std::find(std::begin(kRead), std::end(kRead), key) != std::end(kRead)) continue;
    if (std::find(std::begin(kWithoutEffect), std::end(kWithoutEffect), key) !=
        std::end(kWithoutEffect))
      continue;
    if (unknown.empty() || key < unknown) unknown = key;
  }
  if (unknown.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      Concat("the checkpoint's tokenizer has the field ", unknown, ", which is not supported"));
}

absl::StatusOr<std::optional<int32_t>> ReadId(const GgufFile& file, std::string_view name) {
  const std::string key = Concat("tokenizer.ggml.", name, "_token_id");
  if (!file.Has(key)) return std::nullopt;
  absl::StatusOr<uint64_t> id = file.GetUint(key);
  if (!id.ok()) return id.status();
  if (*id > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(Concat(key, " is ", *id, ", which is no token id"));
  }
  return static_cast<int32_t>(*id);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  absl::StatusOr<std::string> model = file.GetString("tokenizer.ggml.model");
  if (!model.ok()) return model.status();
  if (*model != "gpt2") {
    return absl::UnimplementedError(Concat("tokenizer.ggml.model '", *model,
                                           "' is not supported; supported: gpt2 (byte-level BPE)"));
  }
  if (absl::Status status = CheckKeys(file); !status.ok()) return status;

  TokenizerData data;
  absl::StatusOr<std::string> pre = file.GetString("tokenizer.ggml.pre");
  if (!pre.ok()) return pre.status();
  data.pre = *std::move(pre);
  absl::StatusOr<std::vector<std::string>> tokens = file.GetStringArray("tokenizer.ggml.tokens");
  if (!tokens.ok()) return tokens.status();
  data.tokens = *std::move(tokens);
  absl::StatusOr<std::vector<std::string>> merges = file.GetStringArray("tokenizer.ggml.merges");
  if (!merges.ok()) return merges.status();
  data.merges = *std::move(merges);
  absl::StatusOr<std::vector<int64_t>> types = file.GetIntArray("tokenizer.ggml.token_type");
  if (!types.ok()) return types.status();
  data.types.reserve(types->size());
  for (size_t i = 0; i < types->size(); ++i) {
    const int64_t type = (*types)[i];
    if (type < 1 || type > 6) {
      return absl::InvalidArgumentError(
          Concat("tokenizer.ggml.token_type[", i, "] is ", type, "; allowed: 1 to 6"));
    }
    data.types.push_back(static_cast<TokenType>(type));
  }
  const std::pair<std::string_view, std::optional<int32_t>*> ids[] = {
      {"bos", &data.bos}, {"eos", &data.eos},         {"eot", &data.eot},
      {"eom", &data.eom}, {"unknown", &data.unknown}, {"padding", &data.padding},
  };
  for (const auto& [name, target] : ids) {
    absl::StatusOr<std::optional<int32_t>> id = ReadId(file, name);
    if (!id.ok()) return id.status();
    *target = *id;
  }
  absl::StatusOr<bool> add_bos = file.GetBoolOr("tokenizer.ggml.add_bos_token", false);
  if (!add_bos.ok()) return add_bos.status();
  data.add_bos = *add_bos;
  absl::StatusOr<bool> add_eos = file.GetBoolOr("tokenizer.ggml.add_eos_token", false);
  if (!add_eos.ok()) return add_eos.status();
  data.add_eos = *add_eos;
  absl::StatusOr<bool> space = file.GetBoolOr("tokenizer.ggml.add_space_prefix", false);
  if (!space.ok()) return space.status();
  if (*space) {
    return absl::UnimplementedError(
        "tokenizer.ggml.add_space_prefix true is not supported; supported: false");
  }
  return Create(std::move(data));
}

}  // namespace ripplekv
