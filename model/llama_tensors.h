#pragma once

#include "absl/status/status.h"
#include "model/gguf.h"
#include "model/model_config.h"

namespace ripplekv {

// Holds the file's tensors against those a llama model of these figures is made of: the list in
// model_config.h, each with its exact shape and a permitted type, and none besides. The one tensor
// that is ignored is blk.L.attn_rot_embd.weight (old files' copy of what the RoPE base says).
// Errors as ModelConfig::FromGguf says.
absl::Status CheckLlamaTensors(const GgufFile& file, const ModelConfig& config);

}  // namespace ripplekv
