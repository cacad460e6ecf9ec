#include "client/model_view.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/fact_sheet.h"
#include "client/format.h"
#include "client/names.h"

namespace ripplekv {

std::string RenderModel(const v1::GetModelResponse& response, const Terminal& terminal) {
  const v1::ModelArchitecture& model = response.model();
  const v1::Limits& limits = response.limits();
  const v1::Plan& plan = response.plan();
  FactSheet sheet;
  sheet.Add("model", {model.name(), model.architecture(),
                      absl::StrCat("weights ", absl::StrJoin(model.weight_types(), ", ")),
                      absl::StrCat("computes in ", NameOf(response.compute_type()))});
  sheet.Add("shape", {absl::StrCat(model.layers(), " layers"),
                      absl::StrCat(model.heads(), " query and ", model.kv_heads(), " KV heads of ",
                                   model.head_dim()),
                      absl::StrCat("hidden ", FormatCount(model.hidden_size())),
                      absl::StrCat("FFN ", FormatCount(model.ffn_size())),
                      absl::StrCat("vocabulary ", FormatCount(model.vocabulary_size())),
                      absl::StrCat("rope base ", FormatNumber(model.rope_freq_base(), 7))});
  sheet.Add("context",
            {absl::StrCat(FormatCount(model.context_length()), " tokens"),
             absl::StrCat("end of text: id ", absl::StrJoin(response.eos_token_ids(), ", ")),
             response.chat() ? "chat template" : "no chat template: raw text only"});
  sheet.Add("fingerprint", {response.fingerprint()});
  std::string kv_type = NameOf(response.kv_type());
  if (response.value_kv_type() != v1::KV_TYPE_UNSPECIFIED &&
      response.value_kv_type() != response.kv_type()) {
    kv_type = absl::StrCat("keys ", kv_type, ", values ", NameOf(response.value_kv_type()));
  }
  sheet.Add("KV cache", {kv_type,
                         absl::StrCat(FormatBytes(response.kv_bytes_per_position_layer()),
                                      " a position and layer"),
                         absl::StrCat(FormatBytes(response.kv_bytes_per_position_layer() *
                                                  model.layers() * model.context_length()),
                                      " for a full context"),
                         absl::StrCat(FormatBytes(limits.kv_memory_bytes()), " arena")});
  std::vector<std::string> facts = {Describe(plan.allocator()), Describe(plan.size()),
                                    DescribeSource(plan), Describe(response.selector())};
  if (plan.chooses_types()) facts.push_back("chooses what each layer's rows are stored in");
  facts.push_back(
      absl::StrCat("at least ", FormatCount(plan.min_positions()), " positions a layer"));
  sheet.Add("plan", facts);
  sheet.Add("", {response.plan_status()});
  sheet.Add("limits",
            {absl::StrCat("prompt ", FormatCount(limits.max_prompt_tokens()), " tokens"),
             absl::StrCat("max_tokens ", FormatCount(limits.default_max_tokens()), " by default"),
             absl::StrCat("queue ", FormatCount(limits.max_queue())),
             absl::StrCat("message ", FormatBytes(limits.max_message_bytes())),
             absl::StrCat("metadata ", FormatBytes(limits.max_metadata_bytes())),
             absl::StrCat(limits.max_stop_strings(), " stop strings of ",
                          limits.max_stop_string_bytes(), " bytes"),
             absl::StrCat(limits.max_stop_token_ids(), " stop ids"),
             absl::StrCat(FormatCount(limits.max_logit_bias()), " biases"),
             absl::StrCat(limits.max_logprobs(), " logprobs")});
  sheet.Add("versions", {absl::StrCat("RippleKV ", response.versions().ripplekv()),
                         absl::StrCat("gRPC ", response.versions().grpc()),
                         absl::StrCat("LibTorch ", response.versions().libtorch())});
  return sheet.Render(terminal);
}

}  // namespace ripplekv
