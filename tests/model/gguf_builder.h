#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/tensor_type.h"

namespace ripplekv {

// Writes GGUF files, valid and invalid, for tests. Everything a file can say is a public field, so
// a test changes what it likes before Build(); nothing is checked.
//   GgufBuilder b;
//   b.String("general.architecture", "llama").Uint32("llama.block_count", 2);
//   b.RandomTensor("blk.0.attn_q.weight", TensorType::kQ4_1, {64, 64}, /*seed=*/1);
//   std::vector<std::byte> file = b.Build();
class GgufBuilder {
 public:
  struct Entry {
    std::string key;
    uint32_t type;  // GGUF's value type
    std::string bytes;
  };
  struct Tensor {
    std::string name;
    uint32_t ggml_type;
    std::vector<uint64_t> shape;
    std::string data;
    int64_t offset = -1;  // in the data section; -1: the next aligned place
  };

  uint32_t version = 3;
  uint64_t alignment = 32;      // of the data; say general.alignment yourself where it differs
  int64_t tensor_count = -1;    // in the header; -1: the true one
  int64_t metadata_count = -1;  // likewise
  std::vector<Entry> entries;
  std::vector<Tensor> tensors;

  // Metadata; a key that is there is replaced. (Push onto `entries` for a duplicate.)
  GgufBuilder& Uint8(std::string key, uint8_t v) { return Set(std::move(key), 0, Raw(v)); }
  GgufBuilder& Int8(std::string key, int8_t v) { return Set(std::move(key), 1, Raw(v)); }
  GgufBuilder& Uint16(std::string key, uint16_t v) { return Set(std::move(key), 2, Raw(v)); }
  GgufBuilder& Int16(std::string key, int16_t v) { return Set(std::move(key), 3, Raw(v)); }
  GgufBuilder& Uint32(std::string key, uint32_t v) { return Set(std::move(key), 4, Raw(v)); }
  GgufBuilder& Int32(std::string key, int32_t v) { return Set(std::move(key), 5, Raw(v)); }
  GgufBuilder& Float32(std::string key, float v) { return Set(std::move(key), 6, Raw(v)); }
  GgufBuilder& Bool(std::string key, bool v) { return Set(std::move(key), 7, Raw(uint8_t{v})); }
  GgufBuilder& String(std::string key, std::string_view v) {
    return Set(std::move(key), 8, RawString(v));
  }
  GgufBuilder& Uint64(std::string key, uint64_t v) { return Set(std::move(key), 10, Raw(v)); }
  GgufBuilder& Int64(std::string key, int64_t v) { return Set(std::move(key), 11, Raw(v)); }
  GgufBuilder& Float64(std::string key, double v) { return Set(std::move(key), 12, Raw(v)); }
  GgufBuilder& Strings(std::string key, const std::vector<std::string>& v) {
    std::string bytes = Raw(uint32_t{8}) + Raw(uint64_t{v.size()});
    for (const std::string& text : v) bytes += RawString(text);
    return Set(std::move(key), 9, bytes);
  }
  GgufBuilder& Int32s(std::string key, const std::vector<int32_t>& v) {
    return Array(std::move(key), 5, v);
  }
  GgufBuilder& Float32s(std::string key, const std::vector<float>& v) {
    return Array(std::move(key), 6, v);
  }
  // An array of fixed-size numbers of GGUF's value type `type`.
  template <typename T>
  GgufBuilder& Array(std::string key, uint32_t type, const std::vector<T>& v) {
    std::string bytes = Raw(type) + Raw(uint64_t{v.size()});
    for (const T& element : v) bytes += Raw(element);
    return Set(std::move(key), 9, bytes);
  }
  GgufBuilder& Set(std::string key, uint32_t type, std::string bytes) {
    for (Entry& entry : entries) {
      if (entry.key != key) continue;
      entry.type = type;
      entry.bytes = std::move(bytes);
      return *this;
    }
    entries.push_back({std::move(key), type, std::move(bytes)});
    return *this;
  }
  GgufBuilder& Remove(std::string_view key) {
    std::erase_if(entries, [key](const Entry& entry) { return entry.key == key; });
    return *this;
  }

