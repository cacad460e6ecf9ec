#pragma once

#include "absl/status/status.h"
#include "kernels/cuda_stream.h"
#include "kernels/value_perturbation.h"

namespace ripplekv {

/// PerturbValues on a GPU: the same Philox counters, norms and normals in double precision, rounded
/// at the same places. Logarithm, sine and cosine are CUDA's and squares are summed in another
/// order, so that now and then a result is the neighbouring number of its type; rows that are
/// copied have the same bits. The result does not depend on the range. Source and destination are
/// the device's. Enqueues one kernel and does not wait.
absl::Status PerturbValuesCuda(const PerturbArgs& args, int64_t row_begin, int64_t row_end,
                               CudaStream stream);

}  // namespace ripplekv
