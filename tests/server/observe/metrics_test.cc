#include "server/observe/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <regex>
#include <set>
#include <sstream>

namespace ripplekv {
namespace {

using testing::HasSubstr;

BuildInfo Build() { return {.version = "1.2.3", .grpc = "g", .libtorch = "t", .compute = "bf16"}; }

TEST(Metrics, CountsCallsByMethodAndCode) {
  Metrics metrics(Build());
  metrics.OnCall("Generate", "OK", 0.2);
  metrics.OnCall("Generate", "OK", 0.2);
  metrics.OnCall("Generate", "CANCELLED", 3);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("ripplekv_requests_total{code=\"OK\",method=\"Generate\"} 2"));
  EXPECT_THAT(text, HasSubstr("ripplekv_requests_total{code=\"CANCELLED\",method=\"Generate\"} 1"));
  EXPECT_THAT(text, HasSubstr("ripplekv_request_duration_seconds_count{method=\"Generate\"} 3"));
  EXPECT_THAT(
      text,
      HasSubstr("ripplekv_request_duration_seconds_bucket{method=\"Generate\",le=\"0.3\"} 2"));
}

TEST(Metrics, ShowsWhatTheEngineTells) {
  Metrics metrics(Build());
  metrics.OnQueueTime(0.004);
  metrics.OnPrefill(100, 300, 700);
  metrics.OnFirstToken(0.03);
  metrics.OnTokenInterval(0.0015);
  metrics.OnNextTokenKl(0.03, 0.001);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("ripplekv_prompt_tokens_total 100"));
  EXPECT_THAT(text, HasSubstr("ripplekv_output_tokens_total 2"));
  EXPECT_THAT(text, HasSubstr("ripplekv_prompt_positions_kept_total 300"));
  EXPECT_THAT(text, HasSubstr("ripplekv_prompt_positions_dropped_total 700"));
  EXPECT_THAT(text, HasSubstr("ripplekv_time_to_first_token_seconds_bucket{le=\"0.02\"} 0"));
  EXPECT_THAT(text, HasSubstr("ripplekv_time_to_first_token_seconds_bucket{le=\"0.04\"} 1"));
  EXPECT_THAT(text, HasSubstr("ripplekv_time_per_output_token_seconds_bucket{le=\"0.001\"} 0"));
  EXPECT_THAT(text, HasSubstr("ripplekv_time_per_output_token_seconds_bucket{le=\"0.002\"} 1"));
  EXPECT_THAT(text, HasSubstr("ripplekv_time_to_first_token_seconds_bucket{le=\"2560\"} 1"));
  EXPECT_THAT(text, HasSubstr("ripplekv_next_token_kl_nats_sum 0.03"));
  EXPECT_THAT(text, HasSubstr("ripplekv_next_token_kl_floor_nats_sum 0.001"));
  EXPECT_THAT(text, HasSubstr("ripplekv_queue_time_seconds_count 1"));
}

TEST(Metrics, SaysWhenCertificatesEnd) {
  Metrics metrics(Build());
  const std::string name = "ripplekv_tls_certificate_expiry_timestamp_seconds";
  EXPECT_THAT(metrics.Scrape(), testing::Not(HasSubstr(name)));  // no TLS
  metrics.SetCertificateExpiry("server", 1790000001);
  metrics.SetCertificateExpiry("client_ca", 1790000002);
  metrics.SetCertificateExpiry("server", 1790000003);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr(name + "{file=\"server\"} 1790000003\n"));
  EXPECT_THAT(text, HasSubstr(name + "{file=\"client_ca\"} 1790000002\n"));
}

