#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/gguf.h"

namespace ripplekv {

// What GgufFile holds, as read from the bytes of a file; tensors point into the bytes. Only
// GgufFile uses this.
struct GgufContents {
  int version = 0;
  absl::flat_hash_map<std::string, GgufValue> metadata;
  std::vector<GgufTensor> tensors;
  absl::flat_hash_map<std::string, size_t> tensor_index;  // name -> place in `tensors`
};

// Reads and checks a whole GGUF file; the errors are GgufFile::Open's, without the path.
absl::StatusOr<GgufContents> ParseGguf(absl::Span<const std::byte> bytes);

}  // namespace ripplekv
