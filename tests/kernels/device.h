#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/decode_attention.h"
#include "kernels/decode_attention_cuda.h"
#include "kernels/gather_rows.h"
#include "kernels/value_perturbation.h"

namespace ripplekv {

enum class DeviceKind {
  kCpu,
  kCudaOnHost,  // the CUDA kernels' source, run by the processor (cuda_on_host/cuda_runtime.h)
  kCuda,
};

const char* DeviceName(DeviceKind kind);

/// Where a kernel runs: its memory and the operations, which have ended when they return.
class Device {
 public:
  virtual ~Device() = default;
  /// New memory, aligned to 256 bytes, filled with 0xff (NaN in every type).
  virtual std::byte* Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* p) = 0;
  virtual void ToDevice(const void* from, void* to, size_t bytes) = 0;
  virtual void ToHost(const void* from, void* to, size_t bytes) = 0;

  virtual absl::Status GatherRows(const GatherRowsArgs& args, int64_t begin, int64_t end) = 0;
  virtual absl::Status PerturbValues(const PerturbArgs& args, int64_t begin, int64_t end) = 0;
  /// With a workspace of its own.
  virtual absl::Status DecodeAttention(DecodeAttentionArgs args,
                                       const DecodeAttentionBounds& bounds) = 0;
};

/// Null and the reason where this build or machine has no such device.
std::unique_ptr<Device> OpenDevice(DeviceKind kind, std::string* why_not);
std::unique_ptr<Device> OpenCudaDevice(DeviceKind kind, std::string* why_not);

/// Memory of a device with what a vector holds.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Device* device, const std::vector<T>& host)
      : device_(device), size_(host.size()), data_(device->Allocate(size_ * sizeof(T))) {
    device_->ToDevice(host.data(), data_, size_ * sizeof(T));
  }
  /// Uninitialised (0xff).
  DeviceArray(Device* device, size_t size)
      : device_(device), size_(size), data_(device->Allocate(size * sizeof(T))) {}
  DeviceArray(DeviceArray&& other) noexcept
      : device_(other.device_), size_(other.size_), data_(std::exchange(other.data_, nullptr)) {}
  ~DeviceArray() {
    if (data_ != nullptr) device_->Free(data_);
  }
  T* get() const { return reinterpret_cast<T*>(data_); }
  std::vector<T> Read() const {
    std::vector<T> host(size_);
    device_->ToHost(data_, host.data(), size_ * sizeof(T));
    return host;
  }

 private:
  Device* device_;
  size_t size_;
  std::byte* data_;
};

}  // namespace ripplekv
