#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/engine/engine_observer.h"

namespace ripplekv {

// What a build is, for ripplekv_build_info.
struct BuildInfo {
  std::string version;
  std::string grpc;
  std::string libtorch;
  std::string compute;  // "fp32" or "bf16"
};

// Where a calibration stands, for the gauges.
struct CalibrationState {
  bool running = false;
  double fraction = 0;
};

// Everything that /metrics shows. Names start with ripplekv_, or with process_ where Prometheus'
// own clients have the same; units are base units, labels come
// from fixed small sets (method, status code, reason, slice, layer). Thread-safe.
class Metrics final : public EngineObserver {
 public:
  explicit Metrics(const BuildInfo& build);

  // Read when scraped. Unset (at first, and again by passing nullptr): those gauges keep their last
  // values.
  void SetEngineStats(std::function<EngineStats()> stats);
  void SetCalibrationState(std::function<CalibrationState()> state);
  void SetProfileStoreProblems(std::function<int64_t()> problems);

  // A method that may be called: its series are there from now on, for OK and INTERNAL, so that the
  // first failure is a change.
  void DeclareMethod(absl::string_view method);
  // A call is over. `method` without package, `code` as gRPC spells it ("OK", "INVALID_ARGUMENT").
  void OnCall(absl::string_view method, absl::string_view code, double seconds);
  void SetServing(bool serving);
  // When the first certificate of a TLS file ends: "server" (its own chain) or "client_ca".
  void SetCertificateExpiry(absl::string_view file, int64_t unix_seconds);
  // Which plan is in force: "uniform", "fixed" or "profile".
  void SetPlanSource(absl::string_view source);
  // outcome: "measured", "stored", "fetched", "failed", "cancelled". Seconds count for "measured"
  // only.
  void OnCalibration(absl::string_view outcome, double seconds);
  // A calibration server gave no profile.
  void OnProfileFetchFailure();

  // The longest wait of one token for the next in a request that has ended.
  void OnStall(double seconds);
  // A client that took none of its messages for too long was dropped.
  void OnSlowReaderDropped();

  void OnRefused(RefusalReason reason, const absl::Status& status) override;
  void OnAdmitted() override;
  void OnStep(const StepRecord& step) override;
  void OnCompaction(int64_t layers) override;
  void OnQueueTime(double seconds) override;
  void OnPrefill(int64_t prompt_tokens, int64_t kept_positions, int64_t dropped_positions) override;
  void OnFirstToken(double seconds) override;
  void OnTokenInterval(double seconds) override;
  void OnNextTokenKl(double nats, double floor_nats) override;

  // The exposition format, text version 0.0.4.
  std::string Scrape();

 private:
  prometheus::Gauge& Gauge(const char* name, const char* help);
  prometheus::Counter& Counter(const char* name, const char* help);
  prometheus::Histogram& Histogram(const char* name, const char* help,
                                   const std::vector<double>& buckets);
  void Refresh();
  void ShowEngine(const EngineStats& stats);

  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Histogram>& request_duration_;
  prometheus::Family<prometheus::Gauge>& certificate_expiry_;
  prometheus::Family<prometheus::Gauge>& plan_info_;
  prometheus::Family<prometheus::Counter>& calibrations_;
  prometheus::Family<prometheus::Counter>& refused_;
  prometheus::Family<prometheus::Histogram>& slice_;
  prometheus::Family<prometheus::Gauge>& layer_used_;
  prometheus::Family<prometheus::Gauge>& layer_reserved_;
  prometheus::Family<prometheus::Gauge>& layer_quota_;
  prometheus::Gauge& serving_;
  prometheus::Gauge& running_;
  prometheus::Gauge& prefilling_;
  prometheus::Gauge& waiting_;
  prometheus::Gauge& background_jobs_;
  prometheus::Gauge& kv_memory_;
  prometheus::Gauge& kv_used_;
  prometheus::Gauge& kv_reserved_;
  prometheus::Gauge& kv_prefill_;
  prometheus::Gauge& kv_pages_;
  prometheus::Gauge& kv_free_pages_;
  prometheus::Gauge& work_memory_;
  prometheus::Gauge& work_reserved_;
  prometheus::Gauge& contexts_;
  prometheus::Gauge& context_bytes_;
  prometheus::Gauge& calibration_running_;
  prometheus::Gauge& calibration_progress_;
  prometheus::Gauge& store_problems_;
  prometheus::Gauge& resident_memory_;
  prometheus::Gauge& open_fds_;
  prometheus::Gauge& max_fds_;
  prometheus::Counter& contexts_evicted_;
  prometheus::Counter& contexts_expired_;
  prometheus::Counter& admitted_;
  prometheus::Counter& compactions_;
  prometheus::Counter& calibration_slices_;
  prometheus::Counter& fetch_failures_;
  prometheus::Counter& slow_readers_;
  prometheus::Counter& prompt_tokens_;
  prometheus::Counter& output_tokens_;
  prometheus::Counter& kept_positions_;
  prometheus::Counter& dropped_positions_;
  prometheus::Histogram& batch_size_;
  prometheus::Histogram& step_;
  prometheus::Histogram& queue_time_;
  prometheus::Histogram& first_token_;
  prometheus::Histogram& per_token_;
  prometheus::Histogram& stall_;
  prometheus::Histogram& kl_;
  prometheus::Histogram& kl_floor_;
  prometheus::Histogram& calibration_duration_;

  std::mutex mutex_;  // guards what follows and Scrape
  std::function<EngineStats()> stats_;
  std::function<CalibrationState()> calibration_;
  std::function<int64_t()> problems_;
};

}  // namespace ripplekv
