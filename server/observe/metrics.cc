#include "server/observe/metrics.h"

#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
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

const std::vector<double> kBatchBuckets = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16};
const std::vector<double> kStepBuckets = {.0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03,
                                          .05,   .075, .1,   .15,  .2,   .3,    .5,  1,    2.5, 5};

const char* NameOf(RefusalReason reason) {
  switch (reason) {
    case RefusalReason::kInvalid:
      return "invalid";
    case RefusalReason::kTooLarge:
      return "too_large";
    case RefusalReason::kQueueFull:
      return "queue_full";
    case RefusalReason::kQueueTimeout:
      return "queue_timeout";
    case RefusalReason::kContextMemory:
      return "context_memory";
    case RefusalReason::kShuttingDown:
      return "shutting_down";
  }
  return "unknown";
}

const char* NameOf(StepRecord::Slice slice) {
  switch (slice) {
    case StepRecord::Slice::kNone:
      break;
    case StepRecord::Slice::kPrefillChunk:
      return "prefill_chunk";
    case StepRecord::Slice::kPrefillCompaction:
      return "prefill_compaction";
    case StepRecord::Slice::kLogits:
      return "logits";
    case StepRecord::Slice::kBackground:
      return "background";
  }
  return "none";
}

// Absent without /proc.
std::optional<double> ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;  // pages
  if (!(file >> all >> resident)) return std::nullopt;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// Absent without /proc.
std::optional<double> OpenFileDescriptors() {
  std::error_code error;
  std::filesystem::directory_iterator one("/proc/self/fd", error);
  double open = -1;  // that of the directory itself
  for (; !error && one != std::filesystem::directory_iterator(); one.increment(error)) ++open;
  if (error) return std::nullopt;
  return open;
}

