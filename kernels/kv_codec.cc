#include "kernels/kv_codec.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/bf16.h"
#include "kernels/decode_attention.h"
#include "kernels/hadamard.h"
#include "kernels/isa_functions.h"

namespace ripplekv {
namespace {

void DecodeBf16(const std::byte* row, int head_dim, float* x) {
  for (int i = 0; i < head_dim; ++i) {
    uint16_t bits;
    std::memcpy(&bits, row + 2 * i, sizeof bits);
    x[i] = Bf16ToFloat(bits);
  }
}

void DecodeInt8(const std::byte* row, const std::byte* params, int head_dim, float* x) {
  float scale;
  std::memcpy(&scale, params, sizeof scale);
  const auto* q = reinterpret_cast<const int8_t*>(row);
  for (int i = 0; i < head_dim; ++i) x[i] = static_cast<float>(q[i]) * scale;
}

void DecodeInt4(const std::byte* row, const std::byte* params, int head_dim, float* x) {
  for (int first = 0; first < head_dim; first += kKvGroup) {
    uint16_t bits[2];
    std::memcpy(bits, params + first / kKvGroup * 4, sizeof bits);
    const float scale = Bf16ToFloat(bits[0]), minimum = Bf16ToFloat(bits[1]);
    const auto* q = reinterpret_cast<const uint8_t*>(row) + first / 2;
    float group[kKvGroup];
    for (int i = 0; i < kKvGroup / 2; ++i) {
      group[i] = static_cast<float>(q[i] & 15) * scale + minimum;
      group[i + kKvGroup / 2] = static_cast<float>(q[i] >> 4) * scale + minimum;
    }
    std::copy_n(group, std::min(kKvGroup, head_dim - first), x + first);
  }
}

}  // namespace

void EncodeKvRow(KvRole role, KvType type, const float* x, int head_dim, std::byte* row,
                 std::byte* params, Isa isa) {
  float transformed[kDecodeAttentionMaxHeadDim];
  if (IsTransformed(role, type)) {
    HadamardRow(x, head_dim, transformed);
    x = transformed;
  }
  ForIsa(isa, isa_base::EncodeKvRow, isa_v3::EncodeKvRow, isa_v4::EncodeKvRow)(type, x, head_dim,
                                                                               row, params);
}

void DecodeKvRow(KvRole role, KvType type, const std::byte* row, const std::byte* params,
                 int head_dim, float* x) {
  switch (type) {
    case KvType::kF32:
      std::memcpy(x, row, static_cast<size_t>(head_dim) * sizeof(float));
      return;
    case KvType::kBf16:
      return DecodeBf16(row, head_dim, x);
    case KvType::kInt8:
      return DecodeInt8(row, params, head_dim, x);
    case KvType::kInt4:
      DecodeInt4(row, params, head_dim, x);
      if (IsTransformed(role, type)) HadamardRow(x, head_dim, x);
      return;
  }
}

}  // namespace ripplekv
