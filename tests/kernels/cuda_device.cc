// Compiled against CUDA where the build has it, else against cuda_on_host/cuda_runtime.h.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "kernels/cuda_status.h"
#include "kernels/decode_attention_cuda.h"
#include "kernels/gather_rows_cuda.h"
#include "kernels/value_perturbation_cuda.h"
#include "tests/kernels/device.h"

namespace ripplekv {
namespace {

void Check(cudaError_t error, const char* what) {
  const absl::Status status = CudaStatus(error, what);
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

class CudaDevice : public Device {
 public:
  CudaDevice() { Check(cudaStreamCreate(&stream_), "create a stream"); }
  ~CudaDevice() override { Check(cudaStreamDestroy(stream_), "destroy a stream"); }

  std::byte* Allocate(size_t bytes) override {
    void* p = nullptr;
    Check(cudaMalloc(&p, std::max<size_t>(bytes, 1)), "allocate on the GPU");
    const std::vector<std::byte> poison(bytes, std::byte{0xff});
    ToDevice(poison.data(), p, bytes);
    return static_cast<std::byte*>(p);
  }
  void Free(std::byte* p) override { Check(cudaFree(p), "free on the GPU"); }
  void ToDevice(const void* from, void* to, size_t bytes) override {
    Check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copy to the GPU");
  }
  void ToHost(const void* from, void* to, size_t bytes) override {
    Check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copy from the GPU");
  }
  absl::Status GatherRows(const GatherRowsArgs& args, int64_t begin, int64_t end) override {
    return Wait(GatherRowsCuda(args, begin, end, Stream()));
  }
  absl::Status PerturbValues(const PerturbArgs& args, int64_t begin, int64_t end) override {
    return Wait(PerturbValuesCuda(args, begin, end, Stream()));
  }
  absl::Status DecodeAttention(DecodeAttentionArgs args,
                               const DecodeAttentionBounds& bounds) override {
    const size_t floats = args.layout.kv_heads > 0 && args.sequences > 0
                              ? DecodeAttentionCudaWorkspaceFloats(args, bounds)
                              : 0;
    const DeviceArray<float> workspace(this, floats);
    args.workspace = workspace.get();
    return Wait(DecodeAttentionCuda(args, bounds, Stream()));
  }

 private:
  /// On the host each operation runs its threads the other way round than the last one: what tests
  /// find equal does not depend on their order.
  CudaStream Stream() {
#ifdef RIPPLEKV_CUDA_ON_HOST
    backward_ = !backward_;
    cuda_on_host::SetOrder(backward_ ? cuda_on_host::Order::kBackward
                                     : cuda_on_host::Order::kForward);
#endif
    return stream_;
  }
  absl::Status Wait(absl::Status launched) {
    if (!launched.ok()) return launched;
    return CudaStatus(cudaStreamSynchronize(stream_), "run on the GPU");
  }

  cudaStream_t stream_ = nullptr;
#ifdef RIPPLEKV_CUDA_ON_HOST
  bool backward_ = false;
#endif
};

}  // namespace

std::unique_ptr<Device> OpenCudaDevice(DeviceKind kind, std::string* why_not) {
#ifdef RIPPLEKV_CUDA_ON_HOST
  constexpr DeviceKind kBuilt = DeviceKind::kCudaOnHost;
  constexpr const char* kOther = "this build has no CUDA: use cmake --preset cuda";
#else
  constexpr DeviceKind kBuilt = DeviceKind::kCuda;
  constexpr const char* kOther = "this build has CUDA: the host runs the kernels in the others";
#endif
  if (kind != kBuilt) {
    *why_not = kOther;
    return nullptr;
  }
  int count = 0;  // stays so where there is an error
  if (absl::Status status = CudaStatus(cudaGetDeviceCount(&count), "count GPUs");
      !status.ok() || count < 1) {
    *why_not = absl::StrCat("no usable GPU: ", status.ToString());
    return nullptr;
  }
  return std::make_unique<CudaDevice>();
}

}  // namespace ripplekv
