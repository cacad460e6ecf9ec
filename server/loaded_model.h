#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kv_type.h"
#include "kernels/thread_pool.h"
#include "model/chat_template.h"
#include "model/decoder.h"
#include "model/model_config.h"
#include "model/tokenizer.h"

namespace ripplekv {

// What is known of a checkpoint besides its weights. Immutable; serves many threads.
struct ModelInfo {
  ModelConfig config;
  std::string fingerprint;                // SHA-256 of the file
  std::vector<std::string> weight_types;  // most bytes first
  ComputeType compute = ComputeType::kBf16;
  KvTypes kv_types = KvType::kBf16;  // of cached rows
  std::shared_ptr<const Tokenizer> tokenizer;
  absl::StatusOr<ChatTemplate> chat_template;  // or why there is none
  std::vector<int32_t> eos_token_ids;
  size_t longest_token_bytes = 1;

  // Bytes of one position in one layer: all KV heads, keys, values and the position itself.
  int64_t kv_bytes_per_position_layer() const;
};

struct LoadedModel {
  std::shared_ptr<const ModelInfo> info;
  std::unique_ptr<ThreadPool> pool;  // outlives the decoder
  std::unique_ptr<Decoder> decoder;
};

// Reads the checkpoint. Cached rows are of the type of arithmetic where `kv_types` is null. Errors
// name the file and what is wrong with it.
absl::StatusOr<LoadedModel> LoadModel(const std::string& path, ComputeType compute,
                                      std::optional<KvTypes> kv_types, int threads);

}  // namespace ripplekv
