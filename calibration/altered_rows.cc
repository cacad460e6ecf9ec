#include "calibration/altered_rows.h"

#include <cstring>
#include <numeric>

#include "calibration/policy/selector.h"
#include "kernels/bf16.h"
#include "kernels/key_scores.h"
#include "kernels/kv_codec.h"
#include "kernels/value_perturbation.h"

namespace ripplekv {
namespace {

constexpr int64_t kGrainRows = 64;

/// Rows as they read back once they have been stored.
class RoundTrip {
 public:
  RoundTrip(KvType type, KvType stored, int head_dim)
      : type_(type),
        stored_(stored),
        head_dim_(head_dim),
        values_(static_cast<size_t>(head_dim)),
        row_(KvRowBytes(stored, head_dim)),
        params_(KvParamBytes(stored, head_dim)) {}

  void Row(const std::byte* from, std::byte* to) {
    const size_t bytes = static_cast<size_t>(head_dim_) * KvTypeBytes(type_);
    if (type_ == KvType::kF32) {
      std::memcpy(values_.data(), from, bytes);
    } else {
      const auto* bf16 = reinterpret_cast<const uint16_t*>(from);
      for (int i = 0; i < head_dim_; ++i) values_[static_cast<size_t>(i)] = Bf16ToFloat(bf16[i]);
    }
    EncodeKvRow(stored_, values_.data(), head_dim_, row_.data(), params_.data());
    DecodeKvRow(stored_, row_.data(), params_.data(), head_dim_, values_.data());
    if (type_ == KvType::kF32) {
      std::memcpy(to, values_.data(), bytes);
    } else {
      auto* bf16 = reinterpret_cast<uint16_t*>(to);
      for (int i = 0; i < head_dim_; ++i) bf16[i] = FloatToBf16(values_[static_cast<size_t>(i)]);
    }
  }

