#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/isa.h"
#include "kernels/kv_type.h"
#include "kernels/packed_matrix.h"
#include "kernels/panel_matrix.h"

namespace ripplekv {

inline std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (Isa isa : kIsas) {
    if (IsaSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

inline std::vector<float> RandomFloats(std::mt19937& random, size_t n, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

/// Numbers of a KV type as bytes, and the exact values they hold.
struct KvData {
  std::vector<std::byte> bytes;
  std::vector<double> values;
};

inline KvData RandomKv(std::mt19937& random, KvType type, size_t n, float scale = 1) {
  const std::vector<float> x = RandomFloats(random, n, scale);
  KvData data{std::vector<std::byte>(n * KvTypeBytes(type)), std::vector<double>(n)};
  for (size_t i = 0; i < n; ++i) {
    if (type == KvType::kF32) {
      std::memcpy(&data.bytes[i * 4], &x[i], 4);
      data.values[i] = x[i];
    } else {
      const uint16_t rounded = FloatToBf16(x[i]);
      std::memcpy(&data.bytes[i * 2], &rounded, 2);
      data.values[i] = Bf16ToFloat(rounded);
    }
  }
  return data;
}

/// A random matrix of any type: random bits in the quants, scales of ordinary size. `shift` bytes
/// of misalignment.
struct RandomMatrix {
  RandomMatrix(std::mt19937& random, TensorType type, int64_t rows, int64_t cols, int shift = 0)
      : storage(static_cast<size_t>(row_bytes(type, cols) * rows + shift)),
        view{type, rows, cols, storage.data() + shift, row_bytes(type, cols)} {
    std::byte* p = storage.data() + shift;
    std::normal_distribution<float> normal(0, 0.05f);
    if (block_elements(type) == 1) {
      for (int64_t i = 0; i < rows * cols; ++i) {
        const float f = normal(random);
        if (type == TensorType::kF32) {
          std::memcpy(p + i * 4, &f, 4);
        } else {
          const uint16_t h = type == TensorType::kBF16 ? FloatToBf16(f) : SmallHalf(random);
          std::memcpy(p + i * 2, &h, 2);
        }
      }
      return;
    }
    const int64_t bytes = block_bytes(type);
    for (int64_t b = 0; b < rows * cols / 32; ++b) {
      for (int64_t i = 0; i < bytes; ++i) p[b * bytes + i] = static_cast<std::byte>(random());
      const int scales = type == TensorType::kQ4_1 ? 2 : 1;
      for (int i = 0; i < scales; ++i) {
        const uint16_t h = SmallHalf(random);
        std::memcpy(p + b * bytes + 2 * i, &h, 2);
      }
    }
  }

  /// A half of either sign between 2^-10 and 2^-4.
  static uint16_t SmallHalf(std::mt19937& random) {
    return static_cast<uint16_t>((random() & 0x8000) | (5 + random() % 6) << 10 |
                                 (random() & 0x3ff));
  }

  std::vector<std::byte> storage;
  PackedMatrix view;
};

/// A matrix repacked.
struct Panels {
  explicit Panels(const PackedMatrix& w)
      : storage(static_cast<std::byte*>(std::aligned_alloc(
                    64, static_cast<size_t>(panel_matrix_bytes(w.type, w.rows, w.cols)))),
                &std::free),
        view{w.type, w.rows, w.cols, storage.get()} {
    std::memset(storage.get(), 0xa5, bytes());
    RepackPanels(w, 0, view.panels(), storage.get());
  }

  size_t bytes() const {
    return static_cast<size_t>(panel_matrix_bytes(view.type, view.rows, view.cols));
  }

  std::unique_ptr<std::byte, decltype(&std::free)> storage;
  PanelMatrix view;
};

}  // namespace ripplekv
