#include "model/weights.h"

#include <sys/mman.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/tensor_type.h"

namespace ripplekv {
namespace {

// Large pages of memory, where the kernel has them: a decode step reads all weights once, and with
// small pages it would wait for their addresses too.
constexpr size_t kLargePage = size_t{2} << 20;

PackedMatrix ViewOf(const GgufTensor& tensor) {
  PackedMatrix m;
  m.type = tensor.type;
  m.cols = tensor.shape[0];
  m.rows = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  m.data = tensor.data;
  m.row_bytes = row_bytes(tensor.type, m.cols);
  return m;
}

/// Two passes over the same list of tensors: the first measures, the second repacks.
class Packer {
 public:
  explicit Packer(const GgufFile& file) : file_(file) {}

  void StartRepacking(std::byte* storage) {
    storage_ = storage;
    used_ = 0;
  }
  size_t used() const { return used_; }

  absl::Status Matrix(const std::string& name, PanelMatrix* out) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", name, "' is missing from the model file"));
    }
    const PackedMatrix view = ViewOf(*tensor);
    if (storage_ != nullptr) {
      *out = {view.type, view.rows, view.cols, storage_ + used_};
      RepackPanels(view, 0, out->panels(), storage_ + used_);
    }
    used_ += static_cast<size_t>(panel_matrix_bytes(view.type, view.rows, view.cols));
    return absl::OkStatus();
  }

  absl::Status Vector(const std::string& name, std::vector<float>* out) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", name, "' is missing from the model file"));
    }
    if (storage_ != nullptr) {
      const PackedMatrix view = ViewOf(*tensor);
      out->resize(static_cast<size_t>(tensor->elements));
      ExpandRows(view, 0, view.rows, out->data());
    }
    return absl::OkStatus();
  }

 private:
  const GgufFile& file_;
  std::byte* storage_ = nullptr;
  size_t used_ = 0;
};

}  // namespace

void Weights::AlignedFree::operator()(std::byte* p) const { std::free(p); }

absl::StatusOr<std::shared_ptr<const Weights>> Weights::Load(const GgufFile& file,
                                                             const ModelConfig& config) {
  auto weights = std::shared_ptr<Weights>(new Weights());
  weights->config_ = config;
  weights->layers_.resize(static_cast<size_t>(config.layers));
  Packer packer(file);
  const auto pass = [&]() -> absl::Status {
    if (absl::Status s = packer.Matrix("token_embd.weight", &weights->embedding_); !s.ok())
      return s;
    if (!config.tied_output) {
      if (absl::Status s = packer.Matrix("output.weight", &weights->head_); !s.ok()) return s;
    }
    if (absl::Status s = packer.Vector("output_norm.weight", &weights->final_norm_); !s.ok())
      return s;
    if (config.rope_scaling == RopeScaling::kPerFreq) {
      if (absl::Status s = packer.Vector("rope_freqs.weight", &weights->rope_factors_); !s.ok()) {
        return s;
      }
    }
    for (int l = 0; l < config.layers; ++l) {
      LayerWeights& layer = weights->layers_[static_cast<size_t>(l)];
      const std::string prefix = absl::StrCat("blk.", l, ".");
      const std::pair<const char*, PanelMatrix*> matrices[] = {
          {"attn_q", &layer.wq},       {"attn_k", &layer.wk},       {"attn_v", &layer.wv},
          {"attn_output", &layer.wo},  {"ffn_gate", &layer.w_gate}, {"ffn_up", &layer.w_up},
          {"ffn_down", &layer.w_down},
      };
      for (const auto& [name, matrix] : matrices) {
        if (absl::Status s = packer.Matrix(absl::StrCat(prefix, name, ".weight"), matrix);
            !s.ok()) {
          return s;
        }
      }
      if (absl::Status s =
              packer.Vector(absl::StrCat(prefix, "attn_norm.weight"), &layer.attention_norm);
          !s.ok()) {
        return s;
      }
      if (absl::Status s = packer.Vector(absl::StrCat(prefix, "ffn_norm.weight"), &layer.ffn_norm);
          !s.ok()) {
        return s;
      }
    }
    return absl::OkStatus();
  };

  if (absl::Status s = pass(); !s.ok()) return s;
  weights->size_bytes_ = packer.used();
  const size_t reserved = (weights->size_bytes_ + kLargePage - 1) / kLargePage * kLargePage;
  weights->storage_.reset(static_cast<std::byte*>(std::aligned_alloc(kLargePage, reserved)));
  if (weights->storage_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for the model's weights: ", weights->size_bytes_, " bytes are needed"));
  }
  madvise(weights->storage_.get(), reserved, MADV_HUGEPAGE);
  packer.StartRepacking(weights->storage_.get());
  if (absl::Status s = pass(); !s.ok()) return s;
  if (config.tied_output) weights->head_ = weights->embedding_;
  return std::shared_ptr<const Weights>(std::move(weights));
}

}  // namespace ripplekv
