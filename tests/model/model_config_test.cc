#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "tests/model/tiny_llama.h"

namespace ripplekv {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<ModelConfig> ConfigOf(const GgufBuilder& builder) {
  const std::vector<std::byte> bytes = builder.Build();
  absl::StatusOr<GgufFile> file = GgufFile::Parse(bytes);
  if (!file.ok()) return file.status();
  return ModelConfig::FromGguf(*file);
}

TEST(ModelConfig, ReadsTheRealModel) {
  const char* configured = std::getenv("RIPPLEKV_MODEL");
  const std::string path = configured != nullptr ? configured : RIPPLEKV_DEFAULT_MODEL;
  absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status() << "\nGet the model with scripts/get_model.sh";
  absl::StatusOr<ModelConfig> config = ModelConfig::FromGguf(*file);
  ASSERT_TRUE(config.ok()) << config.status();
  // SmolLM2-135M-Instruct's config.json, and what its makers say of the quantised file.
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->layers, 30);
  EXPECT_EQ(config->heads, 9);
  EXPECT_EQ(config->kv_heads, 3);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->hidden, 576);
  EXPECT_EQ(config->ffn, 1536);
  EXPECT_EQ(config->vocab, 49152);
  EXPECT_EQ(config->context_length, 8192);
  EXPECT_FLOAT_EQ(config->rms_epsilon, 1e-5f);
  EXPECT_EQ(config->rope_freq_base, 100000);
  EXPECT_EQ(config->rope_scaling, RopeScaling::kNone);
  EXPECT_TRUE(config->tied_output);
  EXPECT_EQ(file->tensors().size(), 2u + 30 * 9);
  EXPECT_EQ(file->FindTensor("token_embd.weight")->type, TensorType::kQ8_0);
  EXPECT_EQ(file->FindTensor("blk.29.attn_q.weight")->type, TensorType::kQ4_1);
  EXPECT_EQ(file->FindTensor("blk.0.ffn_norm.weight")->type, TensorType::kF32);
}

TEST(ModelConfig, ReadsATinyModel) {
  absl::StatusOr<ModelConfig> config =
      ConfigOf(TinyLlama({.layers = 3, .head_dim = 24, .tied_output = false}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->name, "Tiny llama");
  EXPECT_EQ(config->layers, 3);
  EXPECT_EQ(config->heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 24);  // not hidden / heads
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->ffn, 96);
  EXPECT_EQ(config->vocab, 260);
  EXPECT_EQ(config->context_length, 512);
  EXPECT_FALSE(config->tied_output);
}

TEST(ModelConfig, FillsInWhatAFileMayLeaveOut) {
  GgufBuilder b = TinyLlama({.kv_heads = 4});
  for (const char* key :
       {"general.name", "llama.attention.head_count_kv", "llama.attention.key_length",
        "llama.attention.value_length", "llama.rope.dimension_count", "llama.rope.freq_base",
        "llama.vocab_size"}) {
    b.Remove(key);
  }
  absl::StatusOr<ModelConfig> config = ConfigOf(b);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->name, "llama");
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->rope_freq_base, 10000);
  EXPECT_EQ(config->rope_scaling, RopeScaling::kNone);
}

TEST(ModelConfig, EveryTensorTypeMayHoldAMatrix) {
  for (TensorType type : kTensorTypes) {
    absl::StatusOr<ModelConfig> config =
        ConfigOf(TinyLlama({.matrix_type = type, .embedding_type = type}));
    EXPECT_TRUE(config.ok()) << name(type) << ": " << config.status();
  }
}

TEST(ModelConfig, RopeScaling) {
  GgufBuilder linear = TinyLlama().String("llama.rope.scaling.type", "linear");
  linear.Float32("llama.rope.scaling.factor", 4);
  GgufBuilder factor_only = TinyLlama().Float32("llama.rope.scaling.factor", 2.5);
  GgufBuilder old_key = TinyLlama().Float32("llama.rope.scale_linear", 8);
  for (const auto& [builder, factor] :
       {std::pair(linear, 4.0), std::pair(factor_only, 2.5), std::pair(old_key, 8.0)}) {
    absl::StatusOr<ModelConfig> config = ConfigOf(builder);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rope_scaling, RopeScaling::kLinear);
    EXPECT_EQ(config->rope_scaling_factor, factor);
  }
  absl::StatusOr<ModelConfig> none =
      ConfigOf(TinyLlama().String("llama.rope.scaling.type", "none"));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->rope_scaling, RopeScaling::kNone);
  EXPECT_EQ(none->rope_scaling_factor, 1);
  absl::StatusOr<ModelConfig> per_freq =
      ConfigOf(TinyLlama().F32Tensor("rope_freqs.weight", {8}, std::vector<float>(8, 2.0f)));
  ASSERT_TRUE(per_freq.ok()) << per_freq.status();
  EXPECT_EQ(per_freq->rope_scaling, RopeScaling::kPerFreq);
}

