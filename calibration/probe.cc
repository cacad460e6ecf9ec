#include "calibration/probe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/layer_pass.h"
#include "calibration/window_divergence.h"

namespace ripplekv {
namespace {

constexpr int kTileRows = WindowDivergence::kTileRows;

using Kind = Alteration::Kind;

std::string Describe(const Alteration& alteration, const CalibrationSettings& settings) {
  const auto index = static_cast<size_t>(alteration.index);
  switch (alteration.kind) {
    case Kind::kKeepRows:
      return absl::StrCat("with ", settings.damage_retentions[index], " of its rows kept");
    case Kind::kStore:
      return absl::StrCat("with its rows stored in ", KvTypeName(kDamageTypes[index].k), " and ",
                          KvTypeName(kDamageTypes[index].v));
    case Kind::kPerturb:
      break;
  }
  return absl::StrCat("with its values perturbed by eta ", settings.eta);
}

}  // namespace

struct Probe::State {
  Pass pass;
  std::vector<float> prefix;   // [prefix_tokens, hidden]
  std::vector<float> windows;  // [1 + alterations * layers][window_tokens, hidden]: clean, then of
                               // each alteration one for each altered layer
  std::vector<double> kl;      // [alterations * layers][window_tokens]
};

struct Probe::Scratch {
  Scratch(const CalibrationSettings& settings, Decoder* decoder)
      : layer(Shape(settings, decoder)),
        k(layer.side_bytes()),
        v(layer.side_bytes()),
        altered(settings, decoder->config(), layer, decoder->pool()),
        pass(decoder),
        divergence(decoder, settings.window_tokens) {
    layer.k = k.data();
    layer.v = v.data();
  }

  static LayerRows Shape(const CalibrationSettings& settings, const Decoder* decoder) {
    const ModelConfig& config = decoder->config();
    LayerRows layer;
    layer.type = decoder->kv_type();
    layer.kv_heads = config.kv_heads;
    layer.head_dim = config.head_dim;
    layer.prefix = settings.prefix_tokens;
    layer.stride = settings.example_tokens() * config.head_dim;
    return layer;
  }

  size_t bytes() const {
    return k.size() + v.size() + altered.bytes() + pass.bytes() + divergence.bytes();
  }