TEST(Metrics, CountsWhatStepsDo) {
  Metrics metrics(Build());
  metrics.OnStep({.decode_rows = 8,
                  .decode_seconds = 0.004,
                  .slice = StepRecord::Slice::kPrefillChunk,
                  .slice_seconds = 0.02});
  metrics.OnStep({.decode_rows = 0,
                  .decode_seconds = 0,
                  .slice = StepRecord::Slice::kBackground,
                  .slice_seconds = 0.25});
  metrics.OnStep({});
  metrics.OnAdmitted();
  metrics.OnCompaction(30);
  metrics.OnRefused(RefusalReason::kQueueFull, absl::ResourceExhaustedError("full"));
  metrics.OnStall(0.3);
  metrics.OnSlowReaderDropped();
  const std::string text = metrics.Scrape();
  // A turn without a decode step is not a batch of none.
  EXPECT_THAT(text, HasSubstr("ripplekv_decode_batch_size_count 1\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_decode_batch_size_sum 8\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_decode_step_seconds_sum 0.004\n"));
  EXPECT_THAT(text,
              HasSubstr("ripplekv_slice_duration_seconds_sum{slice=\"prefill_chunk\"} 0.02\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_slice_duration_seconds_sum{slice=\"background\"} 0.25\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("slice=\"none\"")));
  EXPECT_THAT(text, HasSubstr("ripplekv_calibration_slices_total 1\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_requests_admitted_total 1\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_compactions_total 30\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_requests_refused_total{reason=\"queue_full\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_stall_seconds_sum 0.3\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_slow_readers_dropped_total 1\n"));
}

TEST(Metrics, ShowsEveryReasonOfARefusalFromTheStart) {
  Metrics metrics(Build());
  const std::string text = metrics.Scrape();
  for (const char* reason :
       {"invalid", "too_large", "queue_full", "queue_timeout", "context_memory", "shutting_down"}) {
    EXPECT_THAT(text, HasSubstr("ripplekv_requests_refused_total{reason=\"" + std::string(reason) +
                                "\"} 0\n"));
  }
}

TEST(Metrics, ShowsAMethodBeforeItsFirstCall) {
  Metrics metrics(Build());
  metrics.DeclareMethod("Score");
  metrics.OnCall("Score", "OK", 0.1);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("ripplekv_requests_total{code=\"OK\",method=\"Score\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_requests_total{code=\"INTERNAL\",method=\"Score\"} 0\n"));
}

TEST(Metrics, ReadsProblemsOfTheStoreWhenScraped) {
  Metrics metrics(Build());
  int64_t problems = 0;
  metrics.SetProfileStoreProblems([&] { return problems; });
  EXPECT_THAT(metrics.Scrape(), HasSubstr("\nripplekv_profile_store_problems 0\n"));
  problems = 2;
  EXPECT_THAT(metrics.Scrape(), HasSubstr("\nripplekv_profile_store_problems 2\n"));
}

double Value(const std::string& text, const std::string& name) {
  return std::stod(text.substr(text.find("\n" + name + " ") + name.size() + 2));
}

TEST(Metrics, TellsOfTheProcess) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double seconds = std::chrono::duration<double>(now).count();
  Metrics metrics(Build());
  std::string text = metrics.Scrape();
  EXPECT_NEAR(Value(text, "process_start_time_seconds"), seconds, 60);
  EXPECT_GT(Value(text, "process_resident_memory_bytes"), 1 << 20);
  const double open = Value(text, "process_open_fds");
  const int file = dup(2);
  text = metrics.Scrape();
  close(file);
  EXPECT_EQ(Value(text, "process_open_fds"), open + 1);
  EXPECT_EQ(Value(text, "process_max_fds"), static_cast<double>(sysconf(_SC_OPEN_MAX)));
}

TEST(Metrics, CountersOfContextsFollowTheEngine) {
  Metrics metrics(Build());
  EngineStats stats;
  metrics.SetEngineStats([&] { return stats; });
  stats.contexts_evicted = 2;
  stats.contexts_expired = 1;
  metrics.Scrape();
  EXPECT_THAT(metrics.Scrape(), HasSubstr("ripplekv_contexts_evicted_total 2\n"));
  stats.contexts_evicted = 5;
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("ripplekv_contexts_evicted_total 5\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_contexts_expired_total 1\n"));
}

