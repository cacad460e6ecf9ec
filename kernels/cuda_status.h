#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

/// OK, or what went wrong while doing `what`, with CUDA's own name and words for it:
/// RESOURCE_EXHAUSTED for want of memory, UNAVAILABLE where there is no usable GPU or driver,
/// INTERNAL for the rest.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

}  // namespace ripplekv
