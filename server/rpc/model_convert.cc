#include "server/rpc/model_convert.h"

#include <grpcpp/grpcpp.h>

#include "server/rpc/kv_type_convert.h"
#include "server/rpc/limits.h"
#include "server/rpc/plan_convert.h"
#include "server/rpc/selector_convert.h"
#include "server/version.h"

namespace ripplekv {
namespace {

void ArchitectureToProto(const ModelInfo& model, v1::ModelArchitecture* proto) {
  const ModelConfig& config = model.config;
  proto->set_name(config.name);
  proto->set_architecture(config.architecture);
  proto->set_layers(config.layers);
  proto->set_heads(config.heads);
  proto->set_kv_heads(config.kv_heads);
  proto->set_head_dim(config.head_dim);
  proto->set_hidden_size(config.hidden);
  proto->set_ffn_size(config.ffn);
  proto->set_vocabulary_size(config.vocab);
  proto->set_context_length(config.context_length);
  proto->set_rope_freq_base(config.rope_freq_base);
  for (const std::string& type : model.weight_types) proto->add_weight_types(type);
}

void LimitsToProto(const DecodeBackend& backend, v1::Limits* proto) {
  const EngineOptions& engine = backend.engine_options;
  proto->set_kv_memory_bytes(static_cast<int64_t>(engine.kv_memory_bytes));
  proto->set_max_prompt_tokens(backend.engine->max_prompt_tokens());
  proto->set_default_max_tokens(StoppingParams::kDefaultMaxTokens);
  proto->set_max_queue(engine.max_queue);
  proto->set_max_message_bytes(backend.max_message_bytes);
  proto->set_max_metadata_bytes(kMaxMetadataBytes);
  proto->set_max_stop_strings(kMaxStopStrings);
  proto->set_max_stop_string_bytes(kMaxStopStringBytes);
  proto->set_max_stop_token_ids(kMaxStopTokenIds);
  proto->set_max_logit_bias(kMaxLogitBias);
  proto->set_max_logprobs(kMaxLogprobs);
  proto->set_max_batch(engine.max_batch);
  proto->set_work_memory_bytes(static_cast<int64_t>(engine.work_memory_bytes));
  proto->set_context_memory_bytes(static_cast<int64_t>(engine.context_memory_bytes));
  proto->set_queue_timeout_seconds(std::chrono::duration<double>(engine.queue_timeout).count());
  proto->set_growth_cap(engine.growth_cap);
  proto->set_max_continuations(ScoreRequest::kMaxContinuations);
}

}  // namespace

void ModelToProto(const DecodeBackend& backend, v1::GetModelResponse* proto) {
  const ModelInfo& model = *backend.model;
  ArchitectureToProto(model, proto->mutable_model());
  proto->set_fingerprint(model.fingerprint);
  const bool fp32 = model.compute == ComputeType::kF32;
  proto->set_compute_type(fp32 ? v1::COMPUTE_TYPE_FP32 : v1::COMPUTE_TYPE_BF16);
  proto->set_kv_type(KvTypeToProto(model.kv_types.k));
  proto->set_value_kv_type(KvTypeToProto(model.kv_types.v));
  proto->set_kv_bytes_per_position_layer(model.kv_bytes_per_position_layer());
  LimitsToProto(backend, proto->mutable_limits());
  const std::shared_ptr<const Plan> plan = backend.engine->plan();
  *proto->mutable_plan() = PlanToProto(*plan);
  *proto->mutable_selector() = SelectorToProto(plan->selector());
  proto->set_plan_status(backend.plans->status());
  proto->set_chat(model.chat_template.ok());
  proto->mutable_eos_token_ids()->Add(model.eos_token_ids.begin(), model.eos_token_ids.end());
  proto->mutable_versions()->set_ripplekv(kVersion);
  proto->mutable_versions()->set_grpc(grpc::Version());
  proto->mutable_versions()->set_libtorch(kLibtorchVersion);
}

}  // namespace ripplekv
