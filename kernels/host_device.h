#pragma once

/// Before a function that CUDA kernels call too.
#ifdef __CUDACC__
#define RIPPLEKV_HOST_DEVICE __host__ __device__
#else
#define RIPPLEKV_HOST_DEVICE
#endif