double MaxFileDescriptors() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<double>(limit.rlim_cur);
}

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
      certificate_expiry_(
          GaugeFamily(registry_, "ripplekv_tls_certificate_expiry_timestamp_seconds",
                      "When the first certificate of a TLS file in force ends, in seconds since "
                      "unix epoch: server (the server's own chain), client_ca.")),
      plan_info_(GaugeFamily(registry_, "ripplekv_plan_info",
                             "1 for the source of the plan in force: profile, uniform (every layer "
                             "alike), or fixed (by "
                             "an allocator that needs no profile).")),
      calibrations_(prometheus::BuildCounter()
                        .Name("ripplekv_calibrations_total")
                        .Help("Calibrations that ended: measured, stored (found in the store), "
                              "fetched (from a calibration server), failed, cancelled.")
                        .Register(registry_)),
      refused_(prometheus::BuildCounter()
                   .Name("ripplekv_requests_refused_total")
                   .Help("Requests that never ran, by reason.")
                   .Register(registry_)),
      slice_(prometheus::BuildHistogram()
                 .Name("ripplekv_slice_duration_seconds")
                 .Help("Time that a slice of other work took between two decode steps: "
                       "prefill_chunk, prefill_compaction, logits, background (calibration).")
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
      prefilling_(Gauge("ripplekv_requests_prefilling",
                        "Of the requests that are being computed, those still at their prompt.")),
      waiting_(Gauge("ripplekv_requests_waiting", "Requests that wait in the queue.")),
      background_jobs_(Gauge("ripplekv_background_jobs", "Calibrations the engine works at.")),
      kv_memory_(Gauge("ripplekv_kv_memory_bytes", "Size of the KV arena.")),
      kv_used_(Gauge("ripplekv_kv_used_bytes",
                     "KV memory in use: pages, and the full layer of a prefill at work.")),
      kv_reserved_(Gauge("ripplekv_kv_reserved_bytes",
                         "KV memory promised to running requests and not yet in use.")),
      kv_prefill_(Gauge("ripplekv_kv_prefill_bytes",
                        "Of the KV memory in use, the full layer of a prefill at work.")),
      kv_pages_(Gauge("ripplekv_kv_pages", "KV pages of the arena.")),
      kv_free_pages_(Gauge("ripplekv_kv_free_pages", "KV pages neither used nor promised.")),
      work_memory_(Gauge("ripplekv_work_memory_bytes", "Memory for activations of prompts.")),
      work_reserved_(Gauge("ripplekv_work_reserved_bytes",
                           "Memory for activations that requests at work have reserved.")),
      contexts_(Gauge("ripplekv_contexts", "Contexts that are kept.")),
      context_bytes_(Gauge("ripplekv_context_bytes", "KV memory that contexts take.")),
      calibration_running_(Gauge("ripplekv_calibration_running", "1 while a calibration runs.")),
      calibration_progress_(
          Gauge("ripplekv_calibration_progress_ratio",
                "Share of the running calibration that is done; 0 when none runs.")),
      store_problems_(
          Gauge("ripplekv_profile_store_problems",
                "Files in the profile directory that are damaged or foreign and not used.")),
      resident_memory_(Gauge("process_resident_memory_bytes", "Resident memory size in bytes.")),
      open_fds_(Gauge("process_open_fds", "Number of open file descriptors.")),
      max_fds_(Gauge("process_max_fds", "Maximum number of open file descriptors.")),
      contexts_evicted_(Counter("ripplekv_contexts_evicted_total",
                                "Contexts forgotten because others needed the memory.")),
      contexts_expired_(Counter("ripplekv_contexts_expired_total",
                                "Contexts forgotten because nobody used them for long.")),
      admitted_(Counter("ripplekv_requests_admitted_total", "Requests that got their memory.")),
      compactions_(Counter("ripplekv_compactions_total",
                           "Layers of sequences compacted because decoding reached the cap.")),
      calibration_slices_(Counter("ripplekv_calibration_slices_total",
                                  "Slices of calibrations that the engine ran.")),
      fetch_failures_(Counter("ripplekv_profile_fetch_failures_total",
                              "Times that a calibration server gave no profile.")),
      slow_readers_(Counter("ripplekv_slow_readers_dropped_total",
                            "Clients dropped because they took none of their messages.")),
      prompt_tokens_(Counter("ripplekv_prompt_tokens_total",
                             "Prompt tokens of requests that were prefilled.")),
      output_tokens_(Counter("ripplekv_output_tokens_total", "Tokens generated.")),
      kept_positions_(
          Counter("ripplekv_prompt_positions_kept_total",
                  "Prompt positions kept in the cache, per KV head, summed over layers.")),
      dropped_positions_(
          Counter("ripplekv_prompt_positions_dropped_total",
                  "Prompt positions dropped from the cache, per KV head, summed over layers.")),
      batch_size_(
          Histogram("ripplekv_decode_batch_size", "Sequences in a decode step.", kBatchBuckets)),
      step_(
          Histogram("ripplekv_decode_step_seconds", "Time that a decode step took.", kStepBuckets)),
      queue_time_(Histogram("ripplekv_queue_time_seconds",
                            "Time from a request's arrival to its prefill.", kQueueBuckets)),
      first_token_(Histogram("ripplekv_time_to_first_token_seconds",
                             "Time from a request's arrival to its first token.",
                             kFirstTokenBuckets)),
      per_token_(Histogram("ripplekv_time_per_output_token_seconds",
                           "Time between two tokens of one request.", kPerTokenBuckets)),
      stall_(Histogram("ripplekv_stall_seconds",
                       "Longest time between two tokens of a request that completed.",
                       kPerTokenBuckets)),
      kl_(Histogram("ripplekv_next_token_kl_nats",
                    "KL divergence, in nats, of the first token from the exact prefill to the "
                    "compressed cache, where asked for or sampled.",
                    kKlBuckets)),
      kl_floor_(Histogram("ripplekv_next_token_kl_floor_nats",
                          "The same KL divergence, in nats, over all of the prompt's positions: "
                          "what the arithmetic alone makes.",
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
  Gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
      .Set(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
               .count());
  for (const char* outcome : {"measured", "stored", "failed", "cancelled", "fetched"})
    calibrations_.Add({{"outcome", outcome}});
  for (const RefusalReason reason : {RefusalReason::kInvalid, RefusalReason::kTooLarge,
                                     RefusalReason::kQueueFull, RefusalReason::kQueueTimeout,
                                     RefusalReason::kContextMemory, RefusalReason::kShuttingDown}) {
    refused_.Add({{"reason", NameOf(reason)}});
  }
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

void Metrics::SetProfileStoreProblems(std::function<int64_t()> problems) {
  const std::lock_guard lock(mutex_);
  problems_ = std::move(problems);
}

void Metrics::DeclareMethod(absl::string_view method) {
  for (const char* code : {"OK", "INTERNAL"})
    requests_.Add({{"method", std::string(method)}, {"code", code}});
}

void Metrics::OnCall(absl::string_view method, absl::string_view code, double seconds) {
  const Labels labels = {{"method", std::string(method)}};
  requests_.Add({{"method", std::string(method)}, {"code", std::string(code)}}).Increment();
  request_duration_.Add(labels, kRequestBuckets).Observe(seconds);
}

void Metrics::SetServing(bool serving) { serving_.Set(serving ? 1 : 0); }

void Metrics::SetCertificateExpiry(absl::string_view file, int64_t unix_seconds) {
  certificate_expiry_.Add({{"file", std::string(file)}}).Set(static_cast<double>(unix_seconds));
}

void Metrics::SetPlanSource(absl::string_view source) {
  for (const char* known : {"uniform", "fixed", "profile"})
    plan_info_.Add({{"source", known}}).Set(source == known ? 1 : 0);
}

void Metrics::OnCalibration(absl::string_view outcome, double seconds) {
  calibrations_.Add({{"outcome", std::string(outcome)}}).Increment();
  if (outcome == "measured") calibration_duration_.Observe(seconds);
}

void Metrics::OnProfileFetchFailure() { fetch_failures_.Increment(); }

void Metrics::OnStall(double seconds) { stall_.Observe(seconds); }

void Metrics::OnSlowReaderDropped() { slow_readers_.Increment(); }

void Metrics::OnRefused(RefusalReason reason, const absl::Status& /*status*/) {
  refused_.Add({{"reason", NameOf(reason)}}).Increment();
}

void Metrics::OnAdmitted() { admitted_.Increment(); }

void Metrics::OnStep(const StepRecord& step) {
  if (step.decode_rows > 0) {
    batch_size_.Observe(step.decode_rows);
    step_.Observe(step.decode_seconds);
  }
  if (step.slice == StepRecord::Slice::kNone) return;
  slice_.Add({{"slice", NameOf(step.slice)}}, kStepBuckets).Observe(step.slice_seconds);
  if (step.slice == StepRecord::Slice::kBackground) calibration_slices_.Increment();
}

void Metrics::OnCompaction(int64_t layers) { compactions_.Increment(static_cast<double>(layers)); }

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

void Metrics::OnNextTokenKl(double nats, double floor_nats) {
  kl_.Observe(nats);
  kl_floor_.Observe(floor_nats);
}

void Metrics::ShowEngine(const EngineStats& stats) {
  running_.Set(static_cast<double>(stats.running));
  prefilling_.Set(static_cast<double>(stats.prefilling));
  waiting_.Set(static_cast<double>(stats.queued));
  background_jobs_.Set(static_cast<double>(stats.background_jobs));
  kv_memory_.Set(static_cast<double>(stats.kv_total_bytes));
  kv_used_.Set(static_cast<double>(stats.kv_used_bytes));
  kv_reserved_.Set(static_cast<double>(stats.kv_reserved_bytes));
  kv_prefill_.Set(static_cast<double>(stats.prefill_layer_bytes));
  kv_pages_.Set(static_cast<double>(stats.pages));
  kv_free_pages_.Set(static_cast<double>(stats.free_pages));
  work_memory_.Set(static_cast<double>(stats.work_total_bytes));
  work_reserved_.Set(static_cast<double>(stats.work_reserved_bytes));
  contexts_.Set(static_cast<double>(stats.contexts));
  context_bytes_.Set(static_cast<double>(stats.context_bytes));
  // The engine counts since its start, as these do.
  contexts_evicted_.Increment(static_cast<double>(stats.contexts_evicted) -
                              contexts_evicted_.Value());
  contexts_expired_.Increment(static_cast<double>(stats.contexts_expired) -
                              contexts_expired_.Value());
  for (size_t l = 0; l < stats.layers.size(); ++l) {
    const Labels layer = {{"layer", absl::StrCat(l)}};
    layer_used_.Add(layer).Set(static_cast<double>(stats.layers[l].used_bytes));
    layer_reserved_.Add(layer).Set(static_cast<double>(stats.layers[l].reserved_bytes));
    layer_quota_.Add(layer).Set(static_cast<double>(stats.layers[l].quota_bytes));
  }
}

void Metrics::Refresh() {
  if (stats_) ShowEngine(stats_());
  if (calibration_) {
    const CalibrationState state = calibration_();
    calibration_running_.Set(state.running ? 1 : 0);
    calibration_progress_.Set(state.running ? state.fraction : 0);
  }
  if (problems_) store_problems_.Set(static_cast<double>(problems_()));
  if (const auto bytes = ResidentBytes(); bytes.has_value()) resident_memory_.Set(*bytes);
  if (const auto open = OpenFileDescriptors(); open.has_value()) open_fds_.Set(*open);
  max_fds_.Set(MaxFileDescriptors());
}

std::string Metrics::Scrape() {
  const std::lock_guard lock(mutex_);
  Refresh();
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace ripplekv
