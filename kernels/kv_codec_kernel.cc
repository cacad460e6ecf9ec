#include "kernels/isa_functions.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

constexpr int kGroup = 32;           // channels
constexpr float kLeast = 0x1p-100f;  // smaller magnitudes and ranges count as none
constexpr int32_t kInfinity = 0x7f800000;
constexpr uint16_t kNanBf16 = 0x7fc0;

RIPPLEKV_INLINE int32_t Bits(float x) { return LoadAs<int32_t>(&x); }
RIPPLEKV_INLINE float FromBits(int32_t bits) { return LoadAs<float>(&bits); }
/// The nearest whole number, |x| below 2^21.
RIPPLEKV_INLINE int32_t Round(float x) { return Bits(x + 12582912.0f) - 0x4b400000; }
/// Integers in the order of the numbers, and back.
RIPPLEKV_INLINE int32_t Ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

void EncodeBf16(const float* x, int n, std::byte* row) {
  uint16_t* out = reinterpret_cast<uint16_t*>(row);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreBf16(out + i, Load(x + i));
  if (i == n) return;
  uint16_t rest[kLanes];
  StoreBf16(rest, LoadPart(x + i, n - i));
  for (int j = 0; i + j < n; ++j) {
    __builtin_memcpy(row + 2 * (i + j), &rest[j], sizeof rest[j]);
  }
}

void EncodeInt8(const float* x, int n, std::byte* row, std::byte* params) {
  int32_t most = 0;  // magnitudes order as their bits do
  for (int i = 0; i < n; ++i) {
    const int32_t magnitude = Bits(x[i]) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  const float largest = FromBits(most);
  const bool zero = largest < kLeast || most >= kInfinity;
  const float scale = most >= kInfinity ? __builtin_nanf("") : zero ? 0.0f : largest / 127.0f;
  const float inverse = zero ? 0.0f : 127.0f / largest;
  __builtin_memcpy(params, &scale, sizeof scale);
  int8_t* q = reinterpret_cast<int8_t*>(row);
  const int padded = (n + kGroup - 1) / kGroup * kGroup;
  for (int i = zero ? 0 : n; i < padded; ++i) q[i] = 0;
  if (zero) return;
  for (int i = 0; i < n; ++i) q[i] = static_cast<int8_t>(Round(x[i] * inverse));
}

void EncodeInt4Group(const float* x, uint8_t* q, std::byte* params) {
  int32_t least = 0x7fffffff, most = -0x7fffffff - 1;
  for (int i = 0; i < kGroup; ++i) {
    const int32_t ordered = Ordered(Bits(x[i]));
    least = ordered < least ? ordered : least;
    most = ordered > most ? ordered : most;
  }
  const int32_t low = Ordered(least), high = Ordered(most);
  const bool finite = (low & 0x7fffffff) < kInfinity && (high & 0x7fffffff) < kInfinity;
  // Cut to bf16: towards zero, then down where that was up.
  int32_t minimum_bits = low & ~0xffff;
  if (low < 0 && minimum_bits != low) minimum_bits += 0x10000;
  const float minimum = FromBits(minimum_bits);
  const float range = FromBits(high) - minimum;
  int32_t scale_bits = range < kLeast ? 0 : (Bits(range / 15.0f) + 0xffff) & ~0xffff;
  // What overflowed on the way has these bits, too.
  const bool usable = finite && (minimum_bits & 0x7fffffff) < kInfinity &&
                      Bits(range) < kInfinity && scale_bits < kInfinity;
  if (!usable) scale_bits = minimum_bits = kNanBf16 << 16;
  const uint16_t stored[2] = {static_cast<uint16_t>(static_cast<uint32_t>(scale_bits) >> 16),
                              static_cast<uint16_t>(static_cast<uint32_t>(minimum_bits) >> 16)};
  __builtin_memcpy(params, stored, sizeof stored);
  const float inverse = usable && scale_bits != 0 ? 1.0f / FromBits(scale_bits) : 0.0f;
  int32_t codes[kGroup];
  for (int i = 0; i < kGroup; ++i) {
    const int32_t code = usable ? Round((x[i] - minimum) * inverse) : 0;
    codes[i] = code < 15 ? code : 15;
  }
  for (int i = 0; i < kGroup / 2; ++i) {
    q[i] = static_cast<uint8_t>(codes[i] | codes[i + kGroup / 2] << 4);
  }
}

void EncodeInt4(const float* x, int n, std::byte* row, std::byte* params) {
  uint8_t* q = reinterpret_cast<uint8_t*>(row);
  int first = 0;
  for (; first + kGroup <= n; first += kGroup) {
    EncodeInt4Group(x + first, q + first / 2, params + first / kGroup * 4);
  }
  if (first == n) return;
  float group[kGroup];
  // What is there decides about the scale.
  for (int i = 0; i < kGroup; ++i) group[i] = x[first + i < n ? first + i : first];
  EncodeInt4Group(group, q + first / 2, params + first / kGroup * 4);
}

}  // namespace

void EncodeKvRow(KvType type, const float* x, int n, std::byte* row, std::byte* params) {
  switch (type) {
    case KvType::kF32:
      __builtin_memcpy(row, x, static_cast<size_t>(n) * sizeof(float));
      return;
    case KvType::kBf16:
      return EncodeBf16(x, n, row);
    case KvType::kInt8:
      return EncodeInt8(x, n, row, params);
    case KvType::kInt4:
      return EncodeInt4(x, n, row, params);
  }
}

}  // namespace ripplekv::RIPPLEKV_ISA
