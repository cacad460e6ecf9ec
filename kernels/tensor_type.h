#pragma once

#include <cstdint>

namespace ripplekv {

// How the numbers of a tensor are stored: the GGML types that RippleKV computes with. A quantised
// type stores blocks of 32 consecutive numbers of a row:
//   kQ8_0  fp16 d, int8 q[32]                value = d * q                 34 bytes
//   kQ4_0  fp16 d, 16 bytes of nibbles       value = d * (q - 8)           18 bytes
//   kQ4_1  fp16 d, fp16 m, 16 bytes          value = d * q + m             20 bytes
// Byte i of the nibbles holds number i in its low half and number i + 16 in its high half. All
// little endian.
enum class TensorType : uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1 };

inline constexpr int kTensorTypeCount = 6;
inline constexpr TensorType kTensorTypes[kTensorTypeCount] = {TensorType::kF32,  TensorType::kF16,
                                                              TensorType::kBF16, TensorType::kQ8_0,
                                                              TensorType::kQ4_0, TensorType::kQ4_1};

// Numbers in one block: 1 for the plain types. A row's length is a multiple of it.
constexpr int64_t block_elements(TensorType type) {
  switch (type) {
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      return 1;
    case TensorType::kQ8_0:
    case TensorType::kQ4_0:
    case TensorType::kQ4_1:
      return 32;
  }
  return 1;
}

// Bytes of one block.
constexpr int64_t block_bytes(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return 4;
    case TensorType::kF16:
    case TensorType::kBF16:
      return 2;
    case TensorType::kQ8_0:
      return 34;
    case TensorType::kQ4_0:
      return 18;
    case TensorType::kQ4_1:
      return 20;
  }
  return 4;
}

// Bytes of a row of `elements` numbers (a multiple of block_elements(type)).
constexpr int64_t row_bytes(TensorType type, int64_t elements) {
  return elements / block_elements(type) * block_bytes(type);
}

// The name GGML gives the type, e.g. "Q4_1".
constexpr const char* name(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return "F32";
    case TensorType::kF16:
      return "F16";
    case TensorType::kBF16:
      return "BF16";
    case TensorType::kQ8_0:
      return "Q8_0";
    case TensorType::kQ4_0:
      return "Q4_0";
    case TensorType::kQ4_1:
      return "Q4_1";
  }
  return "?";
}

}  // namespace ripplekv
