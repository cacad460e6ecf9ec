#pragma once

#include "absl/status/status.h"
#include "kernels/cuda_stream.h"
#include "kernels/gather_rows.h"

namespace ripplekv {

/// GatherRows on a GPU: the same bytes, for all stored types. Every pointer in args, the pages themselves too, is one
/// that the device reads and writes, and must stay so until the stream has passed here; pages are
/// aligned to 64 bytes. Enqueues one kernel and does not wait. Rows whose bytes, strides and
/// addresses are multiples of 16 move in pieces of 16 bytes, others in smaller ones.
absl::Status GatherRowsCuda(const GatherRowsArgs& args, int64_t begin, int64_t end,
                            CudaStream stream);

}  // namespace ripplekv
