#include "calibration/probe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/kl_divergence.h"
#include "kernels/thread_pool.h"
#include "kernels/value_perturbation.h"
#include "model/chunk_attention.h"

namespace ripplekv {
namespace {

/// Window rows whose logits are held at once.
constexpr int kTileRows = 64;
constexpr int64_t kPerturbGrainRows = 64;

}  // namespace

struct Probe::Example {
  int index = 0;
  std::vector<float> prefix;  // [prefix_tokens, hidden]
  std::vector<float>
      windows;  // [1 + layers][window_tokens, hidden]: clean, then one for each perturbed layer
  std::vector<double> kl;  // [layers][window_tokens]
};

struct Probe::Scratch {
  std::vector<std::byte> k, v;  // [kv_heads, prefix_tokens + window_tokens, d]
  std::vector<std::byte> v_perturbed;
  std::vector<std::byte> q;          // [kChunkTokens, heads, d]
  std::vector<std::byte> attention;  // [kChunkTokens, heads, d]
  std::vector<float> p_log_probs;    // [kTileRows, vocab]: clean rows [row_, row_ + kTileRows)
  std::vector<float> q_logits;       // [kTileRows, vocab]
};

absl::StatusOr<std::unique_ptr<Probe>> Probe::Create(Decoder* decoder,
                                                     const CalibrationSettings& settings,
                                                     std::vector<std::vector<int32_t>> examples,
                                                     Batching batching) {
  const ModelConfig& config = decoder->config();
  if (absl::Status s = settings.Validate(config.context_length); !s.ok()) return s;
  if (batching.examples < 1 || batching.variants < 1) {
    return absl::InvalidArgumentError(absl::StrCat("probe batching of ", batching.examples,
                                                   " examples and ", batching.variants,
                                                   " variants: each must be at least 1"));
  }
  if (examples.size() != static_cast<size_t>(settings.examples)) {
    return absl::InvalidArgumentError(absl::StrCat("the settings ask for ", settings.examples,
                                                   " examples, ", examples.size(), " were given"));
  }
  for (size_t e = 0; e < examples.size(); ++e) {
    if (static_cast<int64_t>(examples[e].size()) != settings.example_tokens()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "example ", e, " has ", examples[e].size(),
          " tokens; prefix_tokens + window_tokens = ", settings.example_tokens(), " are needed"));
    }
    for (const int32_t id : examples[e]) {
      if (id < 0 || id >= config.vocab) {
        return absl::InvalidArgumentError(absl::StrCat("example ", e, " holds token id ", id,
                                                       "; ids are 0 to ", config.vocab - 1));
      }
    }
  }
  return std::unique_ptr<Probe>(new Probe(decoder, settings, std::move(examples), batching));
}

Probe::Probe(Decoder* decoder, const CalibrationSettings& settings,
             std::vector<std::vector<int32_t>> examples, Batching batching)
    : decoder_(decoder),
      settings_(settings),
      tokens_(std::move(examples)),
      batching_(batching),
      scratch_(std::make_unique<Scratch>()) {
  const ModelConfig& config = decoder_->config();
  const size_t element = KvTypeBytes(decoder_->kv_type());
  const size_t head_dim = static_cast<size_t>(config.head_dim);
  const size_t rows =
      static_cast<size_t>(settings_.prefix_tokens) + static_cast<size_t>(settings_.window_tokens);
  const size_t kv_bytes = static_cast<size_t>(config.kv_heads) * rows * head_dim * element;
  scratch_->k.resize(kv_bytes);
  scratch_->v.resize(kv_bytes);
  scratch_->v_perturbed.resize(kv_bytes);
  const size_t chunk_bytes = static_cast<size_t>(Decoder::kChunkTokens) *
                             static_cast<size_t>(config.heads) * head_dim * element;
  scratch_->q.resize(chunk_bytes);
  scratch_->attention.resize(chunk_bytes);
  const size_t logits = static_cast<size_t>(std::min(kTileRows, settings_.window_tokens)) *
                        static_cast<size_t>(config.vocab);
  scratch_->p_log_probs.resize(logits);
  scratch_->q_logits.resize(logits);
  divergences_.assign(tokens_.size(), std::vector<double>(static_cast<size_t>(config.layers)));
  StartGroup();
}

Probe::~Probe() = default;

bool Probe::done() const { return group_start_ == static_cast<int>(tokens_.size()); }

