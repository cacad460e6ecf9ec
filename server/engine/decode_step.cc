#include "server/engine/decode_step.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <numeric>

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

// Some order of types.
int Rank(KvTypes types) { return static_cast<int>(types.k) * 256 + static_cast<int>(types.v); }

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
  Order(rows);
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
  for (size_t i = 0; i < rows_.size(); ++i) {
    positions_[i] = rows_[i].position;
    decoder_->Embed({&rows_[i].token, 1}, hidden_.data() + i * width);
  }

  for (int l = 0; l < c.layers; ++l) {
    if (before_layer_) before_layer_(l);
    decoder_->ProjectQkvRows(l, hidden_.data(), n, positions_.data(), q_.data(), k_.data(),
                             v_.data());
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].append) {
        if (absl::Status status = rows_[i].cache->AppendRow(
                l, k_.data() + i * kv_width, v_.data() + i * kv_width, rows_[i].position);
            !status.ok()) {
          return status;
        }
      }
      sequences_[i] = rows_[i].cache->View(l);
    }
    Attend(l);
    decoder_->FinishRows(l, attention_.data(), n, hidden_.data());
  }
  result_.resize(hidden_.size());
  for (size_t i = 0; i < rows_.size(); ++i) {
    std::copy_n(hidden_.data() + i * width, width, result_.data() + order_[i] * width);
  }
  decoder_->Logits(result_.data(), n, logits);
  return absl::OkStatus();
}

void DecodeStep::Order(absl::Span<const DecodeRow> rows) {
  order_.resize(rows.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
    const SequenceCache &first = *rows[a].cache, &second = *rows[b].cache;
    for (int l = 0; l < first.layers(); ++l) {
      const int x = Rank(first.layout(l).stored()), y = Rank(second.layout(l).stored());
      if (x != y) return x < y;
    }
    return false;
  });
  rows_.clear();
  for (size_t i : order_) rows_.push_back(rows[i]);
}

// One call for each run of rows that store the layer alike.
void DecodeStep::Attend(int layer) {
  const ModelConfig& c = decoder_->config();
  const auto q_width = static_cast<size_t>(c.heads * c.head_dim);
  for (size_t begin = 0, end = 0; begin < rows_.size(); begin = end) {
    const KvPageLayout& layout = rows_[begin].cache->layout(layer);
    while (end < rows_.size() && rows_[end].cache->layout(layer).stored() == layout.stored()) ++end;
    DecodeAttentionArgs args;
    args.layout = layout;
    args.heads = c.heads;
    args.sequences = static_cast<int>(end - begin);
    args.sequence = sequences_.data() + begin;
    args.q = q_.data() + begin * q_width;
    args.out = attention_.data() + begin * q_width;
    workspace_.resize(DecodeAttentionWorkspaceFloats(args));
    args.workspace = workspace_.data();
    DecodeAttention(args, decoder_->pool());
  }
}

}  // namespace ripplekv
