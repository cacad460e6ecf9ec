#include "calibration/row_copy.h"

#include <cstring>

#include "kernels/bf16.h"
#include "kernels/kv_codec.h"

namespace ripplekv {
namespace {

constexpr int64_t kGrainRows = 64;

/// Rows as they read back once they have been stored.
class RoundTrip {
 public:
  RoundTrip(KvRole role, KvType type, KvType stored, int head_dim)
      : role_(role),
        type_(type),
        stored_(stored),
        head_dim_(head_dim),
        values_(static_cast<size_t>(head_dim)),
        row_(KvRowBytes(stored, head_dim)),
        params_(KvParamBytes(stored, head_dim)) {}

  void Row(const std::byte* from, std::byte* to) {
    const size_t bytes = static_cast<size_t>(head_dim_) * KvTypeBytes(type_);
    if (stored_ == type_) {
      std::memcpy(to, from, bytes);
      return;
    }
    if (type_ == KvType::kF32) {
      std::memcpy(values_.data(), from, bytes);
    } else {
      const auto* bf16 = reinterpret_cast<const uint16_t*>(from);
      for (int i = 0; i < head_dim_; ++i) values_[static_cast<size_t>(i)] = Bf16ToFloat(bf16[i]);
    }
    EncodeKvRow(role_, stored_, values_.data(), head_dim_, row_.data(), params_.data());
    DecodeKvRow(role_, stored_, row_.data(), params_.data(), head_dim_, values_.data());
    if (type_ == KvType::kF32) {
      std::memcpy(to, values_.data(), bytes);
    } else {
      auto* bf16 = reinterpret_cast<uint16_t*>(to);
      for (int i = 0; i < head_dim_; ++i) bf16[i] = FloatToBf16(values_[static_cast<size_t>(i)]);
    }
  }

 private:
  const KvRole role_;
  const KvType type_, stored_;
  const int head_dim_;
  std::vector<float> values_;
  std::vector<std::byte> row_, params_;
};

}  // namespace

RowsBefore RowCopy::Take(const LayerRows& layer, absl::Span<const int32_t> positions,
                         KvTypes stored, ThreadPool* pool) {
  const size_t row = static_cast<size_t>(layer.head_dim) * KvTypeBytes(layer.type);
  const size_t head = static_cast<size_t>(layer.stride) * KvTypeBytes(layer.type);
  const int64_t rows =
      positions.empty() ? layer.prefix : static_cast<int64_t>(positions.size()) / layer.kv_heads;
  pool->ParallelFor(layer.kv_heads * rows, kGrainRows, [&](int64_t begin, int64_t end) {
    RoundTrip keys(KvRole::kKey, layer.type, stored.k, layer.head_dim);
    RoundTrip values(KvRole::kValue, layer.type, stored.v, layer.head_dim);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t position = positions.empty() ? i % rows : positions[static_cast<size_t>(i)];
      const size_t of_head = static_cast<size_t>(i / rows) * head;
      const size_t from = of_head + static_cast<size_t>(position) * row;
      const size_t to = of_head + static_cast<size_t>(i % rows) * row;
      keys.Row(layer.k + from, k_.data() + to);
      values.Row(layer.v + from, v_.data() + to);
    }
  });
  return {.k = k_.data(), .v = v_.data(), .rows = rows, .stride = layer.stride};
}

}  // namespace ripplekv