 private:
  const KvType type_, stored_;
  const int head_dim_;
  std::vector<float> values_;
  std::vector<std::byte> row_, params_;
};

/// SnapKV's scores of the layer's prefix, without what they are computed from.
KeyScoresArgs ScoresOf(const LayerRows& layer) {
  const SnapKv selector = DamageSelector();
  KeyScoresArgs args;
  args.type = layer.type;
  args.heads = layer.heads;
  args.kv_heads = layer.kv_heads;
  args.head_dim = layer.head_dim;
  args.rows = layer.prefix;
  args.queries = selector.window;
  args.kv_head_stride = layer.stride;
  args.end = layer.prefix - selector.window;
  args.divisor = KeyScoreDivisor::kCount;
  args.pooling = selector.pooling;
  args.kernel = selector.kernel;
  return args;
}

}  // namespace

AlteredRows::AlteredRows(const CalibrationSettings& settings, const LayerRows& shape,
                         ThreadPool* pool)
    : settings_(settings), pool_(pool) {
  const size_t side = static_cast<size_t>(shape.kv_heads * shape.stride) * KvTypeBytes(shape.type);
  v_.resize(side);
  if (settings_.damage_examples > 0) k_.resize(side);
  if (settings_.damage_retentions.empty()) return;
  const auto positions = static_cast<size_t>(shape.prefix - DamageSelector().window);
  workspace_.resize(
      static_cast<size_t>(KeyScoresWorkspaceFloats(ScoresOf(shape), pool_->threads())));
  scores_.resize(static_cast<size_t>(shape.heads) * positions);
  group_scores_.resize(static_cast<size_t>(shape.kv_heads) * positions);
}

size_t AlteredRows::bytes() const {
  return k_.size() + v_.size() +
         (scores_.size() + group_scores_.size() + workspace_.size()) * sizeof(float);
}

void AlteredRows::Score(const LayerRows& layer) {
  const int window = DamageSelector().window;
  std::vector<int32_t> queries(static_cast<size_t>(window));
  std::iota(queries.begin(), queries.end(), static_cast<int32_t>(layer.prefix) - window);
  KeyScoresArgs args = ScoresOf(layer);
  args.positions = queries.data();
  args.q = layer.window_q;
  args.k = layer.k;
  args.scores = scores_.data();
  args.workspace = workspace_.data();
  KeyScores(args, pool_);
  MeanOverGroup(scores_.data(), layer.heads, layer.kv_heads, args.end, group_scores_.data());
}

absl::StatusOr<RowsBefore> AlteredRows::Alter(const Alteration& alteration, const LayerRows& layer,
                                              int example_index, int layer_index) {
  const auto index = static_cast<size_t>(alteration.index);
  switch (alteration.kind) {
    case Alteration::Kind::kKeepRows:
      return KeepRows(settings_.damage_retentions[index], layer);
    case Alteration::Kind::kStore:
      return Store(kDamageTypes[index], layer);
    case Alteration::Kind::kPerturb:
      break;
  }
  return Perturb(layer, example_index, layer_index);
}

RowsBefore AlteredRows::Perturb(const LayerRows& layer, int example_index, int layer_index) {
  PerturbArgs args;
  args.type = layer.type;
  args.kv_heads = layer.kv_heads;
  args.head_dim = layer.head_dim;
  args.kv_head_stride = layer.stride;
  args.source = layer.v;
  args.destination = v_.data();
  args.first_row = settings_.sinks;
  args.last_row = settings_.prefix_tokens - settings_.recent;
  args.first_position = 0;
  args.eta = static_cast<float>(settings_.eta);
  args.noise.seed = settings_.seed;
  args.noise.example = static_cast<uint32_t>(example_index);
  args.noise.layer = static_cast<uint32_t>(layer_index);
  pool_->ParallelFor(layer.prefix, kGrainRows,
                     [&](int64_t begin, int64_t end) { PerturbValues(args, begin, end); });
  return {.k = layer.k, .v = v_.data(), .rows = layer.prefix};
}

absl::StatusOr<RowsBefore> AlteredRows::KeepRows(double retention, const LayerRows& layer) {
  const int window = DamageSelector().window;
  const int64_t kept = settings_.DamageRows(retention);
  const auto positions = static_cast<size_t>(layer.prefix - window);
  const size_t row = static_cast<size_t>(layer.head_dim) * KvTypeBytes(layer.type);
  const size_t head = static_cast<size_t>(layer.stride) * KvTypeBytes(layer.type);
  for (int h = 0; h < layer.kv_heads; ++h) {
    const auto rows = SelectPositions(
        absl::MakeConstSpan(group_scores_).subspan(static_cast<size_t>(h) * positions, positions),
        layer.prefix, kept, settings_.sinks, window);
    if (!rows.ok()) return rows.status();
    size_t to = static_cast<size_t>(h) * head;
    for (const int32_t position : *rows) {
      const size_t from = static_cast<size_t>(h) * head + static_cast<size_t>(position) * row;
      std::memcpy(k_.data() + to, layer.k + from, row);
      std::memcpy(v_.data() + to, layer.v + from, row);
      to += row;
    }
  }
  return RowsBefore{.k = k_.data(), .v = v_.data(), .rows = kept};
}

RowsBefore AlteredRows::Store(KvTypes types, const LayerRows& layer) {
  const size_t row = static_cast<size_t>(layer.head_dim) * KvTypeBytes(layer.type);
  const size_t head = static_cast<size_t>(layer.stride) * KvTypeBytes(layer.type);
  pool_->ParallelFor(layer.kv_heads * layer.prefix, kGrainRows, [&](int64_t begin, int64_t end) {
    RoundTrip keys(layer.type, types.k, layer.head_dim);
    RoundTrip values(layer.type, types.v, layer.head_dim);
    for (int64_t i = begin; i < end; ++i) {
      const size_t at = static_cast<size_t>(i / layer.prefix) * head +
                        static_cast<size_t>(i % layer.prefix) * row;
      keys.Row(layer.k + at, k_.data() + at);
      values.Row(layer.v + at, v_.data() + at);
    }
  });
  return {.k = k_.data(), .v = v_.data(), .rows = layer.prefix};
}

}  // namespace ripplekv
