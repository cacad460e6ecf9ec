#include "model/llama_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "kernels/tensor_type.h"

namespace ripplekv {
namespace {

// Holds the tensors of the file against those that the model is made of.
class TensorCheck {
 public:
  explicit TensorCheck(const GgufFile& file) : file_(file) {}

  absl::Status Matrix(std::string name, int64_t inputs, int64_t outputs) {
    return Check(std::move(name), {inputs, outputs}, kTensorTypes);
  }
  absl::Status Norm(std::string name, int64_t size) {
    return Check(std::move(name), {size}, {TensorType::kF32, TensorType::kF16, TensorType::kBF16});
  }
  absl::Status F32(std::string name, int64_t size) {
    return Check(std::move(name), {size}, {TensorType::kF32});
  }

  // After all checks: a tensor that nothing asked for would be left out of the computation.
  absl::Status RefuseRest() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      // blk.L.attn_rot_embd.weight: RoPE's inverse frequencies in old files, implied by the base;
      // not used.
      if (known_.contains(tensor.name) || absl::EndsWith(tensor.name, ".attn_rot_embd.weight"))
        continue;
      const char* reason =
          "it is none of the tensors of a dense llama model, and would be left out";
      if (absl::EndsWith(tensor.name, ".bias")) reason = "biases are not supported";
      return absl::UnimplementedError(absl::StrFormat("tensor '%s' is not supported: %s",
                                                      absl::CHexEscape(tensor.name), reason));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Check(std::string name, const std::vector<int64_t>& shape,
                     absl::Span<const TensorType> types) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(absl::StrFormat("the file has no tensor '%s' (shape [%s])",
                                                        name, absl::StrJoin(shape, ", ")));
    }
    if (tensor->shape != shape) {
      return absl::InvalidArgumentError(absl::StrFormat("tensor '%s' has shape [%s], expected [%s]",
                                                        name, absl::StrJoin(tensor->shape, ", "),
                                                        absl::StrJoin(shape, ", ")));
    }
    if (std::find(types.begin(), types.end(), tensor->type) == types.end()) {
      std::string allowed;
      for (TensorType type : types) {
        absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", ripplekv::name(type));
      }
      return absl::InvalidArgumentError(absl::StrFormat("tensor '%s' has type %s, allowed here: %s",
                                                        name, ripplekv::name(tensor->type),
                                                        allowed));
    }
    known_.insert(std::move(name));
    return absl::OkStatus();
  }
  absl::Status Check(std::string name, const std::vector<int64_t>& shape,
                     std::initializer_list<TensorType> types) {
    return Check(std::move(name), shape, absl::MakeConstSpan(types.begin(), types.size()));
  }

  const GgufFile& file_;
  absl::flat_hash_set<std::string> known_;
};

absl::Status CheckRopeFreqs(const GgufTensor& tensor) {
  for (int64_t i = 0; i < tensor.elements; ++i) {
    float value;
    std::memcpy(&value, tensor.data + i * sizeof(float), sizeof(float));
    if (!(value > 0 && std::isfinite(value))) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensor 'rope_freqs.weight' holds %g at %d, allowed are finite numbers above 0", value,
          i));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLlamaTensors(const GgufFile& file, const ModelConfig& config) {
  TensorCheck check(file);
  const int64_t hidden = config.hidden;
  const int64_t query = int64_t{config.heads} * config.head_dim;
  const int64_t key = int64_t{config.kv_heads} * config.head_dim;
  struct Expected {
    const char* name;
    int64_t inputs;
    int64_t outputs;
  };
  if (absl::Status s = check.Matrix("token_embd.weight", hidden, config.vocab); !s.ok()) return s;
  if (absl::Status s = check.Norm("output_norm.weight", hidden); !s.ok()) return s;
  if (!config.tied_output) {
    if (absl::Status s = check.Matrix("output.weight", hidden, config.vocab); !s.ok()) return s;
  }
  if (config.rope_scaling == RopeScaling::kPerFreq) {
    if (absl::Status s = check.F32("rope_freqs.weight", config.head_dim / 2); !s.ok()) return s;
    if (absl::Status s = CheckRopeFreqs(*file.FindTensor("rope_freqs.weight")); !s.ok()) return s;
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    for (const char* name : {"attn_norm.weight", "ffn_norm.weight"}) {
      if (absl::Status s = check.Norm(absl::StrCat(prefix, name), hidden); !s.ok()) return s;
    }
    for (const Expected& matrix :
         {Expected{"attn_q.weight", hidden, query}, Expected{"attn_k.weight", hidden, key},
          Expected{"attn_v.weight", hidden, key}, Expected{"attn_output.weight", query, hidden},
          Expected{"ffn_gate.weight", hidden, config.ffn},
          Expected{"ffn_up.weight", hidden, config.ffn},
          Expected{"ffn_down.weight", config.ffn, hidden}}) {
      if (absl::Status s =
              check.Matrix(absl::StrCat(prefix, matrix.name), matrix.inputs, matrix.outputs);
          !s.ok()) {
        return s;
      }
    }
  }
  return check.RefuseRest();
}

}  // namespace ripplekv