absl::Status Probe::Step() {
  if (done()) return absl::OkStatus();
  ++slices_done_;
  if (layer_ == decoder_->config().layers) {
    return TakeDivergences(group_[static_cast<size_t>(in_group_)]);
  }
  if (absl::Status s = RunLayer(group_[static_cast<size_t>(in_group_)]); !s.ok()) return s;
  if (++in_group_ == static_cast<int>(group_.size())) {
    in_group_ = 0;
    ++layer_;
  }
  return absl::OkStatus();
}

ProbeProgress Probe::progress() const {
  const int layers = decoder_->config().layers;
  const int64_t tiles = (settings_.window_tokens + kTileRows - 1) / kTileRows;
  const int64_t batches = (layers + batching_.variants - 1) / batching_.variants;
  const int64_t slices = (layers + tiles * batches) * static_cast<int64_t>(tokens_.size());
  ProbeProgress progress;
  progress.examples_total = static_cast<int>(tokens_.size());
  progress.examples_done = group_start_ + (layer_ == layers ? in_group_ : 0);
  progress.layer = layer_;
  progress.fraction = static_cast<double>(slices_done_) / static_cast<double>(slices);
  return progress;
}

size_t Probe::scratch_bytes() const {
  const Scratch& s = *scratch_;
  size_t bytes = s.k.size() + s.v.size() + s.v_perturbed.size() + s.q.size() + s.attention.size() +
                 (s.p_log_probs.size() + s.q_logits.size()) * sizeof(float);
  for (const Example& example : group_) {
    bytes += (example.prefix.size() + example.windows.size()) * sizeof(float) +
             example.kl.size() * sizeof(double);
  }
  return bytes;
}

float* Probe::Window(Example& example, int variant) const {
  return example.windows.data() + static_cast<size_t>(variant) *
                                      static_cast<size_t>(settings_.window_tokens) *
                                      static_cast<size_t>(decoder_->config().hidden);
}

void Probe::StartGroup() {
  const ModelConfig& config = decoder_->config();
  const size_t hidden = static_cast<size_t>(config.hidden);
  const size_t prefix = static_cast<size_t>(settings_.prefix_tokens);
  const size_t window = static_cast<size_t>(settings_.window_tokens);
  const size_t layers = static_cast<size_t>(config.layers);
  layer_ = 0;
  in_group_ = 0;
  row_ = 0;
  variant_ = 0;
  const int size = std::min(batching_.examples, static_cast<int>(tokens_.size()) - group_start_);
  group_.resize(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) {
    Example& example = group_[static_cast<size_t>(i)];
    example.index = group_start_ + i;
    example.prefix.resize(prefix * hidden);
    example.windows.resize((1 + layers) * window * hidden);
    example.kl.resize(layers * window);
    const absl::Span<const int32_t> tokens(tokens_[static_cast<size_t>(example.index)]);
    decoder_->Embed(tokens.subspan(0, prefix), example.prefix.data());
    decoder_->Embed(tokens.subspan(prefix), Window(example, 0));
  }
}

absl::Status Probe::RunLayer(Example& example) {
  // Requests served between slices may have expanded another layer.
  decoder_->ExpandLayer(layer_);
  std::byte* const v = scratch_->v.data();
  // Above the last layer nothing reads the prefix's own states.
  const bool last = layer_ + 1 == decoder_->config().layers;
  absl::Status status = RunTokens(0, settings_.prefix_tokens, v, example.prefix.data(), last);
  if (!status.ok()) return status;
  // The variant of this layer starts from the clean state that enters it.
  const size_t window_floats =
      static_cast<size_t>(settings_.window_tokens) * static_cast<size_t>(decoder_->config().hidden);
  std::copy_n(Window(example, 0), window_floats, Window(example, 1 + layer_));
  for (int variant = 0; variant <= layer_; ++variant) {
    status =
        RunTokens(settings_.prefix_tokens, settings_.window_tokens, v, Window(example, variant));
    if (!status.ok()) return status;
  }
  PerturbLayerValues(example.index);
  return RunTokens(settings_.prefix_tokens, settings_.window_tokens, scratch_->v_perturbed.data(),
                   Window(example, 1 + layer_));
}