TEST(Metrics, ReadsGaugesWhenScraped) {
  Metrics metrics(Build());
  EngineStats stats;
  stats.running = 1;
  stats.queued = 2;
  stats.kv_total_bytes = 1000;
  stats.kv_used_bytes = 600;
  stats.prefilling = 7;
  stats.background_jobs = 3;
  stats.pages = 50;
  stats.free_pages = 40;
  stats.work_total_bytes = 5000;
  stats.work_reserved_bytes = 4000;
  stats.contexts = 6;
  stats.context_bytes = 77;
  stats.layers = {{.used_bytes = 10, .reserved_bytes = 20, .quota_bytes = 30}, {.used_bytes = 11}};
  metrics.SetEngineStats([&] { return stats; });
  metrics.SetCalibrationState([] { return CalibrationState{true, 0.5}; });
  std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("ripplekv_requests_running 1"));
  EXPECT_THAT(text, HasSubstr("ripplekv_requests_waiting 2"));
  EXPECT_THAT(text, HasSubstr("ripplekv_kv_memory_bytes 1000"));
  EXPECT_THAT(text, HasSubstr("ripplekv_kv_used_bytes 600"));
  EXPECT_THAT(text, HasSubstr("ripplekv_requests_prefilling 7\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_background_jobs 3\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_kv_pages 50\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_kv_free_pages 40\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_work_memory_bytes 5000\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_work_reserved_bytes 4000\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_contexts 6\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_context_bytes 77\n"));
  EXPECT_THAT(text, HasSubstr("ripplekv_kv_layer_used_bytes{layer=\"0\"} 10"));
  EXPECT_THAT(text, HasSubstr("ripplekv_kv_layer_used_bytes{layer=\"1\"} 11"));
  EXPECT_THAT(text, HasSubstr("ripplekv_kv_layer_reserved_bytes{layer=\"0\"} 20"));
  EXPECT_THAT(text, HasSubstr("ripplekv_kv_layer_quota_bytes{layer=\"0\"} 30"));
  EXPECT_THAT(text, HasSubstr("ripplekv_calibration_progress_ratio 0.5"));
  stats.running = 0;
  EXPECT_THAT(metrics.Scrape(), HasSubstr("ripplekv_requests_running 0"));
  // Nothing is read once the engine is gone.
  metrics.SetEngineStats(nullptr);
  metrics.SetCalibrationState(nullptr);
  EXPECT_THAT(metrics.Scrape(), HasSubstr("ripplekv_requests_running 0"));
}

TEST(Metrics, CountsCalibrations) {
  Metrics metrics(Build());
  metrics.OnCalibration("measured", 90);
  metrics.OnCalibration("stored", 0);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("ripplekv_calibrations_total{outcome=\"measured\"} 1"));
  EXPECT_THAT(text, HasSubstr("ripplekv_calibrations_total{outcome=\"failed\"} 0"));
  EXPECT_THAT(text, HasSubstr("ripplekv_calibration_duration_seconds_count 1"));
  EXPECT_THAT(text, HasSubstr("ripplekv_calibration_duration_seconds_sum 90"));
}

TEST(Metrics, NamesEveryMetricByTheRules) {
  Metrics metrics(Build());
  metrics.OnCall("Generate", "OK", 1);
  metrics.SetPlanSource("uniform");
  metrics.SetEngineStats([] {
    EngineStats stats;
    stats.layers.resize(1);
    return stats;
  });
  const std::string text = metrics.Scrape();
  EXPECT_THAT(
      text,
      HasSubstr(
          "ripplekv_build_info{compute=\"bf16\",grpc=\"g\",libtorch=\"t\",version=\"1.2.3\"} 1"));
  std::istringstream lines(text);
  std::string line;
  std::set<std::string> types;
  const std::regex type("# TYPE ((?:ripplekv|process)_[a-z_]+) (counter|gauge|histogram)");
  while (std::getline(lines, line)) {
    std::smatch match;
    if (line.rfind("# TYPE", 0) != 0) continue;
    ASSERT_TRUE(std::regex_match(line, match, type)) << line;
    types.insert(match[1]);
    // Counters end in _total, others do not.
    EXPECT_EQ(match[2] == "counter", match[1].str().ends_with("_total")) << line;
    EXPECT_THAT(text, HasSubstr("# HELP " + match[1].str() + " "));
  }
  EXPECT_GE(types.size(), 40u);
}

}  // namespace
}  // namespace ripplekv
