#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kv_type.h"

namespace ripplekv {

// What compressing one layer alone costs, measured: the mean KL of the output distribution to that
// of the full cache, in nats, over the evaluation windows of the calibration examples. Every other
// layer keeps all its rows in the type that the model computes in.
struct DamageTable {
  int64_t prompt_tokens = 0;       // T of the examples' prefixes
  std::vector<double> retentions;  // ascending, each in (0, 1); all rows kept costs 0
  // [layers][retentions]: the layer keeps floor(retention * T) rows a KV head, chosen by the
  // calibration's selector.
  std::vector<std::vector<double>> rows;
  std::vector<KvTypes> types;  // storage types of keys and values that were measured
  // [layers][types]: the layer keeps every row, stored in that type.
  std::vector<std::vector<double>> storage;

  bool empty() const { return rows.empty() && storage.empty(); }
  bool operator==(const DamageTable&) const = default;
};

}  // namespace ripplekv
