#include "server/rpc/usage_convert.h"

#include "server/rpc/kv_type_convert.h"

namespace ripplekv {

int64_t KeptPositions(const std::vector<LayerUsage>& layers) {
  int64_t sum = 0;
  for (const LayerUsage& layer : layers) sum += layer.positions;
  return sum;
}

void UsageToProto(const Usage& usage, v1::Usage* proto) {
  proto->set_prompt_tokens(static_cast<int32_t>(usage.prompt_tokens));
  proto->set_output_tokens(static_cast<int32_t>(usage.completion_tokens));
  proto->set_context_tokens(static_cast<int32_t>(usage.context_tokens));
}

void LayersToProto(const std::vector<LayerUsage>& layers,
                   google::protobuf::RepeatedPtrField<v1::LayerUsage>* proto) {
  for (size_t l = 0; l < layers.size(); ++l) {
    v1::LayerUsage* layer = proto->Add();
    layer->set_layer(static_cast<int32_t>(l));
    layer->set_positions_kept(static_cast<int32_t>(layers[l].positions));
    layer->set_kv_bytes(static_cast<int64_t>(layers[l].bytes));
    layer->set_key_type(KvTypeToProto(layers[l].types.k));
    layer->set_value_type(KvTypeToProto(layers[l].types.v));
  }
}

void CacheToProto(const CacheUsage& cache, v1::CacheUsage* proto) {
  LayersToProto(cache.layers, proto->mutable_layers());
  proto->set_kv_bytes(static_cast<int64_t>(cache.kept_bytes));
  proto->set_full_kv_bytes(static_cast<int64_t>(cache.full_bytes));
  proto->set_peak_prefill_bytes(static_cast<int64_t>(cache.peak_prefill_bytes));
}

void TimingsToProto(const Timings& timings, v1::Timings* proto) {
  proto->set_queue_seconds(timings.queue_seconds);
  proto->set_prefill_seconds(timings.prefill_seconds);
  proto->set_decode_seconds(timings.decode_seconds);
  proto->set_first_token_seconds(timings.first_token_seconds);
}

}  // namespace ripplekv
