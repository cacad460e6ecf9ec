// CUDA's language and runtime, as far as kernels/*.cu use them, on the processor: the same kernel
// source compiled as C++, so that it can be tested where there is no GPU. Blocks run one after the
// other, the threads of a block as fibers of one thread that change at barriers and exchanges.
// What only a GPU can show (memory spaces, speed, other rounding of its functions) stays untested.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  explicit(false) dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

struct CUstream_st;
using cudaStream_t = CUstream_st*;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorSystemNotReady = 802,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorNoKernelImageForDevice = 209,
};
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

enum cudaMemcpyKind { cudaMemcpyDefault };
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaMalloc(void** p, size_t bytes) {
  *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
inline cudaError_t cudaFree(void* p) {
  std::free(p);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

namespace cuda_on_host {

/// In which order a block's threads run between two barriers. Results must not depend on it: where
/// one does, a barrier is missing.
enum class Order { kForward, kBackward };
void SetOrder(Order order);

extern uint3 block_index, thread_index;

/// Runs body once for every thread of every block.
cudaError_t Launch(const cudaLaunchConfig_t& config, const std::function<void()>& body);
/// Waits until all threads of the block that have not returned are here. Ends the program where
/// that cannot happen.
void WaitForBlock();
/// The bits that lane ^ offset of the warp brings; all 32 threads of the warp must come.
uint64_t Exchange(uint64_t bits, int offset);

}  // namespace cuda_on_host

#define threadIdx (::cuda_on_host::thread_index)
#define blockIdx (::cuda_on_host::block_index)

template <typename... Expected, typename... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Expected...),
                               const Given&... given) {
  return cuda_on_host::Launch(*config, [&] { kernel(Expected(given)...); });
}

inline void __syncthreads() { cuda_on_host::WaitForBlock(); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int offset) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = cuda_on_host::Exchange(bits, offset);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T>
T __ldg(const T* p) {
  return *p;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
/// Bytes of a (0 to 3) and b (4 to 7), chosen by the selector's nibbles.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t both = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return result;
}
inline void sincospi(double x, double* sine, double* cosine) {
  *sine = static_cast<double>(std::sin(x * 3.14159265358979323846264338327950288L));
  *cosine = static_cast<double>(std::cos(x * 3.14159265358979323846264338327950288L));
}