TEST(ModelConfig, IgnoresOldFilesRopeTables) {
  EXPECT_TRUE(
      ConfigOf(TinyLlama().F32Tensor("blk.0.attn_rot_embd.weight", {8}, std::vector<float>(8)))
          .ok());
}

struct Refused {
  const char* name;
  void (*change)(GgufBuilder&);
  absl::StatusCode code;
  const char* message[4];  // parts of it
};

class ModelConfigRefused : public ::testing::TestWithParam<Refused> {};

TEST_P(ModelConfigRefused, WithTheReason) {
  GgufBuilder b = TinyLlama();
  GetParam().change(b);
  const absl::Status status = ConfigOf(b).status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  for (const char* part : GetParam().message) {
    if (part == nullptr) break;
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
}

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnsupported = absl::StatusCode::kUnimplemented;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using B = GgufBuilder;

std::vector<float> OnesExcept(float last) {
  std::vector<float> values(8, 1.0f);
  values[7] = last;
  return values;
}

constexpr Refused kFigures[] = {
    {"OtherArchitecture",
     [](B& b) { b.String("general.architecture", "qwen2"); },
     kUnsupported,
     {"'qwen2'", "supported architectures: llama"}},
    {"NoArchitecture",
     [](B& b) { b.Remove("general.architecture"); },
     kInvalid,
     {"'general.architecture'"}},
    {"ArchitectureOfAnotherType",
     [](B& b) { b.Uint32("general.architecture", 1); },
     kInvalid,
     {"'general.architecture'", "expected a string"}},
    {"NameThatIsNotText",
     [](B& b) { b.String("general.name", "tiny\xff"); },
     kInvalid,
     {"'general.name'", "\\xff", "UTF-8"}},
    {"NameTooLong",
     [](B& b) { b.String("general.name", std::string(1025, 'x')); },
     kInvalid,
     {"'general.name'", "1024"}},
    {"NoLayers", [](B& b) { b.Remove("llama.block_count"); }, kInvalid, {"'llama.block_count'"}},
    {"ZeroLayers",
     [](B& b) { b.Uint32("llama.block_count", 0); },
     kInvalid,
     {"'llama.block_count' is 0", "1 to 1024"}},
    {"TooManyLayers",
     [](B& b) { b.Uint32("llama.block_count", 1025); },
     kInvalid,
     {"'llama.block_count' is 1025", "1 to 1024"}},
    {"LayersAs64Bits",
     [](B& b) { b.Uint64("llama.block_count", (1ull << 32) + 2); },
     kInvalid,
     {"'llama.block_count' is 4294967298"}},
    {"ZeroHeads",
     [](B& b) { b.Uint32("llama.attention.head_count", 0); },
     kInvalid,
     {"'llama.attention.head_count' is 0"}},
    {"ZeroKvHeads",
     [](B& b) { b.Uint32("llama.attention.head_count_kv", 0); },
     kInvalid,
     {"'llama.attention.head_count_kv' is 0", "1 to 4"}},
    {"MoreKvHeadsThanHeads",
     [](B& b) { b.Uint32("llama.attention.head_count_kv", 8); },
     kInvalid,
     {"'llama.attention.head_count_kv' is 8", "1 to 4"}},
    {"KvHeadsDoNotDivideHeads",
     [](B& b) { b.Uint32("llama.attention.head_count_kv", 3); },
     kInvalid,
     {"'llama.attention.head_count' is 4", "no multiple", "3"}},
    {"KvHeadsPerLayer",
     [](B& b) { b.Int32s("llama.attention.head_count_kv", {2, 2}); },
     kInvalid,
     {"'llama.attention.head_count_kv'", "an array of 2 integers"}},
    {"NegativeHidden",
     [](B& b) { b.Int32("llama.embedding_length", -64); },
     kInvalid,
     {"'llama.embedding_length'", "-64"}},
    {"HugeHidden",
     [](B& b) { b.Uint32("llama.embedding_length", 131073); },
     kInvalid,
     {"'llama.embedding_length' is 131073", "131072"}},
    {"HugeFfn",
     [](B& b) { b.Uint32("llama.feed_forward_length", 1048577); },
     kInvalid,
     {"'llama.feed_forward_length' is 1048577", "1048576"}},
    {"NoContext",
     [](B& b) { b.Remove("llama.context_length"); },
     kInvalid,
     {"'llama.context_length'"}},
    {"HugeContext",
     [](B& b) { b.Uint32("llama.context_length", 16777217); },
     kInvalid,
     {"'llama.context_length' is 16777217", "16777216"}},
    {"HeadsDoNotDivideHidden",
     [](B& b) { b.Uint32("llama.attention.head_count", 6).Remove("llama.attention.key_length"); },
     kInvalid,
     {"'llama.embedding_length' is 64", "6", "'llama.attention.key_length'"}},
    {"HeadDimNoMultipleOf8",
     [](B& b) { b.Uint32("llama.attention.key_length", 12); },
     kUnsupported,
     {"head dimension", "12", "multiples of 8 from 8 to 512"}},
    {"HeadDimTooLarge",
     [](B& b) { b.Uint32("llama.attention.key_length", 520); },
     kUnsupported,
     {"520"}},
    {"ValueLengthDiffers",
     [](B& b) { b.Uint32("llama.attention.value_length", 32); },
     kUnsupported,
     {"'llama.attention.value_length' is 32", "16"}},
    {"PartialRope",
     [](B& b) { b.Uint32("llama.rope.dimension_count", 8); },
     kUnsupported,
     {"'llama.rope.dimension_count' is 8", "16"}},
    {"NoEpsilon",
     [](B& b) { b.Remove("llama.attention.layer_norm_rms_epsilon"); },
     kInvalid,
     {"'llama.attention.layer_norm_rms_epsilon'"}},
    {"ZeroEpsilon",
     [](B& b) { b.Float32("llama.attention.layer_norm_rms_epsilon", 0); },
     kInvalid,
     {"'llama.attention.layer_norm_rms_epsilon' is 0"}},
    {"NanEpsilon",
     [](B& b) { b.Float32("llama.attention.layer_norm_rms_epsilon", kNan); },
     kInvalid,
     {"'llama.attention.layer_norm_rms_epsilon' is nan"}},
    {"RopeBaseTooSmall",
     [](B& b) { b.Float32("llama.rope.freq_base", 0.5); },
     kInvalid,
     {"'llama.rope.freq_base' is 0.5"}},
    {"RopeBaseInfinite",
     [](B& b) { b.Float32("llama.rope.freq_base", INFINITY); },
     kInvalid,
     {"'llama.rope.freq_base' is inf"}},
    {"RopeBaseAnInteger",
     [](B& b) { b.Uint32("llama.rope.freq_base", 10000); },
     kInvalid,
     {"'llama.rope.freq_base'", "expected a float"}}};

INSTANTIATE_TEST_SUITE_P(Figures, ModelConfigRefused, ::testing::ValuesIn(kFigures),
                         [](const auto& info) { return std::string(info.param.name); });

constexpr Refused kFeatures[] = {
    {"Yarn",
     [](B& b) { b.String("llama.rope.scaling.type", "yarn"); },
     kUnsupported,
     {"'llama.rope.scaling.type' is 'yarn'", "'linear'", "rope_freqs.weight"}},
    {"LinearWithoutFactor",
     [](B& b) { b.String("llama.rope.scaling.type", "linear"); },
     kInvalid,
     {"'llama.rope.scaling.factor'"}},
    {"LinearByLessThan1",
     [](B& b) { b.Float32("llama.rope.scaling.factor", 0.25); },
     kInvalid,
     {"'llama.rope.scaling.factor' is 0.25"}},
    {"BothRopeScalings",
     [](B& b) {
       b.Float32("llama.rope.scaling.factor", 2).F32Tensor("rope_freqs.weight", {8}, OnesExcept(1));
     },
     kUnsupported,
     {"'llama.rope.scaling.factor' is 2", "'rope_freqs.weight'"}},
    {"RopeFreqsOfAnotherSize",
     [](B& b) { b.F32Tensor("rope_freqs.weight", {7}, std::vector<float>(7, 1)); },
     kInvalid,
     {"'rope_freqs.weight' has shape [7], expected [8]"}},
    {"RopeFreqsOfAnotherType",
     [](B& b) { b.RandomTensor("rope_freqs.weight", TensorType::kF16, {8}, 1); },
     kInvalid,
     {"'rope_freqs.weight' has type F16", "F32"}},
    {"RopeFreqsOfZero",
     [](B& b) { b.F32Tensor("rope_freqs.weight", {8}, OnesExcept(0)); },
     kInvalid,
     {"'rope_freqs.weight' holds 0 at 7"}},
    {"RopeFreqsNan",
     [](B& b) { b.F32Tensor("rope_freqs.weight", {8}, OnesExcept(kNan)); },
     kInvalid,
     {"'rope_freqs.weight' holds nan at 7"}},
    {"RopeFreqsInfinite",
     [](B& b) { b.F32Tensor("rope_freqs.weight", {8}, OnesExcept(INFINITY)); },
     kInvalid,
     {"'rope_freqs.weight' holds inf at 7"}},
    {"Experts",
     [](B& b) { b.Uint32("llama.expert_count", 8); },
     kUnsupported,
     {"'llama.expert_count' is 8"}},
    {"NotCausal",
     [](B& b) { b.Bool("llama.attention.causal", false); },
     kUnsupported,
     {"'llama.attention.causal'"}},
    {"ParallelResidual",
     [](B& b) { b.Bool("llama.use_parallel_residual", true); },
     kUnsupported,
     {"'llama.use_parallel_residual'"}},
    {"SlidingWindow",
     [](B& b) { b.Uint32("llama.attention.sliding_window", 128); },
     kUnsupported,
     {"'llama.attention.sliding_window' is 128", "512"}},
    {"OtherAttentionScale",
     [](B& b) { b.Float32("llama.attention.scale", 0.1f); },
     kUnsupported,
     {"'llama.attention.scale' is 0.1"}},
    {"LogitScale",
     [](B& b) { b.Float32("llama.logit_scale", 4); },
     kUnsupported,
     {"'llama.logit_scale' is 4"}},
    {"Bias",
     [](B& b) { b.F32Tensor("blk.1.attn_q.bias", {64}, std::vector<float>(64)); },
     kUnsupported,
     {"'blk.1.attn_q.bias'", "biases"}},
    {"UnknownTensor",
     [](B& b) { b.F32Tensor("blk.1.attn_q_norm.weight", {16}, std::vector<float>(16)); },
     kUnsupported,
     {"'blk.1.attn_q_norm.weight'"}},
    {"LayerBeyondTheCount",
     [](B& b) { b.Uint32("llama.block_count", 1); },
     kUnsupported,
     {"tensor 'blk.1."}}};

INSTANTIATE_TEST_SUITE_P(Features, ModelConfigRefused, ::testing::ValuesIn(kFeatures),
                         [](const auto& info) { return std::string(info.param.name); });

constexpr Refused kTensors[] = {
    {"NoTokens",
     [](B& b) { b.Remove("tokenizer.ggml.tokens"); },
     kInvalid,
     {"'tokenizer.ggml.tokens' is absent"}},
    {"FewerTokens",
     [](B& b) { b.Strings("tokenizer.ggml.tokens", {"a", "b"}); },
     kInvalid,
     {"'tokenizer.ggml.tokens' has 2 tokens", "260 rows"}},
    {"OtherVocabSize",
     [](B& b) { b.Uint32("llama.vocab_size", 261); },
     kInvalid,
     {"'llama.vocab_size' is 261", "260 rows"}},
    {"NoEmbedding",
     [](B& b) { b.RemoveTensor("token_embd.weight"); },
     kInvalid,
     {"no tensor 'token_embd.weight'"}},
    {"EmbeddingOfOneDimension",
     [](B& b) { b.RandomTensor("token_embd.weight", TensorType::kF32, {260}, 1); },
     kInvalid,
     {"'token_embd.weight' has shape [260]"}},
    {"EmbeddingOfOtherWidth",
     [](B& b) { b.RandomTensor("token_embd.weight", TensorType::kF32, {32, 260}, 1); },
     kInvalid,
     {"'token_embd.weight' has shape [32, 260], expected [64, 260]"}},
    {"MissingMatrix",
     [](B& b) { b.RemoveTensor("blk.1.ffn_up.weight"); },
     kInvalid,
     {"no tensor 'blk.1.ffn_up.weight' (shape [64, 96])"}},
    {"MissingNorm",
     [](B& b) { b.RemoveTensor("output_norm.weight"); },
     kInvalid,
     {"no tensor 'output_norm.weight'"}},
    {"TransposedMatrix",
     [](B& b) { b.RandomTensor("blk.0.ffn_down.weight", TensorType::kQ4_1, {64, 96}, 1); },
     kInvalid,
     {"'blk.0.ffn_down.weight' has shape [64, 96], expected [96, 64]"}},
    {"KeysOfAllHeads",
     [](B& b) { b.RandomTensor("blk.0.attn_k.weight", TensorType::kQ4_1, {64, 64}, 1); },
     kInvalid,
     {"'blk.0.attn_k.weight' has shape [64, 64], expected [64, 32]"}},
    {"OutputOfOtherVocabulary",
     [](B& b) { b.RandomTensor("output.weight", TensorType::kQ8_0, {64, 259}, 1); },
     kInvalid,
     {"'output.weight' has shape [64, 259], expected [64, 260]"}},
    {"QuantisedNorm",
     [](B& b) { b.RandomTensor("blk.0.attn_norm.weight", TensorType::kQ8_0, {64}, 1); },
     kInvalid,
     {"'blk.0.attn_norm.weight' has type Q8_0", "F32, F16, BF16"}}};

INSTANTIATE_TEST_SUITE_P(Tensors, ModelConfigRefused, ::testing::ValuesIn(kTensors),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ripplekv
