#include "server/observe/metrics.h"

#include <prometheus/text_serializer.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

using Labels = std::map<std::string, std::string>;

// The buckets that vLLM's dashboards know, with finer ones below where a small model on a processor
// lives.
const std::vector<double> kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1,
                                                .25,  .5,   .75, 1,   2.5, 5,   7.5, 10,
                                                20,   40,   80,  160, 640, 2560};
const std::vector<double> kPerTokenBuckets = {.001, .002, .003, .005, .0075, .01, .025, .05,
                                              .075, .1,   .15,  .2,   .3,    .4,  .5,   .75,
                                              1,    2.5,  5,    7.5,  10,    20,  40,   80};
const std::vector<double> kQueueBuckets = {.001, .005, .01, .05, .1,  .3,  .5,   .8,  1,
                                           1.5,  2,    2.5, 5,   10,  15,  20,   30,  40,
                                           50,   60,   120, 240, 480, 960, 1920, 7680};
const std::vector<double> kRequestBuckets = {.005, .01, .05, .1,  .3,  .5,   .8,  1,  1.5,
                                             2,    2.5, 5,   10,  15,  20,   30,  40, 50,
                                             60,   120, 240, 480, 960, 1920, 7680};
const std::vector<double> kKlBuckets = {1e-6, 1e-5, 1e-4, 2e-4, 5e-4, .001, .002, .005, .01,
                                        .02,  .05,  .1,   .2,   .5,   1,    2,    5,    10};
const std::vector<double> kCalibrationBuckets = {1,   2,   5,    10,   20,   30,   60,    120,
                                                 300, 600, 1200, 1800, 3600, 7200, 14400, 43200};

prometheus::Family<prometheus::Gauge>& GaugeFamily(prometheus::Registry& registry, const char* name,
                                                   const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

}  // namespace

Metrics::Metrics(const BuildInfo& build)
    : requests_(prometheus::BuildCounter()
                    .Name("ripplekv_requests_total")
                    .Help("Calls that ended, by method and gRPC status code.")
                    .Register(registry_)),
      request_duration_(prometheus::BuildHistogram()
                            .Name("ripplekv_request_duration_seconds")
                            .Help("Time from a call's arrival to its end, by method.")
                            .Register(registry_)),
      plan_info_(GaugeFamily(
          registry_, "ripplekv_plan_info",
          "1 for the source of the plan in force: profile, or uniform where there is none.")),
      calibrations_(prometheus::BuildCounter()
                        .Name("ripplekv_calibrations_total")
                        .Help("Calibrations that ended: measured, stored (found in the store), "
                              "fetched (from a calibration server), failed, cancelled.")
                        .Register(registry_)),
      layer_used_(
          GaugeFamily(registry_, "ripplekv_kv_layer_used_bytes", "KV pages in use, by layer.")),
      layer_reserved_(
          GaugeFamily(registry_, "ripplekv_kv_layer_reserved_bytes",
                      "KV pages promised to running requests and not yet in use, by layer.")),
      layer_quota_(GaugeFamily(registry_, "ripplekv_kv_layer_quota_bytes",
                               "A layer's share of the KV memory in the plan in force.")),
      serving_(Gauge("ripplekv_serving", "1 while health says SERVING.")),
      running_(Gauge("ripplekv_requests_running", "Requests that are being computed.")),
      waiting_(Gauge("ripplekv_requests_waiting", "Requests that wait in the queue.")),
      kv_memory_(Gauge("ripplekv_kv_memory_bytes", "Size of the KV arena.")),
      kv_used_(Gauge("ripplekv_kv_used_bytes",
                     "KV memory in use: pages, and the full layer of a prefill at work.")),
      kv_reserved_(Gauge("ripplekv_kv_reserved_bytes",
                         "KV memory promised to running requests and not yet in use.")),
      kv_prefill_(Gauge("ripplekv_kv_prefill_bytes",
                        "Of the KV memory in use, the full layer of a prefill at work.")),
      calibration_running_(Gauge("ripplekv_calibration_running", "1 while a calibration runs.")),
      calibration_progress_(
          Gauge("ripplekv_calibration_progress_ratio",
                "Share of the running calibration that is done; 0 when none runs.")),
      store_problems_(
          Gauge("ripplekv_profile_store_problems",
                "Files in the profile directory that are damaged or foreign and not used.")),
      prompt_tokens_(Counter("ripplekv_prompt_tokens_total",
                             "Prompt tokens of requests that were prefilled.")),
      output_tokens_(Counter("ripplekv_output_tokens_total", "Tokens generated.")),
      kept_positions_(
          Counter("ripplekv_prompt_positions_kept_total",
                  "Prompt positions kept in the cache, per KV head, summed over layers.")),
      dropped_positions_(
          Counter("ripplekv_prompt_positions_dropped_total",
                  "Prompt positions dropped from the cache, per KV head, summed over layers.")),
      queue_time_(Histogram("ripplekv_queue_time_seconds",
                            "Time from a request's arrival to its prefill.", kQueueBuckets)),
      first_token_(Histogram("ripplekv_time_to_first_token_seconds",
                             "Time from a request's arrival to its first token.",
                             kFirstTokenBuckets)),
      per_token_(Histogram("ripplekv_time_per_output_token_seconds",
                           "Time between two tokens of one request.", kPerTokenBuckets)),
      kl_(Histogram("ripplekv_next_token_kl_nats",
                    "KL divergence of the first token from the exact prefill to the compressed "
                    "cache, where asked for.",
                    kKlBuckets)),
      calibration_duration_(Histogram("ripplekv_calibration_duration_seconds",
                                      "Time that calibrations took which measured a profile.",
                                      kCalibrationBuckets)) {
  GaugeFamily(registry_, "ripplekv_build_info",
              "1, with versions and the arithmetic in the labels.")
      .Add({{"version", build.version},
            {"grpc", build.grpc},
            {"libtorch", build.libtorch},
            {"compute", build.compute}})
      .Set(1);
  for (const char* outcome : {"measured", "stored", "failed", "cancelled", "fetched"})
    calibrations_.Add({{"outcome", outcome}});
}

