#include "model/model_config.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "model/llama_tensors.h"
#include "model/unicode.h"

namespace ripplekv {
namespace {

constexpr const char* kArchitecture = "llama";  // and the prefix of its metadata keys

absl::StatusOr<int> UintInRange(const GgufFile& file, const std::string& key, uint64_t min,
                                uint64_t max) {
  absl::StatusOr<uint64_t> value = file.GetUint(key);
  if (!value.ok()) return absl::InvalidArgumentError(value.status().message());
  if (*value < min || *value > max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("metadata key '%s' is %d, allowed is %d to %d", key, *value, min, max));
  }
  return static_cast<int>(*value);
}

absl::StatusOr<int> UintInRangeOr(const GgufFile& file, const std::string& key, uint64_t min,
                                  uint64_t max, int fallback) {
  if (!file.Has(key)) return fallback;
  return UintInRange(file, key, min, max);
}

absl::StatusOr<double> FloatInRange(const GgufFile& file, const std::string& key, double min,
                                    double max) {
  absl::StatusOr<double> value = file.GetFloat(key);
  if (!value.ok()) return absl::InvalidArgumentError(value.status().message());
  if (!(*value >= min && *value <= max)) {  // also refuses NaN
    return absl::InvalidArgumentError(
        absl::StrFormat("metadata key '%s' is %g, allowed is %g to %g", key, *value, min, max));
  }
  return *value;
}

// Figures whose absence or neutral value is fine, and any other value means another computation
// than ours.
absl::Status RefuseOtherMath(const GgufFile& file, const ModelConfig& config) {
  absl::StatusOr<uint64_t> experts = file.GetUintOr("llama.expert_count", 0);
  if (!experts.ok()) return experts.status();
  if (*experts > 0) {
    return absl::UnimplementedError(
        absl::StrFormat("metadata key 'llama.expert_count' is %d: mixtures of experts are not "
                        "supported, only dense models (0)",
                        *experts));
  }
  absl::StatusOr<bool> causal = file.GetBoolOr("llama.attention.causal", true);
  if (!causal.ok()) return causal.status();
  if (!*causal) {
    return absl::UnimplementedError(
        "metadata key 'llama.attention.causal' is false: only causal attention is supported");
  }
  absl::StatusOr<bool> parallel = file.GetBoolOr("llama.use_parallel_residual", false);
  if (!parallel.ok()) return parallel.status();
  if (*parallel) {
    return absl::UnimplementedError(
        "metadata key 'llama.use_parallel_residual' is true: parallel residuals are not supported");
  }
  absl::StatusOr<uint64_t> window = file.GetUintOr("llama.attention.sliding_window", 0);
  if (!window.ok()) return window.status();
  if (*window > 0 && *window < static_cast<uint64_t>(config.context_length)) {
    return absl::UnimplementedError(
        absl::StrFormat("metadata key 'llama.attention.sliding_window' is %d, less than the "
                        "context length %d: sliding window "
                        "attention is not supported",
                        *window, config.context_length));
  }
  for (const char* key : {"llama.attention.clamp_kqv", "llama.attention.scale", "llama.logit_scale",
                          "llama.residual_scale", "llama.embedding_scale"}) {
    absl::StatusOr<double> value = file.GetFloatOr(key, 0);
    if (!value.ok()) return value.status();
    if (*value != 0) {
      return absl::UnimplementedError(absl::StrFormat(
          "metadata key '%s' is %g: it is not supported, only its absence or 0 is", key, *value));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const GgufFile& file, ModelConfig* config) {
  struct Field {
    const char* key;
    uint64_t max;
    int* value;
  };
  for (const Field& field : {Field{"llama.block_count", 1024, &config->layers},
                             Field{"llama.attention.head_count", 1024, &config->heads},
                             Field{"llama.embedding_length", 131072, &config->hidden},
                             Field{"llama.feed_forward_length", 1048576, &config->ffn},
                             Field{"llama.context_length", 16777216, &config->context_length}}) {
    absl::StatusOr<int> value = UintInRange(file, field.key, 1, field.max);
    if (!value.ok()) return value.status();
    *field.value = *value;
  }
  absl::StatusOr<int> kv_heads = UintInRangeOr(file, "llama.attention.head_count_kv", 1,
                                               static_cast<uint64_t>(config->heads), config->heads);
  if (!kv_heads.ok()) return kv_heads.status();
  config->kv_heads = *kv_heads;
  if (config->heads % config->kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("metadata key 'llama.attention.head_count' is %d, no multiple of "
                        "'llama.attention.head_count_kv' %d",
                        config->heads, config->kv_heads));
  }
  absl::StatusOr<double> epsilon =
      FloatInRange(file, "llama.attention.layer_norm_rms_epsilon", 1e-20, 0.1);
  if (!epsilon.ok()) return epsilon.status();
  config->rms_epsilon = *epsilon;
  return absl::OkStatus();
}

absl::Status ReadHeadDim(const GgufFile& file, ModelConfig* config) {
  constexpr const char* kKey = "llama.attention.key_length";
  constexpr const char* kValue = "llama.attention.value_length";
  constexpr const char* kRope = "llama.rope.dimension_count";
  if (!file.Has(kKey) && config->hidden % config->heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("metadata key 'llama.embedding_length' is %d, no multiple of "
                        "'llama.attention.head_count' %d, and the "
                        "file gives no '%s'",
                        config->hidden, config->heads, kKey));
  }
  constexpr uint64_t kMax = 131072;
  absl::StatusOr<int> key_length =
      UintInRangeOr(file, kKey, 1, kMax, config->hidden / config->heads);
  if (!key_length.ok()) return key_length.status();
  config->head_dim = *key_length;
  if (config->head_dim < 8 || config->head_dim > 512 || config->head_dim % 8 != 0) {
    return absl::UnimplementedError(
        absl::StrFormat("the head dimension ('%s', or 'llama.embedding_length' / "
                        "'llama.attention.head_count') is %d: supported "
                        "are multiples of 8 from 8 to 512",
                        kKey, config->head_dim));
  }
  for (const char* key : {kValue, kRope}) {
    absl::StatusOr<int> value = UintInRangeOr(file, key, 1, kMax, config->head_dim);
    if (!value.ok()) return value.status();
    if (*value != config->head_dim) {
      return absl::UnimplementedError(absl::StrFormat(
          "metadata key '%s' is %d and the head dimension %d: only equal ones are supported", key,
          *value, config->head_dim));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufFile& file, ModelConfig* config) {
  constexpr const char* kBase = "llama.rope.freq_base";
  constexpr const char* kType = "llama.rope.scaling.type";
  constexpr const char* kFactor = "llama.rope.scaling.factor";
  constexpr const char* kOldFactor = "llama.rope.scale_linear";
  if (file.Has(kBase)) {
    absl::StatusOr<double> base = FloatInRange(file, kBase, 1, 1e12);
    if (!base.ok()) return base.status();
    config->rope_freq_base = *base;
  }
  // A file that gives only a factor means linear scaling by it.
  const char* factor_key = file.Has(kFactor) || !file.Has(kOldFactor) ? kFactor : kOldFactor;
  absl::StatusOr<std::string> type =
      file.GetStringOr(kType, file.Has(factor_key) ? "linear" : "none");
  if (!type.ok()) return type.status();
  if (*type == "linear") {
    absl::StatusOr<double> factor = FloatInRange(file, factor_key, 1, 1e6);
    if (!factor.ok()) return factor.status();
    config->rope_scaling_factor = *factor;
    if (*factor != 1) config->rope_scaling = RopeScaling::kLinear;
  } else if (*type != "none") {
    return absl::UnimplementedError(
        absl::StrFormat("metadata key '%s' is '%s': supported are 'none', 'linear' and the tensor "
                        "'rope_freqs.weight'",
                        kType, absl::CHexEscape(*type)));
  }
  if (file.FindTensor("rope_freqs.weight") != nullptr) {
    if (config->rope_scaling != RopeScaling::kNone) {
      return absl::UnimplementedError(
          absl::StrFormat("the file has both linear RoPE scaling ('%s' is %g) and the tensor "
                          "'rope_freqs.weight': only one is "
                          "supported",
                          factor_key, config->rope_scaling_factor));
    }
    config->rope_scaling = RopeScaling::kPerFreq;
  }
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const GgufFile& file, ModelConfig* config) {
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) {
    return absl::InvalidArgumentError("the file has no tensor 'token_embd.weight'");
  }
  constexpr int64_t kMaxVocab = 4194304;
  if (embedding->shape.size() != 2 || embedding->shape[1] > kMaxVocab) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensor 'token_embd.weight' has shape [%s], expected [%d, vocabulary of 1 to %d]",
        absl::StrJoin(embedding->shape, ", "), config->hidden, kMaxVocab));
  }
  config->vocab = static_cast<int>(embedding->shape[1]);
  constexpr const char* kTokens = "tokenizer.ggml.tokens";
  const GgufValue* tokens = file.Find(kTokens);
  const auto* strings = tokens == nullptr ? nullptr : std::get_if<std::vector<std::string>>(tokens);
  if (strings == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "metadata key '%s' is %s, expected an array of strings: the model's file must hold its "
        "tokenizer",
        kTokens, tokens == nullptr ? "absent" : "of another type"));
  }
  if (strings->size() != static_cast<size_t>(config->vocab)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "metadata key '%s' has %d tokens and tensor 'token_embd.weight' %d rows: they must agree",
        kTokens, strings->size(), config->vocab));
  }
  absl::StatusOr<uint64_t> vocab = file.GetUintOr("llama.vocab_size", strings->size());
  if (!vocab.ok()) return vocab.status();
  if (*vocab != strings->size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("metadata key 'llama.vocab_size' is %d and tensor 'token_embd.weight' has "
                        "%d rows: they must agree",
                        *vocab, config->vocab));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfig::FromGguf(const GgufFile& file) {
  ModelConfig config;
  absl::StatusOr<std::string> architecture = file.GetString("general.architecture");
  if (!architecture.ok()) return absl::InvalidArgumentError(architecture.status().message());
  if (*architecture != kArchitecture) {
    return absl::UnimplementedError(absl::StrFormat(
        "metadata key 'general.architecture' is '%s': not supported, supported architectures: %s",
        absl::CHexEscape(*architecture), kArchitecture));
  }
  config.architecture = *architecture;
  absl::StatusOr<std::string> name = file.GetStringOr("general.name", *architecture);
  if (!name.ok()) return name.status();
  // It goes into profiles and replies, which are UTF-8.
  constexpr size_t kMaxNameBytes = 1024;
  if (name->empty() || name->size() > kMaxNameBytes ||
      FindInvalidUtf8(*name) != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("metadata key 'general.name' is '%s': it must be 1 to %d bytes of UTF-8",
                        absl::CHexEscape(name->substr(0, 80)), kMaxNameBytes));
  }
  config.name = *name;

  if (absl::Status s = ReadSizes(file, &config); !s.ok()) return s;
  if (absl::Status s = RefuseOtherMath(file, config); !s.ok()) return s;
  if (absl::Status s = ReadHeadDim(file, &config); !s.ok()) return s;
  if (absl::Status s = ReadRope(file, &config); !s.ok()) return s;
  if (absl::Status s = ReadVocabulary(file, &config); !s.ok()) return s;
  config.tied_output = file.FindTensor("output.weight") == nullptr;
  if (absl::Status s = CheckLlamaTensors(file, config); !s.ok()) return s;
  return config;
}

}  // namespace ripplekv
