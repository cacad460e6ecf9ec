#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda_stream.h"
#include "kernels/decode_attention.h"

namespace ripplekv {

/// What the processor must know of sequences whose table lies on the GPU: it sizes the grid and the
/// workspace, and changes no bits.
struct DecodeAttentionBounds {
  int64_t max_rows = 0;  // no sequence has more
  bool mass = false;     // whether PagedSequence::mass is looked at; else no mass is written
};

size_t DecodeAttentionCudaWorkspaceFloats(const DecodeAttentionArgs& args,
                                          const DecodeAttentionBounds& bounds);

/// DecodeAttention on a GPU: rows of all stored types, the same splits of 256 rows, merged in
/// order, fp32 throughout. Every pointer in args and in its sequences, the pages themselves too, is
/// one that the device reads and writes, and must stay so until the stream has passed here; pages
/// are aligned to 64 bytes. All sums run in a fixed order, so a sequence's bits, its mass included,
/// depend neither on the others nor on the bounds or where its pages lie; they differ from the
/// processor's within rounding. Enqueues two kernels (three with mass) and does not wait.
absl::Status DecodeAttentionCuda(const DecodeAttentionArgs& args,
                                 const DecodeAttentionBounds& bounds, CudaStream stream);

}  // namespace ripplekv
