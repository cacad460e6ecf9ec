#pragma once

struct CUstream_st;

namespace ripplekv {

/// cudaStream_t, for headers that know no CUDA. Null is the default stream.
using CudaStream = CUstream_st*;

}  // namespace ripplekv
