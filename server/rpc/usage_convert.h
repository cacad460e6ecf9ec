#pragma once

#include <google/protobuf/repeated_field.h>

#include <vector>

#include "ripplekv/v1/decode.pb.h"
#include "server/engine/request.h"

namespace ripplekv {

// Per KV head, summed over layers.
int64_t KeptPositions(const std::vector<LayerUsage>& layers);

// What requests took, as every answer tells it.
void UsageToProto(const Usage& usage, v1::Usage* proto);
void LayersToProto(const std::vector<LayerUsage>& layers,
                   google::protobuf::RepeatedPtrField<v1::LayerUsage>* proto);
void CacheToProto(const CacheUsage& cache, v1::CacheUsage* proto);
void TimingsToProto(const Timings& timings, v1::Timings* proto);

}  // namespace ripplekv
