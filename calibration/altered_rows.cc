#include "calibration/altered_rows.h"

#include <vector>

#include "kernels/value_perturbation.h"

namespace ripplekv {
namespace {

constexpr int64_t kGrainRows = 64;

}  // namespace

AlteredRows::AlteredRows(const CalibrationSettings& settings, const ModelConfig& config,
                         const LayerRows& shape, ThreadPool* pool)
    : settings_(settings), pool_(pool), copy_(shape) {
  if (settings_.damage_retentions.empty()) return;
  selector_.emplace(settings_.selector, settings_.sinks, config, shape.type, shape.prefix, pool_);
  selector_bytes_ = RowSelector::WorkBytes(settings_.selector, config, shape.type, shape.prefix,
                                           pool_->threads());
}

size_t AlteredRows::bytes() const { return copy_.bytes() + selector_bytes_; }

absl::StatusOr<RowsBefore> AlteredRows::Alter(const Alteration& alteration, const LayerRows& layer,
                                              int example_index, int layer_index) {
  const auto index = static_cast<size_t>(alteration.index);
  switch (alteration.kind) {
    case Alteration::Kind::kKeepRows:
      return KeepRows(settings_.damage_retentions[index], layer, layer_index);
    case Alteration::Kind::kStore:
      return copy_.Take(layer, {}, kDamageTypes[index], pool_);
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
  args.destination = copy_.v();
  args.first_row = settings_.sinks;
  args.last_row = settings_.prefix_tokens - settings_.recent;
  args.first_position = 0;
  args.eta = static_cast<float>(settings_.eta);
  args.noise.seed = settings_.seed;
  args.noise.example = static_cast<uint32_t>(example_index);
  args.noise.layer = static_cast<uint32_t>(layer_index);
  pool_->ParallelFor(layer.prefix, kGrainRows,
                     [&](int64_t begin, int64_t end) { PerturbValues(args, begin, end); });
  return {.k = layer.k, .v = copy_.v(), .rows = layer.prefix, .stride = layer.stride};
}

absl::StatusOr<RowsBefore> AlteredRows::KeepRows(double retention, const LayerRows& layer,
                                                 int layer_index) {
  const int64_t kept = settings_.DamageRows(retention);
  if (kept == layer.prefix) return copy_.Take(layer, {}, layer.type, pool_);
  const auto positions = selector_->Choose(layer_index, kept);
  if (!positions.ok()) return positions.status();
  return copy_.Take(layer, *positions, layer.type, pool_);
}

}  // namespace ripplekv
