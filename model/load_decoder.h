#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/thread_pool.h"
#include "model/decoder.h"

namespace ripplekv {

/// The decoder of a checkpoint file, for programs that need neither tokenizer nor fingerprint. `compute` is a name that
/// ParseComputeType takes; `pool` must outlive the decoder. Errors as of GgufFile::Open, ModelConfig::FromGguf,
/// Weights::Load and ParseComputeType.
absl::StatusOr<std::unique_ptr<Decoder>> LoadDecoder(const std::string& path,
                                                     std::string_view compute, ThreadPool* pool);

}  // namespace ripplekv