prometheus::Gauge& Metrics::Gauge(const char* name, const char* help) {
  return GaugeFamily(registry_, name, help).Add({});
}

prometheus::Counter& Metrics::Counter(const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add({});
}

prometheus::Histogram& Metrics::Histogram(const char* name, const char* help,
                                          const std::vector<double>& buckets) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add({}, buckets);
}

void Metrics::SetEngineStats(std::function<EngineStats()> stats) {
  const std::lock_guard lock(mutex_);
  stats_ = std::move(stats);
}

void Metrics::SetCalibrationState(std::function<CalibrationState()> state) {
  const std::lock_guard lock(mutex_);
  calibration_ = std::move(state);
}

void Metrics::OnCall(absl::string_view method, absl::string_view code, double seconds) {
  const Labels labels = {{"method", std::string(method)}};
  requests_.Add({{"method", std::string(method)}, {"code", std::string(code)}}).Increment();
  request_duration_.Add(labels, kRequestBuckets).Observe(seconds);
}

void Metrics::SetServing(bool serving) { serving_.Set(serving ? 1 : 0); }

void Metrics::SetPlanSource(absl::string_view source) {
  for (const char* known : {"uniform", "profile"})
    plan_info_.Add({{"source", known}}).Set(source == known ? 1 : 0);
}

void Metrics::OnCalibration(absl::string_view outcome, double seconds) {
  calibrations_.Add({{"outcome", std::string(outcome)}}).Increment();
  if (outcome == "measured") calibration_duration_.Observe(seconds);
}

void Metrics::SetProfileStoreProblems(int64_t problems) {
  store_problems_.Set(static_cast<double>(problems));
}

void Metrics::OnQueueTime(double seconds) { queue_time_.Observe(seconds); }

void Metrics::OnPrefill(int64_t prompt_tokens, int64_t kept_positions, int64_t dropped_positions) {
  prompt_tokens_.Increment(static_cast<double>(prompt_tokens));
  kept_positions_.Increment(static_cast<double>(kept_positions));
  dropped_positions_.Increment(static_cast<double>(dropped_positions));
}

void Metrics::OnFirstToken(double seconds) {
  output_tokens_.Increment();
  first_token_.Observe(seconds);
}

void Metrics::OnTokenInterval(double seconds) {
  output_tokens_.Increment();
  per_token_.Observe(seconds);
}

void Metrics::OnNextTokenKl(double nats, double /*floor_nats*/) { kl_.Observe(nats); }

void Metrics::Refresh() {
  if (stats_) {
    const EngineStats stats = stats_();
    running_.Set(static_cast<double>(stats.running));
    waiting_.Set(static_cast<double>(stats.queued));
    kv_memory_.Set(static_cast<double>(stats.kv_total_bytes));
    kv_used_.Set(static_cast<double>(stats.kv_used_bytes));
    kv_reserved_.Set(static_cast<double>(stats.kv_reserved_bytes));
    kv_prefill_.Set(static_cast<double>(stats.prefill_layer_bytes));
    for (size_t l = 0; l < stats.layers.size(); ++l) {
      const Labels layer = {{"layer", absl::StrCat(l)}};
      layer_used_.Add(layer).Set(static_cast<double>(stats.layers[l].used_bytes));
      layer_reserved_.Add(layer).Set(static_cast<double>(stats.layers[l].reserved_bytes));
      layer_quota_.Add(layer).Set(static_cast<double>(stats.layers[l].quota_bytes));
    }
  }
  if (calibration_) {
    const CalibrationState state = calibration_();
    calibration_running_.Set(state.running ? 1 : 0);
    calibration_progress_.Set(state.running ? state.fraction : 0);
  }
}

std::string Metrics::Scrape() {
  const std::lock_guard lock(mutex_);
  Refresh();
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace ripplekv