/// The extend loop over one layer: tokens at positions first ... over the rows before them, in
/// chunks at fixed places. only_rows: their keys and values are all that is wanted.
absl::Status Probe::RunTokens(int first, int count, std::byte* v, float* hidden, bool only_rows) {
  const ModelConfig& config = decoder_->config();
  const int64_t element = static_cast<int64_t>(KvTypeBytes(decoder_->kv_type()));
  const int64_t rows = settings_.prefix_tokens + settings_.window_tokens;
  const int64_t stride = rows * config.head_dim;
  for (int start = 0; start < count; start += Decoder::kChunkTokens) {
    const int tokens = std::min(Decoder::kChunkTokens, count - start);
    const int64_t position = first + start;
    const int64_t offset = position * config.head_dim * element;
    float* chunk = hidden + static_cast<int64_t>(start) * config.hidden;
    absl::Status status = decoder_->ProjectQkv(layer_, chunk, tokens, position, scratch_->q.data(),
                                               scratch_->k.data() + offset, v + offset, stride);
    if (!status.ok()) return status;
    if (only_rows) continue;
    ChunkAttentionArgs args;
    args.type = decoder_->kv_type();
    args.heads = config.heads;
    args.kv_heads = config.kv_heads;
    args.head_dim = config.head_dim;
    args.queries = tokens;
    args.cached = position;
    args.q = scratch_->q.data();
    args.k = scratch_->k.data();
    args.v = v;
    args.kv_head_stride = stride;
    args.out = scratch_->attention.data();
    args.pool = decoder_->pool();
    if (status = ChunkAttention(args); !status.ok()) return status;
    if (status = decoder_->Finish(layer_, scratch_->attention.data(), tokens, chunk); !status.ok())
      return status;
  }
  return absl::OkStatus();
}

/// v_perturbed = v with noise on the unprotected prefix rows. The window's rows are written by each
/// window pass.
void Probe::PerturbLayerValues(int example_index) {
  const ModelConfig& config = decoder_->config();
  PerturbArgs args;
  args.type = decoder_->kv_type();
  args.kv_heads = config.kv_heads;
  args.head_dim = config.head_dim;
  args.kv_head_stride = settings_.example_tokens() * config.head_dim;
  args.source = scratch_->v.data();
  args.destination = scratch_->v_perturbed.data();
  args.first_row = settings_.sinks;
  args.last_row = settings_.prefix_tokens - settings_.recent;
  args.first_position = 0;
  args.eta = static_cast<float>(settings_.eta);
  args.noise.seed = settings_.seed;
  args.noise.example = static_cast<uint32_t>(example_index);
  args.noise.layer = static_cast<uint32_t>(layer_);
  decoder_->pool()->ParallelFor(
      settings_.prefix_tokens, kPerturbGrainRows,
      [&](int64_t begin, int64_t end) { PerturbValues(args, begin, end); });
}

/// One tile of window rows: the logits of up to batching_.variants variants against the clean ones.
absl::Status Probe::TakeDivergences(Example& example) {
  const ModelConfig& config = decoder_->config();
  const int rows = std::min(kTileRows, settings_.window_tokens - row_);
  const int64_t vocab = config.vocab;
  float* const p = scratch_->p_log_probs.data();
  float* const q = scratch_->q_logits.data();
  const int64_t offset = static_cast<int64_t>(row_) * config.hidden;
  if (variant_ == 0) {
    decoder_->ChunkLogits(Window(example, 0) + offset, rows, p);
    decoder_->pool()->ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) LogSoftmax(p + r * vocab, vocab, p + r * vocab);
    });
  }
  const int last = std::min(variant_ + batching_.variants, config.layers);
  for (; variant_ < last; ++variant_) {
    decoder_->ChunkLogits(Window(example, 1 + variant_) + offset, rows, q);
    double* const kl =
        example.kl.data() + static_cast<int64_t>(variant_) * settings_.window_tokens + row_;
    decoder_->pool()->ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        LogSoftmax(q + r * vocab, vocab, q + r * vocab);
        kl[r] = KlDivergence(p + r * vocab, q + r * vocab, vocab);
      }
    });
  }
  if (variant_ < config.layers) return absl::OkStatus();
  variant_ = 0;
  row_ += rows;
  if (row_ < settings_.window_tokens) return absl::OkStatus();
  row_ = 0;
  for (int l = 0; l < config.layers; ++l) {
    const double* const kl = example.kl.data() + static_cast<int64_t>(l) * settings_.window_tokens;
    double sum = 0;
    for (int t = 0; t < settings_.window_tokens; ++t) sum += kl[t];
    if (!std::isfinite(sum)) {
      return absl::InternalError(absl::StrCat("the divergence of layer ", l, " in example ",
                                              example.index,
                                              " is not a number: with its values perturbed by eta ",
                                              settings_.eta, " the model's logits are not finite"));
    }
    // Rounding may take a divergence near 0 below it.
    divergences_[static_cast<size_t>(example.index)][static_cast<size_t>(l)] =
        std::max(0.0, sum / settings_.window_tokens);
  }
  if (++in_group_ == static_cast<int>(group_.size())) {
    group_start_ += static_cast<int>(group_.size());
    in_group_ = 0;
    if (!done()) StartGroup();
  }
  return absl::OkStatus();
}

}  // namespace ripplekv
