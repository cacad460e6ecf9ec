#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/tensor_type.h"

namespace ripplekv {

// One tensor of a GGUF file. `data` points into the file's mapping (or the caller's bytes): valid
// as long as the GgufFile lives.
struct GgufTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  // GGML order, 1 to 4 dimensions, each at least 1: shape[0] is contiguous. A weight that maps n
  // inputs to m outputs is [n, m], its m rows of n numbers one after the other.
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t size_bytes = 0;
  int64_t elements = 0;
};

// A metadata value. GGUF's integer types are widened to int64 or uint64, its floats to double; an
// array keeps one kind.
using GgufValue = std::variant<int64_t, uint64_t, double, bool, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<bool>, std::vector<std::string>>;

// A GGUF file, version 2 or 3, little endian, mapped read-only. Every count, offset, size, name and
// type is checked against the file before it is used; tensor data is not looked at. Format:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
class GgufFile {
 public:
  // Maps and checks the file. Errors name the path, the key or tensor, the offset in the file and
  // the broken rule: NOT_FOUND / PERMISSION_DENIED (cannot be opened), INVALID_ARGUMENT (not a
  // valid GGUF file), UNIMPLEMENTED (a valid file with a version or tensor type that is not
  // supported).
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  // The same over bytes that the caller keeps alive and aligned as malloc aligns.
  static absl::StatusOr<GgufFile> Parse(absl::Span<const std::byte> bytes);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  int version() const { return version_; }
  // The whole file.
  absl::Span<const std::byte> bytes() const { return bytes_; }

  // Metadata. The getters answer NOT_FOUND for an absent key and INVALID_ARGUMENT for another type
  // or range, naming the key; the ...Or forms answer `fallback` for an absent key only.
  bool Has(std::string_view key) const;
  // nullptr where absent.
  const GgufValue* Find(std::string_view key) const;
  const absl::flat_hash_map<std::string, GgufValue>& metadata() const { return metadata_; }
  absl::StatusOr<std::string> GetString(std::string_view key) const;
  // Any integer type whose value is not negative.
  absl::StatusOr<uint64_t> GetUint(std::string_view key) const;
  // Any float type.
  absl::StatusOr<double> GetFloat(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::vector<std::string>> GetStringArray(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetIntArray(std::string_view key) const;
  absl::StatusOr<std::vector<double>> GetFloatArray(std::string_view key) const;

  absl::StatusOr<std::string> GetStringOr(std::string_view key, std::string fallback) const;
  absl::StatusOr<uint64_t> GetUintOr(std::string_view key, uint64_t fallback) const;
  absl::StatusOr<double> GetFloatOr(std::string_view key, double fallback) const;
  absl::StatusOr<bool> GetBoolOr(std::string_view key, bool fallback) const;

  // In the file's order.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  // nullptr where absent.
  const GgufTensor* FindTensor(std::string_view name) const;

 private:
  class Mapping;
  GgufFile();

  std::unique_ptr<Mapping> mapping_;  // absent when parsed from the caller's bytes
  absl::Span<const std::byte> bytes_;
  int version_ = 0;
  absl::flat_hash_map<std::string, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> tensor_index_;
};

}  // namespace ripplekv
