#include "tests/kernels/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace ripplekv {
namespace {

class CpuDevice : public Device {
 public:
  std::byte* Allocate(size_t bytes) override {
    void* p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (bytes > 0) std::memset(p, 0xff, bytes);
    return static_cast<std::byte*>(p);
  }
  void Free(std::byte* p) override { std::free(p); }
  void ToDevice(const void* from, void* to, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void ToHost(const void* from, void* to, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  absl::Status GatherRows(const GatherRowsArgs& args, int64_t begin, int64_t end) override {
    ripplekv::GatherRows(args, begin, end);
    return absl::OkStatus();
  }
  absl::Status PerturbValues(const PerturbArgs& args, int64_t begin, int64_t end) override {
    ripplekv::PerturbValues(args, begin, end);
    return absl::OkStatus();
  }
  absl::Status DecodeAttention(DecodeAttentionArgs args, const DecodeAttentionBounds&) override {
    std::vector<float> workspace(DecodeAttentionWorkspaceFloats(args));
    args.workspace = workspace.data();
    // The build that computes in fp32 as a GPU does.
    ripplekv::DecodeAttention(args, nullptr, std::min(BestIsa(), Isa::kV4));
    return absl::OkStatus();
  }
};

}  // namespace

const char* DeviceName(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? "Cpu" : kind == DeviceKind::kCudaOnHost ? "CudaOnHost" : "Cuda";
}

std::unique_ptr<Device> OpenDevice(DeviceKind kind, std::string* why_not) {
  if (kind == DeviceKind::kCpu) return std::make_unique<CpuDevice>();
  return OpenCudaDevice(kind, why_not);
}

}  // namespace ripplekv
