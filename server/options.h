#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/policy/plan.h"
#include "calibration/settings.h"
#include "client/credential_files.h"

namespace ripplekv {

inline constexpr char kCalibrationEmbedded[] = "embedded";
inline constexpr char kCalibrationOff[] = "off";

// Which of the two servers reads the options; each accepts those that mean something to it.
enum class Program { kServer, kCalibrationServer };

// Everything that can be set when a server starts. Each is a flag, an environment variable
// RIPPLEKV_<FLAG> (upper case, '_' for '-') and a key of the file of --config; the flag wins over
// the variable, and both over the file. Texts and ranges are declared once, in
// options.cc.
struct ServerOptions {
  std::string model;
  std::string listen = "127.0.0.1:50051";
  std::string metrics_listen = "127.0.0.1:9464";
  std::string compute = "bf16";
  int threads = 0;  // resolved: at least 1
  int64_t kv_memory_bytes = int64_t{256} << 20;
  // What ParseKvTypes takes (server/kv_types.h). Resolved: "compute" where --compute is fp32 and
  // nothing is given.
  std::string kv_type = "auto";
  int64_t work_memory_bytes = int64_t{512} << 20;
  int max_batch = 16;
  int max_queue = 64;
  double queue_timeout_seconds = 120;  // 0: none
  int64_t max_message_bytes = int64_t{16} << 20;
  bool reflection = false;
  // PEM files; all empty: no TLS. Read by Access (server/rpc/access.h), not when parsing.
  std::string tls_certificate, tls_key, tls_client_ca;
  std::string token_file;  // empty: calls need no token
  int drain_timeout_seconds = 30;
  double slow_reader_timeout_seconds = 60;

  int64_t context_memory_bytes = 0;    // resolved: a quarter of kv_memory_bytes where not given
  double context_idle_seconds = 3600;  // 0: never
  int growth_cap = 0;                  // 0: none
  double fidelity_sample = 0.01;

  double retention = 0.2;
  int64_t min_positions = 256;
  std::string allocator = "damage_curves";
  double ripple_r = 1.5;
  double ripple_gamma = 16;
  std::string ripple_map = "minmax";
  double pyramid_beta = 20;
  double damage_retention = 0.1;
  double damage_least_share = 0;
  uint64_t shuffle_seed = 0;
  std::vector<double> layer_multipliers;  // --allocator multipliers
  std::vector<int64_t> layer_positions;   // --allocator positions
  int sinks = 4;
  std::string selector = "snapkv";
  int snapkv_window = 32;
  int snapkv_kernel = 7;
  std::string snapkv_pooling = "max";
  int selector_queries = 256;
  bool h2o_normalised = false;
  int recent_kernel = 7;
  std::string recent_pooling = "none";
  double mixed_weight = 0.5;
  uint64_t random_seed = 0;

  std::string profile_dir = "profiles";
  std::string calibration = kCalibrationEmbedded;
  // Of calls to the calibration server.
  bool calibration_tls = false;
  std::string calibration_tls_ca, calibration_token_file;
  bool wait_for_profile = false;
  int calibration_examples = 24;
  int calibration_prefix_tokens = 1024;
  int calibration_window_tokens = 64;
  double calibration_eta = 0.5;
  int calibration_recent = 32;
  uint64_t calibration_seed = 0;
  int calibration_damage = 8;  // examples; resolved: not more than there are; 0: off
  int calibration_sizes = 0;   // the same
  std::string corpus = "default";
  std::string corpus_dir;

  std::string log_level = "info";
  std::string log_format = "text";

  // Flag name (without dashes) and value in force, in the order of --help: what is logged at start.
  std::vector<std::pair<std::string, std::string>> printed;

  // The calibration that gives the plan in force of a model of that context length, whose cached
  // rows are of those types where the plan does not choose them. Sinks, selector and the allocator
  // of the sizes are those of the plan.
  CalibrationSettings calibration_settings(int64_t context_length, KvTypes kv_types) const;
  // Of every kind, with the parameters given; and the one that --allocator names.
  Allocators allocators() const;
  Allocator plan_allocator() const;
  // Plans choose storage types; most rows will be int4 then.
  bool plans_choose_types() const;
  // Of every kind, with the parameters given; and the one that --selector names.
  Selectors selectors() const;
  SelectorSpec plan_selector() const;
  // What this server shows to the calibration server; its own certificate where it calls by TLS.
  CredentialFiles calibration_credentials() const;
  bool calibrates_remotely() const {
    return calibration != kCalibrationEmbedded && calibration != kCalibrationOff;
  }
};

// The exit code for what is wrong with an option or a file that one names, as in the client.
inline constexpr int kUsageExit = 2;

// What parsing says when the program is not to run: --help and --version (exit code 0, for standard
// output), or what is wrong with which option (exit code 2, for standard error).
struct OptionsExit {
  int code = 0;
  std::string text;
};

// Reads flags, environment and the file of --config. Returns the options, or fills `exit`.
std::optional<ServerOptions> ParseOptions(Program program, int argc, const char* const* argv,
                                          OptionsExit* exit);

}  // namespace ripplekv
