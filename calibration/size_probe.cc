#include "calibration/size_probe.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace ripplekv {
namespace {

/// Tokens that go through a layer in one slice, about.
constexpr int64_t kSliceTokens = 4 * Decoder::kChunkTokens;
/// Windows whose logits are taken in one slice.
constexpr size_t kSliceLogits = 2;

/// Of the longest prompt and its window.
LayerRows Shape(const CalibrationSettings& settings, const Decoder* decoder) {
  const ModelConfig& config = decoder->config();
  LayerRows layer;
  layer.type = decoder->kv_type();
  layer.kv_heads = config.kv_heads;
  layer.head_dim = config.head_dim;
  layer.prefix = settings.sizes.prompt_tokens.back();
  layer.stride = settings.size_example_tokens() * config.head_dim;
  return layer;
}

bool KeepsAll(const LayerBudgets& budgets, int64_t tokens) {
  return std::all_of(budgets.layer.begin(), budgets.layer.end(),
                     [&](int64_t rows) { return rows >= tokens; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<SizeProbe>> SizeProbe::Create(
    Decoder* decoder, const CalibrationSettings& settings, const Plan& plan,
    std::vector<std::vector<int32_t>> examples) {
  const ModelConfig& config = decoder->config();
  if (absl::Status s = settings.Validate(config.context_length); !s.ok()) return s;
  if (examples.size() != static_cast<size_t>(settings.sizes.examples) || examples.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the settings ask for the sizes of ",
                                                   settings.sizes.examples, " examples, ",
                                                   examples.size(), " were given"));
  }
  for (size_t e = 0; e < examples.size(); ++e) {
    if (static_cast<int64_t>(examples[e].size()) != settings.size_example_tokens()) {
      return absl::InvalidArgumentError(
          absl::StrCat("example ", e, " of the sizes has ", examples[e].size(), " tokens; ",
                       settings.size_example_tokens(), " are needed"));
    }
    for (const int32_t id : examples[e]) {
      if (id >= 0 && id < config.vocab) continue;
      return absl::InvalidArgumentError(absl::StrCat("example ", e, " of the sizes holds token id ",
                                                     id, "; ids are 0 to ", config.vocab - 1));
    }
  }
  if (plan.layers() != config.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan is of ", plan.layers(), " layers, the model has ", config.layers));
  }
  Budgets budgets;
  for (const int64_t tokens : settings.sizes.prompt_tokens) {
    budgets.emplace_back();
    for (const double retention : settings.sizes.retentions) {
      absl::StatusOr<LayerBudgets> of_size = plan.BudgetsFor(tokens, Retention{retention});
      if (!of_size.ok()) return of_size.status();
      budgets.back().push_back(*std::move(of_size));
    }
  }
  return std::unique_ptr<SizeProbe>(
      new SizeProbe(decoder, settings, plan, std::move(budgets), std::move(examples)));
}

SizeProbe::SizeProbe(Decoder* decoder, const CalibrationSettings& settings, const Plan& plan,
                     Budgets budgets, std::vector<std::vector<int32_t>> examples)
    : decoder_(decoder),
      settings_(settings),
      selector_spec_(plan.selector()),
      sinks_(plan.sinks()),
      budgets_(std::move(budgets)),
      tokens_(std::move(examples)),
      rows_(Shape(settings, decoder)),
      k_(rows_.side_bytes()),
      v_(rows_.side_bytes()),
      copy_(rows_),
      pass_(decoder),
      divergence_(decoder, settings.window_tokens) {
  slice_windows_ =
      static_cast<size_t>(std::max<int64_t>(1, kSliceTokens / settings_.window_tokens));
  const auto hidden = static_cast<size_t>(decoder_->config().hidden);
  const auto window = static_cast<size_t>(settings_.window_tokens);
  rows_.k = k_.data();
  rows_.v = v_.data();
  prompt_.resize(static_cast<size_t>(settings_.sizes.prompt_tokens.back()) * hidden);
  windows_.resize((1 + retentions()) * window * hidden);
  kl_.resize(retentions() * window);
  for (const int64_t tokens : settings_.sizes.prompt_tokens) {
    slices_total_ += SlicesOf(tokens) * static_cast<int64_t>(tokens_.size());
  }
  StartPrompt();
}

int64_t SizeProbe::SlicesOf(int64_t prompt_tokens) const {
  const auto slices = [](int64_t work, int64_t a_slice) { return (work + a_slice - 1) / a_slice; };
  const auto windows = static_cast<int64_t>(retentions());
  return decoder_->config().layers * (slices(prompt_tokens, kSliceTokens) +
                                      slices(1 + windows, static_cast<int64_t>(slice_windows_))) +
         slices(settings_.window_tokens, WindowDivergence::kTileRows) *
             slices(windows, int64_t{kSliceLogits});
}

ProbeProgress SizeProbe::progress() const {
  ProbeProgress progress;
  progress.examples_done = static_cast<int>(example_);
  progress.examples_total = static_cast<int>(tokens_.size());
  progress.layer = layer_;
  progress.fraction = static_cast<double>(slices_done_) / static_cast<double>(slices_total_);
  return progress;
}

void SizeProbe::StartPrompt() {
  const int64_t tokens = prompt_tokens();
  layer_ = 0;
  next_ = 0;
  rows_.prefix = tokens;
  rows_.stride = (tokens + settings_.window_tokens) * decoder_->config().head_dim;
  const auto ids = absl::MakeConstSpan(tokens_[example_]);
  const auto window = static_cast<size_t>(settings_.window_tokens);
  const size_t first = ids.size() - window - static_cast<size_t>(tokens);
  decoder_->Embed(ids.subspan(first, static_cast<size_t>(tokens)), prompt_.data());
  decoder_->Embed(ids.last(window), Window(0));
  for (size_t r = 0; r < retentions(); ++r) {
    std::copy(Window(0), Window(1), Window(1 + r));
  }
  selector_.reset();
  const auto whole = [&](const LayerBudgets& budgets) { return KeepsAll(budgets, tokens); };
  if (std::all_of(budgets().begin(), budgets().end(), whole)) return;
  selector_.emplace(selector_spec_, sinks_, decoder_->config(), rows_.type, tokens,
                    decoder_->pool());
}

absl::Status SizeProbe::Step() {
  if (done()) return absl::OkStatus();
  ++slices_done_;
  if (layer_ == decoder_->config().layers) return TakeDivergences();
  // Requests served between slices may have expanded another layer.
  decoder_->ExpandLayer(layer_);
  return next_ < prompt_tokens() ? RunPrompt() : RunWindows();
}

absl::Status SizeProbe::RunPrompt() {
  const int64_t end = std::min(next_ + kSliceTokens, prompt_tokens());
  // Above the last layer nothing reads the prompt's own states.
  const bool only_rows = layer_ + 1 == decoder_->config().layers;
  RowSelector* const selector = selector_.has_value() ? &*selector_ : nullptr;
  absl::Status status =
      pass_.Prefix(layer_, rows_, next_, end, prompt_.data(), selector, only_rows);
  if (!status.ok()) return status;
  next_ = end;
  window_ = 0;
  if (next_ == prompt_tokens() && selector != nullptr) selector->Score(rows_.k, rows_.stride);
  return absl::OkStatus();
}

absl::Status SizeProbe::RunWindows() {
  const size_t last = std::min(window_ + slice_windows_, 1 + retentions());
  for (; window_ < last; ++window_) {
    absl::StatusOr<RowsBefore> before =
        RowsBefore{.k = rows_.k, .v = rows_.v, .rows = rows_.prefix, .stride = rows_.stride};
    if (window_ > 0) before = Compressed(budgets()[window_ - 1]);
    if (!before.ok()) return before.status();
    absl::Status status =
        pass_.Extend(layer_, *before, prompt_tokens(), settings_.window_tokens, Window(window_));
    if (!status.ok()) return status;
  }
  if (window_ <= retentions()) return absl::OkStatus();
  next_ = 0;
  window_ = 0;
  row_ = 0;
  ++layer_;
  return absl::OkStatus();
}

/// What a cache of that size would hold of the layer at work.
absl::StatusOr<RowsBefore> SizeProbe::Compressed(const LayerBudgets& budgets) {
  const auto layer = static_cast<size_t>(layer_);
  const KvTypes types = budgets.types[layer];
  if (budgets.layer[layer] >= rows_.prefix) return copy_.Take(rows_, {}, types, decoder_->pool());
  const auto positions = selector_->Choose(layer_, budgets.layer[layer]);
  if (!positions.ok()) return positions.status();
  return copy_.Take(rows_, *positions, types, decoder_->pool());
}

/// One tile of window rows: the logits of up to kSliceLogits windows against the clean ones.
absl::Status SizeProbe::TakeDivergences() {
  const int rows = std::min(WindowDivergence::kTileRows, settings_.window_tokens - row_);
  const int64_t offset = int64_t{row_} * decoder_->config().hidden;
  const auto width = static_cast<size_t>(settings_.window_tokens);
  if (window_ == 0) divergence_.TakeClean(Window(0) + offset, rows);
  const size_t last = std::min(window_ + kSliceLogits, retentions());
  for (; window_ < last; ++window_) {
    divergence_.Compare(Window(1 + window_) + offset, rows, kl_.data() + window_ * width + row_);
  }
  if (window_ < retentions()) return absl::OkStatus();
  window_ = 0;
  row_ += rows;
  return row_ < settings_.window_tokens ? absl::OkStatus() : Record();
}

absl::Status SizeProbe::Record() {
  if (length_ == 0) measurements_.sizes.emplace_back();
  std::vector<double>& means = measurements_.sizes.back().emplace_back();
  for (size_t r = 0; r < retentions(); ++r) {
    const auto width = static_cast<size_t>(settings_.window_tokens);
    means.push_back(MeanDivergence(kl_.data() + r * width, settings_.window_tokens));
    if (!std::isnan(means.back())) continue;
    return absl::InternalError(
        absl::StrCat("the divergence at retention ", settings_.sizes.retentions[r], " of ",
                     prompt_tokens(), " tokens in example ", example_,
                     " of the sizes is not a number: the model's logits are not finite"));
  }
  if (++length_ == budgets_.size()) {
    length_ = 0;
    ++example_;
  }
  if (!done()) StartPrompt();
  return absl::OkStatus();
}

}  // namespace ripplekv