  // Tensors, in GGML's order (shape[0] contiguous); one that is there is replaced.
  GgufBuilder& RawTensor(std::string name, uint32_t ggml_type, std::vector<uint64_t> shape,
                         std::string data) {
    RemoveTensor(name);
    tensors.push_back({std::move(name), ggml_type, std::move(shape), std::move(data)});
    return *this;
  }
  GgufBuilder& F32Tensor(std::string name, std::vector<uint64_t> shape,
                         const std::vector<float>& values) {
    std::string data;
    for (float value : values) data += Raw(value);
    return RawTensor(std::move(name), GgmlType(TensorType::kF32), std::move(shape), data);
  }
  // Numbers of about `scale`, of both signs, the same for a seed.
  GgufBuilder& RandomTensor(std::string name, TensorType type, std::vector<uint64_t> shape,
                            uint64_t seed, float scale = 0.05f) {
    std::mt19937_64 random(seed);
    int64_t elements = 1;
    for (uint64_t dimension : shape) elements *= static_cast<int64_t>(dimension);
    std::string data;
    for (int64_t i = 0; i < elements / block_elements(type); ++i) {
      data += RandomBlock(type, random, scale);
    }
    return RawTensor(std::move(name), GgmlType(type), std::move(shape), std::move(data));
  }
  GgufBuilder& RemoveTensor(std::string_view name) {
    std::erase_if(tensors, [name](const Tensor& tensor) { return tensor.name == name; });
    return *this;
  }
  Tensor& tensor(std::string_view name) {
    return *std::find_if(tensors.begin(), tensors.end(),
                         [name](const Tensor& tensor) { return tensor.name == name; });
  }

  std::vector<std::byte> Build() const {
    std::string file = "GGUF" + Raw(version);
    file += Raw(tensor_count < 0 ? uint64_t{tensors.size()} : static_cast<uint64_t>(tensor_count));
    file +=
        Raw(metadata_count < 0 ? uint64_t{entries.size()} : static_cast<uint64_t>(metadata_count));
    for (const Entry& entry : entries) file += RawString(entry.key) + Raw(entry.type) + entry.bytes;
    std::string data;
    for (const Tensor& tensor : tensors) {
      file += RawString(tensor.name) + Raw(static_cast<uint32_t>(tensor.shape.size()));
      for (uint64_t dimension : tensor.shape) file += Raw(dimension);
      const uint64_t offset =
          tensor.offset < 0 ? uint64_t{data.size()} : static_cast<uint64_t>(tensor.offset);
      file += Raw(tensor.ggml_type) + Raw(offset);
      data += tensor.data;
      Pad(&data);
    }
    Pad(&file);
    file += data;
    std::vector<std::byte> bytes(file.size());
    std::memcpy(bytes.data(), file.data(), file.size());
    return bytes;
  }

  // The bytes before the tensors' data.
  size_t HeaderBytes() const {
    GgufBuilder header = *this;
    for (Tensor& tensor : header.tensors) tensor.data.clear();
    return header.Build().size();
  }

  bool Write(const std::string& path) const {
    const std::vector<std::byte> bytes = Build();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return file.good();
  }

  static uint32_t GgmlType(TensorType type) {
    switch (type) {
      case TensorType::kF32:
        return 0;
      case TensorType::kF16:
        return 1;
      case TensorType::kBF16:
        return 30;
      case TensorType::kQ8_0:
        return 8;
      case TensorType::kQ4_0:
        return 2;
      case TensorType::kQ4_1:
        return 3;
    }
    return ~0u;
  }
  template <typename T>
  static std::string Raw(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string RawString(std::string_view text) {
    return Raw(uint64_t{text.size()}) + std::string(text);
  }

 private:
  void Pad(std::string* bytes) const {
    bytes->append((alignment - bytes->size() % alignment) % alignment, '\0');
  }

  // fp16 of a normal number (2^-14..65504), cut instead of rounded.
  static uint16_t Half(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    return static_cast<uint16_t>((bits >> 16 & 0x8000) | (((bits >> 23 & 0xFF) - 112) << 10) |
                                 (bits >> 13 & 0x3FF));
  }

  static std::string RandomBlock(TensorType type, std::mt19937_64& random, float scale) {
    // Away from 0, where Half would need subnormals.
    const float magnitude =
        scale * (0.25f + 0.75f * static_cast<float>(random() >> 40) / 16777216.0f);
    const float value = random() & 1 ? magnitude : -magnitude;
    std::string block;
    switch (type) {
      case TensorType::kF32:
        return Raw(value);
      case TensorType::kF16:
        return Raw(Half(value));
      case TensorType::kBF16:
        return Raw(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
      case TensorType::kQ8_0:
        block = Raw(Half(magnitude / 64));
        break;
      case TensorType::kQ4_0:
        block = Raw(Half(magnitude / 4));
        break;
      case TensorType::kQ4_1:
        block = Raw(Half(magnitude / 8)) + Raw(Half(-magnitude));
        break;
    }
    while (block.size() < static_cast<size_t>(block_bytes(type))) {
      block.push_back(static_cast<char>(random()));
    }
    return block;
  }
};

}  // namespace ripplekv
