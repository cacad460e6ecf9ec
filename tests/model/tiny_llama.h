#pragma once

#include <string>
#include <vector>

#include "tests/model/gguf_builder.h"

namespace ripplekv {

// The shape of a llama model small enough for tests. Hidden and FFN are multiples of 32, for the
// quantised types.
struct TinyLlamaOptions {
  int layers = 2;
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 16;
  int hidden = 64;
  int ffn = 96;
  int context_length = 512;
  bool tied_output = true;
  TensorType matrix_type = TensorType::kQ4_1;
  TensorType embedding_type = TensorType::kQ8_0;
  uint64_t seed = 1;
};

// The 256 tokens of GPT-2's byte-level alphabet, in byte order: byte b is token b. Printable bytes
// stand for themselves, the others for U+0100 and on.
inline std::vector<std::string> ByteLevelAlphabet() {
  std::vector<std::string> tokens;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const int code = printable ? byte : next++;
    std::string text;
    if (code < 0x80) {
      text.push_back(static_cast<char>(code));
    } else {
      text.push_back(static_cast<char>(0xC0 | code >> 6));
      text.push_back(static_cast<char>(0x80 | (code & 0x3F)));
    }
    tokens.push_back(text);
  }
  return tokens;
}

// A whole model with random weights: byte-level tokens 0..255, then <|endoftext|> 256, <|im_start|>
// 257, <|im_end|> 258 and one merge, "th" 259. Vocabulary 260, ChatML template. Change what it
// returns at will.
inline GgufBuilder TinyLlama(const TinyLlamaOptions& options = {}) {
  GgufBuilder b;
  b.String("general.architecture", "llama").String("general.name", "Tiny llama");
  b.Uint32("llama.block_count", options.layers);
  b.Uint32("llama.context_length", options.context_length);
  b.Uint32("llama.embedding_length", options.hidden);
  b.Uint32("llama.feed_forward_length", options.ffn);
  b.Uint32("llama.attention.head_count", options.heads);
  b.Uint32("llama.attention.head_count_kv", options.kv_heads);
  b.Uint32("llama.attention.key_length", options.head_dim);
  b.Uint32("llama.attention.value_length", options.head_dim);
  b.Uint32("llama.rope.dimension_count", options.head_dim);
  b.Float32("llama.rope.freq_base", 10000.0f);
  b.Float32("llama.attention.layer_norm_rms_epsilon", 1e-5f);

  std::vector<std::string> tokens = ByteLevelAlphabet();
  for (const char* token : {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "th"})
    tokens.push_back(token);
  std::vector<int32_t> token_types(tokens.size(), 1);  // normal
  for (int control : {256, 257, 258}) token_types[control] = 3;
  const uint64_t vocab = tokens.size();
  b.Uint32("llama.vocab_size", static_cast<uint32_t>(vocab));
  b.String("tokenizer.ggml.model", "gpt2").String("tokenizer.ggml.pre", "smollm");
  b.Strings("tokenizer.ggml.tokens", tokens);
  b.Int32s("tokenizer.ggml.token_type", token_types);
  b.Strings("tokenizer.ggml.merges", {"t h"});
  b.Uint32("tokenizer.ggml.bos_token_id", 257);
  b.Uint32("tokenizer.ggml.eos_token_id", 258);
  b.Bool("tokenizer.ggml.add_bos_token", false);
  b.String("tokenizer.chat_template",
           "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
           "message['content'] + "
           "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
           "'<|im_start|>assistant\\n' }}"
           "{% endif %}");

  const uint64_t hidden = options.hidden;
  const uint64_t ffn = options.ffn;
  const uint64_t query = uint64_t(options.heads) * options.head_dim;
  const uint64_t key = uint64_t(options.kv_heads) * options.head_dim;
  uint64_t seed = options.seed * 1000003;
  const auto norm = [&](const std::string& name) {
    b.F32Tensor(name, {hidden}, std::vector<float>(hidden, 1.0f));
  };
  const auto matrix = [&](const std::string& name, uint64_t inputs, uint64_t outputs) {
    b.RandomTensor(name, options.matrix_type, {inputs, outputs}, ++seed, 0.2f);
  };
  b.RandomTensor("token_embd.weight", options.embedding_type, {hidden, vocab}, ++seed, 1.0f);
  norm("output_norm.weight");
  if (!options.tied_output) matrix("output.weight", hidden, vocab);
  for (int layer = 0; layer < options.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    norm(prefix + "attn_norm.weight");
    matrix(prefix + "attn_q.weight", hidden, query);
    matrix(prefix + "attn_k.weight", hidden, key);
    matrix(prefix + "attn_v.weight", hidden, key);
    matrix(prefix + "attn_output.weight", query, hidden);
    norm(prefix + "ffn_norm.weight");
    matrix(prefix + "ffn_gate.weight", hidden, ffn);
    matrix(prefix + "ffn_up.weight", hidden, ffn);
    matrix(prefix + "ffn_down.weight", ffn, hidden);
  }
  return b;
}

}  // namespace ripplekv
