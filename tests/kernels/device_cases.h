#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "tests/kernels/device.h"

namespace ripplekv {

/// A number of a float type.
inline double Number(KvType type, const std::byte* p) {
  if (type == KvType::kF32) {
    float f;
    std::memcpy(&f, p, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, p, 2);
  return Bf16ToFloat(h);
}

/// Kernels over rows of a type that models compute in.
struct Case {
  DeviceKind device;
  KvType type;
  double attention_tolerance;     // of sums of weights around 1
  double perturbation_tolerance;  // relative to the result and the noise
};

inline void PrintTo(const Case& c, std::ostream* out) {
  *out << DeviceName(c.device) << " " << KvTypeName(c.type);
}

inline std::string CaseName(const testing::TestParamInfo<Case>& info) {
  return std::string(DeviceName(info.param.device)) +
         (info.param.type == KvType::kF32 ? "F32" : "Bf16");
}

class DeviceKernelsTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::string why_not;
    device_ = OpenDevice(GetParam().device, &why_not);
    if (device_ == nullptr) GTEST_SKIP() << why_not;
  }
  const KvType type_ = GetParam().type;
  std::unique_ptr<Device> device_;
};

/// Kernels over stored rows.
struct StoredCase {
  DeviceKind device;
  KvTypes types;
  double attention_tolerance;
};

inline void PrintTo(const StoredCase& c, std::ostream* out) {
  *out << DeviceName(c.device) << " " << KvTypeName(c.types.k) << " " << KvTypeName(c.types.v);
}

inline std::string StoredCaseName(const testing::TestParamInfo<StoredCase>& info) {
  const KvTypes types = info.param.types;
  const std::string k = KvTypeName(types.k), v = KvTypeName(types.v);
  return std::string(DeviceName(info.param.device)) + "_" + (types.k == types.v ? k : k + "_" + v);
}

class DeviceStoredRowsTest : public testing::TestWithParam<StoredCase> {
 protected:
  void SetUp() override {
    std::string why_not;
    device_ = OpenDevice(GetParam().device, &why_not);
    if (device_ == nullptr) GTEST_SKIP() << why_not;
  }
  const KvTypes types_ = GetParam().types;
  std::unique_ptr<Device> device_;
};

inline std::vector<Case> FloatCases() {
  std::vector<Case> cases;
  for (DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCudaOnHost, DeviceKind::kCuda}) {
    cases.push_back({device, KvType::kF32, 2e-6, 6e-8});
    cases.push_back({device, KvType::kBf16, 2e-6, 0x1p-8 + 1e-7});
  }
  return cases;
}

inline std::vector<StoredCase> StoredCases() {
  std::vector<StoredCase> cases;
  for (DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCudaOnHost, DeviceKind::kCuda}) {
    for (KvType type : kKvTypes) cases.push_back({device, type, 2e-6});
    cases.push_back({device, KvTypes(KvType::kInt8, KvType::kInt4), 2e-6});
    cases.push_back({device, KvTypes(KvType::kInt4, KvType::kBf16), 2e-6});
  }
  return cases;
}

}  // namespace ripplekv
