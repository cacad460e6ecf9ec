// Starting a kernel.
#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "kernels/cuda_status.h"
#include "kernels/cuda_stream.h"

namespace ripplekv {

/// Enqueues kernel(args...) and does not wait. Errors of earlier work on the device may come out
/// here too: CUDA reports them with the next call.
template <typename... Expected, typename... Given>
absl::Status CudaLaunch(const char* name, void (*kernel)(Expected...), dim3 grid, unsigned threads,
                        CudaStream stream, const Given&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, args...), name);
}

}  // namespace ripplekv