  LayerRows layer;              // of k and v
  std::vector<std::byte> k, v;  // [kv_heads, prefix_tokens + window_tokens, d]
  AlteredRows altered;
  LayerPass pass;
  WindowDivergence divergence;
};

absl::StatusOr<std::unique_ptr<Probe>> Probe::Create(Decoder* decoder,
                                                     const CalibrationSettings& settings,
                                                     std::vector<std::vector<int32_t>> examples,
                                                     Batching batching) {
  const ModelConfig& config = decoder->config();
  if (absl::Status s = settings.Validate(config.context_length); !s.ok()) return s;
  if (batching.alterations < 1 || batching.variants < 1) {
    return absl::InvalidArgumentError(absl::StrCat("probe batching of ", batching.alterations,
                                                   " alterations and ", batching.variants,
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
      scratch_(std::make_unique<Scratch>(settings_, decoder)) {
  const auto layers = static_cast<size_t>(decoder_->config().layers);
  const size_t retentions = settings_.damage_retentions.size();
  const size_t types = settings_.damage_storage ? std::size(kDamageTypes) : 0;
  alterations_.push_back({});
  for (size_t i = 0; i < retentions; ++i) {
    alterations_.push_back({Kind::kKeepRows, static_cast<int>(i)});
  }
  for (size_t i = 0; i < types; ++i) {
    alterations_.push_back({Kind::kStore, static_cast<int>(i)});
  }
  const auto damaged = static_cast<size_t>(settings_.damage_examples);
  measurements_.sensitivity.assign(tokens_.size(), std::vector<double>(layers));
  measurements_.local_response = measurements_.sensitivity;
  const auto table = [&](size_t columns) {
    return std::vector(damaged, std::vector(layers, std::vector<double>(columns)));
  };
  measurements_.rows = table(retentions);
  measurements_.storage = table(types);
  PlanGroups();
  StartGroup();
}

Probe::~Probe() = default;

int Probe::AlterationsOf(int example) const {
  const bool damaged = example >= settings_.examples - settings_.damage_examples;
  return damaged ? static_cast<int>(alterations_.size()) : 1;
}

/// Groups of batching_.alterations, in the order of examples and their alterations.
void Probe::PlanGroups() {
  // One slice takes no longer than the prefix does.
  slice_variants_ = std::max(1, settings_.prefix_tokens / settings_.window_tokens);
  int room = 0;
  for (int e = 0; e < settings_.examples; ++e) {
    const int count = AlterationsOf(e);
    for (int first = 0; first < count;) {
      if (room == 0) {
        groups_.emplace_back();
        room = batching_.alterations;
      }
      const int taken = std::min(room, count - first);
      groups_.back().push_back({e, first, taken, first + taken == count});
      slices_total_ += SlicesOf(groups_.back().back());
      first += taken;
      room -= taken;
    }
  }
}

int64_t Probe::SlicesOf(const Pass& pass) const {
  const int64_t layers = decoder_->config().layers;
  int64_t slices = 0;
  for (int64_t altered = 1; altered <= layers; ++altered) {
    slices += 1 + (altered * pass.count + slice_variants_ - 1) / slice_variants_;
  }
  const int64_t tiles = (settings_.window_tokens + kTileRows - 1) / kTileRows;
  return slices + tiles * ((layers * pass.count + batching_.variants - 1) / batching_.variants);
}

bool Probe::Selects(const Pass& pass) const {
  const auto begin = alterations_.begin() + pass.first;
  return std::any_of(begin, begin + pass.count,
                     [](const Alteration& a) { return a.kind == Kind::kKeepRows; });
}

absl::Status Probe::Step() {
  if (done()) return absl::OkStatus();
  ++slices_done_;
  State& state = group_[static_cast<size_t>(in_group_)];
  if (layer_ == decoder_->config().layers) return TakeDivergences(state);
  // Requests served between slices may have expanded another layer.
  decoder_->ExpandLayer(layer_);
  if (absl::Status s = variant_ < 0 ? RunPrefix(state) : RunVariants(state); !s.ok()) return s;
  if (variant_ < state.pass.count * (layer_ + 1)) return absl::OkStatus();
  variant_ = -1;
  if (++in_group_ < static_cast<int>(group_.size())) return absl::OkStatus();
  in_group_ = 0;
  if (++layer_ == decoder_->config().layers) variant_ = 0;
  return absl::OkStatus();
}

ProbeProgress Probe::progress() const {
  ProbeProgress progress;
  progress.examples_total = static_cast<int>(tokens_.size());
  progress.examples_done = examples_done_;
  progress.layer = layer_;
  progress.fraction = static_cast<double>(slices_done_) / static_cast<double>(slices_total_);
  return progress;
}

size_t Probe::scratch_bytes() const {
  size_t bytes = scratch_->bytes();
  for (const State& state : group_) {
    bytes += (state.prefix.size() + state.windows.size()) * sizeof(float) +
             state.kl.size() * sizeof(double);
  }
  return bytes;
}

float* Probe::Window(State& state, int variant) const {
  return state.windows.data() + static_cast<size_t>(variant) *
                                    static_cast<size_t>(settings_.window_tokens) *
                                    static_cast<size_t>(decoder_->config().hidden);
}

void Probe::StartGroup() {
  const ModelConfig& config = decoder_->config();
  const size_t hidden = static_cast<size_t>(config.hidden);
  const size_t prefix = static_cast<size_t>(settings_.prefix_tokens);
  const size_t window = static_cast<size_t>(settings_.window_tokens);
  layer_ = 0;
  in_group_ = 0;
  row_ = 0;
  variant_ = -1;
  const std::vector<Pass>& passes = groups_[static_cast<size_t>(next_group_)];
  group_.resize(passes.size());
  for (size_t i = 0; i < passes.size(); ++i) {
    State& state = group_[i];
    state.pass = passes[i];
    const size_t variants = static_cast<size_t>(state.pass.count * config.layers);
    state.prefix.resize(prefix * hidden);
    state.windows.resize((1 + variants) * window * hidden);
    state.kl.resize(variants * window);
    const absl::Span<const int32_t> tokens(tokens_[static_cast<size_t>(state.pass.example)]);
    decoder_->Embed(tokens.subspan(0, prefix), state.prefix.data());
    decoder_->Embed(tokens.subspan(prefix), Window(state, 0));
  }
}

/// The prefix and the clean window through the layer.
absl::Status Probe::RunPrefix(State& state) {
  const ModelConfig& config = decoder_->config();
  Scratch& scratch = *scratch_;
  const LayerRows& rows = scratch.layer;
  RowSelector* const selector = Selects(state.pass) ? scratch.altered.selector() : nullptr;
  // Above the last layer nothing reads the prefix's own states.
  absl::Status status = scratch.pass.Prefix(layer_, rows, 0, rows.prefix, state.prefix.data(),
                                            selector, layer_ + 1 == config.layers);
  if (!status.ok()) return status;
  if (selector != nullptr) selector->Score(rows.k, rows.stride);
  // The variants of this layer start from the clean state that enters it.
  const size_t window_floats =
      static_cast<size_t>(settings_.window_tokens) * static_cast<size_t>(config.hidden);
  for (int a = 0; a < state.pass.count; ++a) {
    std::copy_n(Window(state, 0), window_floats, Window(state, 1 + a * config.layers + layer_));
  }
  variant_ = 0;
  return RunWindow(WholePrefix(), Window(state, 0));
}

/// The windows of the next slice_variants_ variants through the layer: alteration by alteration,
/// altered layers 0 ... layer_.
absl::Status Probe::RunVariants(State& state) {
  const int altered = layer_ + 1;
  const int last = std::min(variant_ + slice_variants_, state.pass.count * altered);
  for (; variant_ < last; ++variant_) {
    const int a = variant_ / altered;
    const int l = variant_ % altered;
    float* const window = Window(state, 1 + a * decoder_->config().layers + l);
    absl::Status status =
        l == layer_ ? RunAltered(state, a, window) : RunWindow(WholePrefix(), window);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Probe::RunAltered(State& state, int alteration, float* window) {
  const Alteration& what = alterations_[static_cast<size_t>(state.pass.first + alteration)];
  const absl::StatusOr<RowsBefore> rows =
      scratch_->altered.Alter(what, scratch_->layer, state.pass.example, layer_);
  if (!rows.ok()) return rows.status();
  absl::Status status = RunWindow(*rows, window);
  if (!status.ok() || what.kind != Kind::kPerturb) return status;
  return TakeResponse(state, window);
}

/// Both windows have just left the altered layer.
absl::Status Probe::TakeResponse(State& state, const float* window) {
  const int hidden = decoder_->config().hidden;
  const float* const clean = Window(state, 0);
  double sum = 0;
  for (int t = 0; t < settings_.window_tokens; ++t) {
    double moved = 0, norm = 0;
    for (int i = 0; i < hidden; ++i) {
      const double h = clean[t * hidden + i];
      const double d = window[t * hidden + i] - h;
      moved += d * d;
      norm += h * h;
    }
    sum += std::sqrt(moved / norm);
  }
  if (!std::isfinite(sum)) {
    return absl::InternalError(
        absl::StrCat("the response of layer ", layer_, " in example ", state.pass.example,
                     " is not a number: its residual stream is not finite, or 0"));
  }
  measurements_
      .local_response[static_cast<size_t>(state.pass.example)][static_cast<size_t>(layer_)] =
      sum / settings_.window_tokens;
  return absl::OkStatus();
}

RowsBefore Probe::WholePrefix() const {
  const LayerRows& rows = scratch_->layer;
  return {.k = rows.k, .v = rows.v, .rows = rows.prefix, .stride = rows.stride};
}

absl::Status Probe::RunWindow(const RowsBefore& before, float* window) {
  return scratch_->pass.Extend(layer_, before, settings_.prefix_tokens, settings_.window_tokens,
                               window);
}

/// One tile of window rows: the logits of up to batching_.variants variants against the clean ones.
absl::Status Probe::TakeDivergences(State& state) {
  const ModelConfig& config = decoder_->config();
  const int rows = std::min(kTileRows, settings_.window_tokens - row_);
  const int variants = state.pass.count * config.layers;
  const int64_t offset = static_cast<int64_t>(row_) * config.hidden;
  WindowDivergence& divergence = scratch_->divergence;
  if (variant_ == 0) divergence.TakeClean(Window(state, 0) + offset, rows);
  const int last = std::min(variant_ + batching_.variants, variants);
  for (; variant_ < last; ++variant_) {
    divergence.Compare(
        Window(state, 1 + variant_) + offset, rows,
        state.kl.data() + static_cast<int64_t>(variant_) * settings_.window_tokens + row_);
  }
  if (variant_ < variants) return absl::OkStatus();
  variant_ = 0;
  row_ += rows;
  if (row_ < settings_.window_tokens) return absl::OkStatus();
  row_ = 0;
  if (absl::Status s = Record(state); !s.ok()) return s;
  if (state.pass.last) ++examples_done_;
  if (++in_group_ == static_cast<int>(group_.size())) {
    ++next_group_;
    if (!done()) StartGroup();
  }
  return absl::OkStatus();
}

absl::Status Probe::Record(const State& state) {
  const int layers = decoder_->config().layers;
  const auto example = static_cast<size_t>(state.pass.example);
  for (int variant = 0; variant < state.pass.count * layers; ++variant) {
    const auto l = static_cast<size_t>(variant % layers);
    const Alteration& what = alterations_[static_cast<size_t>(state.pass.first + variant / layers)];
    const auto index = static_cast<size_t>(what.index);
    const double* const kl =
        state.kl.data() + static_cast<int64_t>(variant) * settings_.window_tokens;
    const double divergence = MeanDivergence(kl, settings_.window_tokens);
    if (std::isnan(divergence)) {
      return absl::InternalError(absl::StrCat(
          "the divergence of layer ", l, " in example ", example,
          " is not a number: ", Describe(what, settings_), " the model's logits are not finite"));
    }
    const size_t damaged = example + measurements_.rows.size() - tokens_.size();
    switch (what.kind) {
      case Kind::kPerturb:
        measurements_.sensitivity[example][l] = divergence;
        break;
      case Kind::kKeepRows:
        measurements_.rows[damaged][l][index] = divergence;
        break;
      case Kind::kStore:
        measurements_.storage[damaged][l][index] = divergence;
        break;
    }
  }
  return absl::OkStatus();
}

}  // namespace ripplekv
