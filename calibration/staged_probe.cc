#include "calibration/staged_probe.h"

#include <iterator>
#include <utility>

#include "calibration/measured_plan.h"
#include "calibration/size_probe.h"

namespace ripplekv {
namespace {

/// Tokens that a stage pushes through layers: to weigh one against the other.
double LayersWork(const CalibrationSettings& settings, int layers) {
  const double altered = 0.5 * layers * (layers + 1.0);  // of layer l, from l up
  const size_t damages =
      settings.damage_retentions.size() + (settings.damage_storage ? std::size(kDamageTypes) : 0);
  const double windows =
      settings.examples + static_cast<double>(damages) * settings.damage_examples;
  return static_cast<double>(settings.examples * settings.example_tokens() * layers) +
         windows * altered * settings.window_tokens;
}

double SizesWork(const CalibrationSettings& settings, int layers) {
  double tokens = 0;
  for (const int64_t prompt : settings.sizes.prompt_tokens) {
    tokens +=
        static_cast<double>(prompt) +
        (1.0 + static_cast<double>(settings.sizes.retentions.size())) * settings.window_tokens;
  }
  return tokens * settings.sizes.examples * layers;
}

class StagedProbe final : public SensitivityProbe {
 public:
  StagedProbe(Decoder* decoder, const CalibrationSettings& settings,
              std::unique_ptr<Probe> layers_probe, std::vector<std::vector<int32_t>> sizes)
      : decoder_(decoder),
        settings_(settings),
        layers_probe_(std::move(layers_probe)),
        size_examples_(std::move(sizes)) {
    const int layers = decoder_->config().layers;
    const double first = LayersWork(settings_, layers);
    first_share_ = first / (first + SizesWork(settings_, layers));
  }

  absl::Status Step() override {
    if (size_probe_ != nullptr) {
      absl::Status status = size_probe_->Step();
      if (size_probe_->done()) measured_.sizes = size_probe_->measurements().sizes;
      return status;
    }
    if (absl::Status s = layers_probe_->Step(); !s.ok() || !layers_probe_->done()) return s;
    measured_ = layers_probe_->measurements();
    absl::Status status = StartSizes();
    if (status.ok()) layers_probe_.reset();
    return status;
  }

  bool done() const override { return size_probe_ != nullptr && size_probe_->done(); }

  ProbeProgress progress() const override {
    ProbeProgress progress;
    if (size_probe_ == nullptr) {
      progress = layers_probe_->progress();
      progress.fraction *= first_share_;
    } else {
      progress = size_probe_->progress();
      progress.examples_done += settings_.examples;
      progress.fraction =
          size_probe_->done() ? 1 : first_share_ + (1 - first_share_) * progress.fraction;
    }
    progress.examples_total = settings_.examples + settings_.sizes.examples;
    return progress;
  }

  const ProbeMeasurements& measurements() const override { return measured_; }

 private:
  absl::Status StartSizes() {
    const ModelConfig& config = decoder_->config();
    Profile profile;
    profile.key.settings = settings_;
    profile.layers = config.layers;
    SummariseMeasurements(measured_, profile);
    absl::StatusOr<Plan> plan =
        SizePlan(profile, {.kv_heads = config.kv_heads, .head_dim = config.head_dim});
    if (!plan.ok()) return plan.status();
    auto probe = SizeProbe::Create(decoder_, settings_, *plan, std::move(size_examples_));
    if (!probe.ok()) return probe.status();
    size_probe_ = *std::move(probe);
    return absl::OkStatus();
  }

  Decoder* const decoder_;
  const CalibrationSettings settings_;
  std::unique_ptr<Probe> layers_probe_;    // the first stage
  std::unique_ptr<SizeProbe> size_probe_;  // the second
  std::vector<std::vector<int32_t>> size_examples_;
  double first_share_ = 1;  // of all the work
  ProbeMeasurements measured_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SensitivityProbe>> MakeCalibrationProbe(
    Decoder* decoder, const CalibrationSettings& settings, CalibrationExamples examples,
    Probe::Batching batching) {
  absl::StatusOr<std::unique_ptr<Probe>> probe =
      Probe::Create(decoder, settings, std::move(examples.layers), batching);
  if (!probe.ok()) return probe.status();
  if (settings.sizes.examples == 0) return std::unique_ptr<SensitivityProbe>(*std::move(probe));
  return std::make_unique<StagedProbe>(decoder, settings, *std::move(probe),
                                       std::move(examples.sizes));
}

}  // namespace ripplekv
