#include "server/engine/decode_step.h"

#include <cassert>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

// Takes the rows of a step that did not come to its end out of the caches again.
class Rollback {
 public:
  explicit Rollback(absl::Span<const DecodeRow> rows) : rows_(rows) {
    for (const DecodeRow& row : rows) {
      for (int l = 0; l < row.cache->layers(); ++l) before_.push_back(row.cache->rows(l));
    }
  }
  ~Rollback() {
    if (kept_) return;
    size_t i = 0;
    for (const DecodeRow& row : rows_) {
      for (int l = 0; l < row.cache->layers(); ++l, ++i) {
        if (row.cache->rows(l) > before_[i]) row.cache->Truncate(l, before_[i]);
      }
    }
  }
  void Keep() { kept_ = true; }

 private:
  absl::Span<const DecodeRow> rows_;
  std::vector<int64_t> before_;
  bool kept_ = false;
};

}  // namespace

absl::Status DecodeStep::Run(absl::Span<const DecodeRow> rows, float* logits) {
  Rollback rollback(rows);
  absl::Status status = RunLayers(rows, logits);
  if (status.ok()) rollback.Keep();
  return status;
}

absl::Status DecodeStep::RunLayers(absl::Span<const DecodeRow> rows, float* logits) {
  const ModelConfig& c = decoder_->config();
  const int n = static_cast<int>(rows.size());
  assert(n >= 1 && n <= Decoder::kMaxRows);
  for (const DecodeRow& row : rows) {
    for (int l = 0; row.append && l < c.layers; ++l) {
      if (row.cache->rows(l) >= row.cache->capacity(l)) {
        return absl::ResourceExhaustedError(
            absl::StrCat("layer ", l, " has no room for another row: all ", row.cache->capacity(l),
                         " reserved rows are in use"));
      }
    }
  }
  const auto width = static_cast<size_t>(c.hidden);
  const auto q_width = static_cast<size_t>(c.heads * c.head_dim);
  const auto kv_width = static_cast<size_t>(c.kv_heads * c.head_dim);
  hidden_.resize(rows.size() * width);
  q_.resize(rows.size() * q_width);
  k_.resize(rows.size() * kv_width);
  v_.resize(rows.size() * kv_width);
  attention_.resize(rows.size() * q_width);
  positions_.resize(rows.size());
  sequences_.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    positions_[i] = rows[i].position;
    decoder_->Embed({&rows[i].token, 1}, hidden_.data() + i * width);
  }

  DecodeAttentionArgs args;
  args.layout = rows[0].cache->layout();
  args.heads = c.heads;
  args.sequences = n;
  args.sequence = sequences_.data();
  args.q = q_.data();
  args.out = attention_.data();
  for (int l = 0; l < c.layers; ++l) {
    if (before_layer_) before_layer_(l);
    decoder_->ProjectQkvRows(l, hidden_.data(), n, positions_.data(), q_.data(), k_.data(),
                             v_.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].append) {
        if (absl::Status status = rows[i].cache->AppendRow(
                l, k_.data() + i * kv_width, v_.data() + i * kv_width, rows[i].position);
            !status.ok()) {
          return status;
        }
      }
      sequences_[i] = rows[i].cache->View(l);
    }
    workspace_.resize(DecodeAttentionWorkspaceFloats(args));
    args.workspace = workspace_.data();
    DecodeAttention(args, decoder_->pool());
    decoder_->FinishRows(l, attention_.data(), n, hidden_.data());
  }
  decoder_->Logits(hidden_.data(), n, logits);
  return absl::OkStatus();
}

}  // namespace ripplekv
