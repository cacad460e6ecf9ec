#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "model/gguf.h"

namespace ripplekv {

// How RoPE's angles are stretched beyond the trained context.
enum class RopeScaling {
  kNone,
  kLinear,   // positions are divided by rope_scaling_factor
  kPerFreq,  // tensor rope_freqs.weight [head_dim / 2]: each inverse frequency is divided by it
             // (Llama 3.1)
};

// The figures of a checkpoint of architecture "llama", all checked against the file's tensors.
struct ModelConfig {
  std::string architecture;       // "llama"
  std::string name;               // general.name, or the architecture where the file has none
  int layers = 0;                 // 1..1024
  int heads = 0;                  // query heads, 1..1024
  int kv_heads = 0;               // 1..heads, divides heads
  int head_dim = 0;               // 8..512, a multiple of 8
  int hidden = 0;                 // 1..131072; a multiple of heads unless the file gives key_length
  int ffn = 0;                    // 1..1048576
  int vocab = 0;                  // 1..4194304
  int context_length = 0;         // tokens, 1..16777216
  double rms_epsilon = 0;         // (0, 0.1]
  double rope_freq_base = 10000;  // [1, 1e12]
  RopeScaling rope_scaling = RopeScaling::kNone;
  double rope_scaling_factor = 1;  // kLinear: [1, 1e6]
  bool tied_output = false;        // no output.weight: logits come from token_embd.weight

  // Reads and checks the figures, and that every tensor of the model is there with its exact shape
  // and a permitted type, and no unknown one:
  //   token_embd.weight                      [hidden, vocab]               any type
  //   output_norm.weight                     [hidden]                      F32, F16, BF16
  //   output.weight (absent: tied)           [hidden, vocab]               any type
  //   rope_freqs.weight (optional)           [head_dim / 2]                F32
  //   blk.L.attn_norm.weight, ffn_norm       [hidden]                      F32, F16, BF16
  //   blk.L.attn_q.weight                    [hidden, heads * head_dim]    any type
  //   blk.L.attn_k.weight, attn_v            [hidden, kv_heads * head_dim] any type
  //   blk.L.attn_output.weight               [heads * head_dim, hidden]    any type
  //   blk.L.ffn_gate.weight, ffn_up          [hidden, ffn]                 any type
  //   blk.L.ffn_down.weight                  [ffn, hidden]                 any type
  // Q and K rows are in the interleaved RoPE order of GGUF's llama files: rotated pairs are rows 2i
  // and 2i + 1. INVALID_ARGUMENT: a figure out of range, a tensor missing or of another shape or
  // type; UNIMPLEMENTED: another architecture, RoPE scaling, experts, attention biases. Each names
  // the key or tensor, the value and the rule.
  static absl::StatusOr<ModelConfig> FromGguf(const GgufFile& file);
};

}  // namespace ripplekv
