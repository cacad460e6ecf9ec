#include "server/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/byte_size.h"
#include "client/config_file.h"
#include "client/loopback.h"
#include "client/unknown_argument.h"
#include "model/decoder.h"
#include "server/address.h"
#include "server/available_threads.h"
#include "server/engine/request.h"
#include "server/kv_types.h"
#include "server/version.h"

namespace ripplekv {
namespace {

// CLI11 alone takes 010 for eight and 0x10 for sixteen.
template <typename Number>
bool ReadNumber(const std::string& text, Number& value) {
  if constexpr (std::is_integral_v<Number>) {
    const std::string digits = text.substr(!text.empty() && text.front() == '-' ? 1 : 0);
    if (digits.find_first_not_of("0123456789") != std::string::npos) return false;
    if (digits.size() > 1 && digits.front() == '0') return false;
  }
  return CLI::detail::lexical_cast(text, value);
}

// A number that `accept` takes; `complaint` leads to the range in the error.
template <typename Number, typename Accept>
CLI::Validator NumberThat(std::string range, std::string complaint, Accept accept) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        Number value = 0;
        if (ReadNumber(text, value) && accept(value)) return "";
        return absl::StrCat("'", text, "' is not ", complaint, range);
      },
      range);
}

// A bound as it is typed: 31536000, not 3.1536e+07.
std::string Bound(double bound) {
  return bound == std::floor(bound) ? absl::StrCat(static_cast<int64_t>(bound))
                                    : absl::StrCat(bound);
}

CLI::Validator AboveZeroTo(double high) {
  return NumberThat<double>(absl::StrCat("above 0 to ", Bound(high)), "",
                            [=](double value) { return value > 0 && value <= high; });
}

CLI::Validator Between(double low, double high) {
  return NumberThat<double>(absl::StrCat(Bound(low), " to ", Bound(high)), "within ",
                            [=](double value) { return value >= low && value <= high; });
}

CLI::Validator AboveZeroBelowOne() {
  return NumberThat<double>("above 0, below 1", "",
                            [](double value) { return value > 0 && value < 1; });
}

// Numbers between commas; absent where one is none.
template <typename T>
std::optional<std::vector<T>> ParseList(const std::string& text) {
  std::vector<T> values;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    T value{};
    if (!ReadNumber(std::string(part), value)) return std::nullopt;
    values.push_back(value);
  }
  return values;
}

CLI::Validator Whole(int64_t low, int64_t high) {
  return NumberThat<int64_t>(absl::StrCat(low, " to ", high), "a whole number from ",
                             [=](int64_t value) { return value >= low && value <= high; });
}

CLI::Validator ZeroOrWhole(int64_t low, int64_t high) {
  return NumberThat<int64_t>(absl::StrCat("0, or ", low, " to ", high), "", [=](int64_t value) {
    return value == 0 || (value >= low && value <= high);
  });
}

CLI::Validator OddUpTo(int64_t high) {
  return NumberThat<int64_t>(absl::StrCat("odd, 1 to ", high), "", [=](int64_t value) {
    return value >= 1 && value <= high && value % 2 == 1;
  });
}

CLI::Validator OneOf(std::vector<std::string> names) {
  std::string list;
  for (const std::string& name : names) absl::StrAppend(&list, list.empty() ? "" : "|", name);
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        if (std::find(names.begin(), names.end(), text) != names.end()) return "";
        return absl::StrCat("'", text, "' is not one of ", list);
      },
      list);
}

CLI::Validator ByteSize(int64_t low, int64_t high) {
  const std::string range = absl::StrCat(FormatByteSize(low), " to ", FormatByteSize(high));
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        const absl::StatusOr<int64_t> bytes = ParseByteSize(text);
        if (!bytes.ok()) return std::string(bytes.status().message());
        if (*bytes < low || *bytes > high)
          return absl::StrCat("'", text, "' is not within ", range);
        return "";
      },
      range);
}

CLI::Validator HostAndPort() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const absl::StatusOr<Address> address = ParseAddress(text);
        return address.ok() ? "" : std::string(address.status().message());
      },
      "HOST:PORT, port 0 to 65535 (0: any free one)");
}

CLI::Validator TypesOfKv() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const auto types = ParseKvTypes(text);
        return types.ok() ? "" : std::string(types.status().message());
      },
      kKvTypeChoices);
}

CLI::Validator CalibrationPlace() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text == kCalibrationEmbedded || text == kCalibrationOff ||
            text.find(':') != std::string::npos)
          return "";
        return absl::StrCat(
            "'", text, "' is not embedded, off or the HOST:PORT of a ripplekv-calibration-server");
      },
      "embedded|off|ADDRESS");
}

// Declares options, each with its environment variable.
class Declarer {
 public:
  explicit Declarer(CLI::App* app) : app_(app) {}

  void Group(const std::string& name) { group_ = name; }

  template <typename T>
  CLI::Option* Add(const std::string& name, T& value, CLI::Validator check,
                   const std::string& text) {
    CLI::Option* option =
        app_->add_option("--" + name, value, text + " [" + check.get_description() + "]");
    option->check(check.description(""))->type_name("");  // the range is in the text
    return Finish(option, name);
  }

  CLI::Option* AddBytes(const std::string& name, int64_t& value, int64_t low, int64_t high,
                        const std::string& text) {
    CLI::Validator check = ByteSize(low, high);
    CLI::Option* option = app_->add_option_function<std::string>(
        "--" + name, [&value](const std::string& size) { value = *ParseByteSize(size); },
        text + " [" + check.get_description() + "]");
    option->check(check.description(""))->type_name("");  // the range is in the text
    option = Finish(option, name);
    option->default_str(FormatByteSize(value));
    return option;
  }

  template <typename T>
  CLI::Option* AddList(const std::string& name, std::vector<T>& values, const std::string& text) {
    CLI::Option* option = app_->add_option_function<std::string>(
        "--" + name, [&values](const std::string& list) { values = *ParseList<T>(list); }, text);
    option->type_name(kListTypeName);
    option->check(CLI::Validator(
        [](std::string& list) -> std::string {
          if (ParseList<T>(list).has_value()) return "";
          return absl::StrCat("'", list, "' is not numbers between commas");
        },
        ""));
    return Finish(option, name);
  }

  CLI::Option* AddText(const std::string& name, std::string& value, const std::string& text) {
    CLI::Option* option = app_->add_option("--" + name, value, text);
    option->type_name("");
    return Finish(option, name);
  }

  CLI::Option* AddFlag(const std::string& name, bool& value, const std::string& text) {
    CLI::Option* option = app_->add_flag("--" + name, value, text);
    return Finish(option, name);
  }

 private:
  CLI::Option* Finish(CLI::Option* option, const std::string& name) {
    option->envname(
        absl::StrCat("RIPPLEKV_", absl::StrReplaceAll(absl::AsciiStrToUpper(name), {{"-", "_"}})));
    option->group(group_);
    option->take_last();  // CheckGivenOnce says so in better words
    option->capture_default_str();
    return option;
  }

  CLI::App* app_;
  std::string group_;
};

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kTiB = int64_t{1} << 40;

void Declare(Program program, ServerOptions& o, CLI::App& app) {
  const bool server = program == Program::kServer;
  Declarer d(&app);
  d.Group("Model");
  d.AddText("model", o.model, "GGUF checkpoint of the Llama shape")->required();
  d.Add("compute", o.compute, OneOf({"fp32", "bf16"}), "Type of arithmetic; fp32 is for checks");
  d.Add("threads", o.threads, Whole(0, 1024),
        "Threads that compute; 0: as many as the process may use processors (affinity, cgroup)");

  d.Group("Network");
  d.Add("listen", o.listen, HostAndPort(), "Address of the gRPC services");
  d.Add("metrics-listen", o.metrics_listen, HostAndPort(),
        "Address of /metrics and /healthz over HTTP");
  d.AddBytes("max-message", o.max_message_bytes, 64 << 10, 1024 * kMiB,
             "Largest message a client may send");
  d.AddFlag("reflection", o.reflection, "Serve gRPC reflection");
  d.AddText("tls-certificate", o.tls_certificate,
            "PEM file with the server's certificate and those between it and its CA: calls by TLS "
            "only. With --tls-key; both are read again when they change");
  d.AddText("tls-key", o.tls_key, "PEM file with the certificate's key, without a passphrase");
  d.AddText("tls-client-ca", o.tls_client_ca,
            "PEM file of CAs: a client needs a certificate of one of them, whose common name is "
            "the caller's name (mutual TLS)");
  d.AddText("token-file", o.token_file,
            "File of NAME TOKEN lines: a call needs one of the tokens (metadata authorization: "
            "Bearer TOKEN), and NAME is the caller's. Read again when it changes. Without TLS on a "
            "loopback address only");
  d.Add("drain-timeout", o.drain_timeout_seconds, Whole(0, 86400),
        "Seconds that running requests get to finish after SIGTERM");

  if (server) {
    d.Add("slow-reader-timeout", o.slow_reader_timeout_seconds, AboveZeroTo(86400),
          "Seconds after which a client that takes none of its messages is dropped");

    d.Group("Requests");
    d.Add("max-batch", o.max_batch, Whole(1, Decoder::kMaxRows),
          "Requests that are computed at once");
    d.Add("max-queue", o.max_queue, Whole(1, 100000), "Requests that may wait; more are refused");
    d.Add("queue-timeout", o.queue_timeout_seconds, Between(0, 86400),
          "Seconds after which a request that still waits is refused; 0: it waits as long as it "
          "takes");
    d.AddBytes("work-memory", o.work_memory_bytes, kMiB, 64 * kTiB,
               "Memory for activations of prompts on their way");
    d.Add("growth-cap", o.growth_cap, ZeroOrWhole(KvParams::kMinGrowthCap, KvParams::kMaxGrowthCap),
          "Positions a layer may grow beyond the prompt's before it is compacted back to them, "
          "where a request does not say; 0: it grows with the output");
    d.Add("fidelity-sample", o.fidelity_sample, Between(0, 1),
          "Share of requests whose next_token_kl is measured without being asked for");

    d.Group("Contexts");
    d.AddBytes("context-memory", o.context_memory_bytes, 0, 64 * kTiB,
               "Of --kv-memory, what contexts may take together; 0: no contexts")
        ->default_str("a quarter of --kv-memory");
    d.Add("context-idle", o.context_idle_seconds, Between(0, 365 * 86400),
          "Seconds after which a context that nobody uses is forgotten; 0: never");
  }

  d.Group("KV cache");
  if (server) {
    d.AddBytes("kv-memory", o.kv_memory_bytes, kMiB, 64 * kTiB, "Memory for keys and values");
  }
  d.Add("kv-type", o.kv_type, TypesOfKv(),
        "Type that keys and values are stored in; compute: that of --compute; auto: int8, and the "
        "damage_curves allocator chooses it or less with the number of rows, layer by layer, from "
        "one budget in bytes")
      ->default_str("auto; with --compute fp32, compute");
  d.Add("retention", o.retention, AboveZeroTo(1),
        "Share of a prompt's positions that is kept, mean over layers; where the plan chooses "
        "types, of the bytes that they all take in int8");
  d.Add("min-positions", o.min_positions, Whole(0, kMaxPromptTokens),
        "Prompts no longer than this are not compressed; longer ones keep at least this many "
        "positions a layer on average");
  d.Add(
      "allocator", o.allocator,
      OneOf({"ripple", "uniform", "sqrt", "inverse_ripple", "shuffled_ripple", "isolated_damage",
             "local_response", "pyramid", "multipliers", "positions", "damage_curves"}),
      "How positions are divided over layers (docs/allocators.md): by measured sensitivity "
      "(ripple, "
      "sqrt), by what compressing each layer alone was measured to cost (damage_curves, "
      "isolated_damage), by each layer's own response (local_response), evenly, more to the first "
      "ones (pyramid), or as listed (multipliers, positions); inverse_ripple and shuffled_ripple "
      "are "
      "controls");
  d.Add("ripple-r", o.ripple_r, Between(1, 1e6),
        "ripple and what is made of it: largest ratio between two layers; 1 is uniform");
  d.Add("ripple-gamma", o.ripple_gamma, Between(1, 1e6),
        "The same: clips a layer's share to 1/gamma ... gamma");
  d.Add("ripple-map", o.ripple_map, OneOf({"minmax", "log", "rank"}),
        "The same: how the layers' measurements are scaled to 0 ... 1 before");
  d.Add("pyramid-beta", o.pyramid_beta, Between(1, 1e6),
        "pyramid: the last layer keeps 1/beta of the mean");
  d.Add("damage-retention", o.damage_retention, AboveZeroBelowOne(),
        "isolated_damage: the retention whose damage counts");
  d.Add("damage-least-share", o.damage_least_share, Between(0, 1),
        "damage_curves: share of the mean budget that every layer keeps at least");
  d.Add("shuffle-seed", o.shuffle_seed, Whole(0, std::numeric_limits<int64_t>::max()),
        "shuffled_ripple: seed of the order");
  d.AddList("layer-multipliers", o.layer_multipliers,
            "multipliers: one a layer, between commas, only their ratios matter");
  d.AddList("layer-positions", o.layer_positions,
            "positions: one a layer, between commas, instead of --retention");
  d.Add("sinks", o.sinks, Whole(0, 1024),
        "First positions, always kept and never perturbed by calibration");
  d.Add(
      "selector", o.selector,
      OneOf({"snapkv", "h2o", "recent_attention", "mixed", "streaming_llm", "random"}),
      "Which positions a layer keeps: those that the last queries attend to, pooled (snapkv); that "
      "collect the most attention (h2o); the same of recent queries (recent_attention); snapkv and "
      "recent_attention together (mixed); the most recent ones (streaming_llm); any (random)");
  d.Add("snapkv-window", o.snapkv_window, Whole(1, 1024),
        "Last positions, always kept by every selector; SnapKV: the queries that vote");
  d.Add("snapkv-kernel", o.snapkv_kernel, OddUpTo(63), "SnapKV: positions pooled together");
  d.Add("snapkv-pooling", o.snapkv_pooling, OneOf({"max", "mean", "none"}),
        "SnapKV: how they are pooled");
  d.Add("selector-queries", o.selector_queries, Whole(1, 512),
        "h2o: queries spread over the prompt that vote; recent_attention, mixed: last ones");
  d.AddFlag("h2o-normalised", o.h2o_normalised,
            "h2o: divide by the number of queries that could see a position");
  d.Add("recent-kernel", o.recent_kernel, OddUpTo(63),
        "recent_attention: positions pooled together");
  d.Add("recent-pooling", o.recent_pooling, OneOf({"max", "mean", "none"}),
        "recent_attention: how they are pooled");
  d.Add("mixed-weight", o.mixed_weight, Between(0, 1), "mixed: SnapKV's share");
  d.Add("random-seed", o.random_seed, Whole(0, std::numeric_limits<int64_t>::max()),
        "random: seed of the draw");

  d.Group("Calibration");
  d.AddText("profile-dir", o.profile_dir, "Directory of sensitivity profiles, made where missing")
      ->check(
          CLI::Validator([](std::string& t) { return t.empty() ? "must not be empty" : ""; }, ""));
  if (server) {
    d.Add("calibration", o.calibration, CalibrationPlace(),
          "Where profiles are measured: in this process, nowhere, or by a "
          "ripplekv-calibration-server");
    d.AddFlag("calibration-tls", o.calibration_tls,
              "Call the calibration server by TLS, with this server's own certificate where it has "
              "one");
    d.AddText("calibration-tls-ca", o.calibration_tls_ca,
              "PEM file of the CAs to trust there, instead of the system's; means "
              "--calibration-tls");
    d.AddText("calibration-token-file", o.calibration_token_file,
              "File with the token to send there");
    d.AddFlag("wait-for-profile", o.wait_for_profile,
              "Stay NOT_SERVING until there is a profile, instead of serving with a uniform plan");
  }
  d.Add("calibration-examples", o.calibration_examples, Whole(1, 4096), "Texts measured");
  d.Add("calibration-prefix", o.calibration_prefix_tokens, Whole(2, 1048576),
        "Tokens that build the cache");
  d.Add("calibration-window", o.calibration_window_tokens, Whole(1, 65536),
        "Tokens measured after them");
  d.Add("calibration-eta", o.calibration_eta, Between(0, 10),
        "Noise relative to a cached value's norm");
  d.Add("calibration-recent", o.calibration_recent, Whole(0, 65536),
        "Last prefix positions, never perturbed");
  d.Add("calibration-seed", o.calibration_seed, Whole(0, std::numeric_limits<int64_t>::max()),
        "Seed of the noise");
  d.Add("calibration-damage", o.calibration_damage, Whole(0, 4096),
        "Texts, the last of them all, on which it is also measured what compressing each layer "
        "alone costs, by rows kept and by storage type; 0: none")
      ->default_str("8, or all where there are fewer");
  d.Add("calibration-sizes", o.calibration_sizes, Whole(0, 4096),
        "Texts, others where there are, on which the mean KL of the whole plan is measured by size "
        "and prompt length, for target_mean_kl; 0: none");
  d.AddText("corpus", o.corpus,
            "Calibration texts: 'default' (built in) or a folder in --corpus-dir");
  d.AddText("corpus-dir", o.corpus_dir, "Directory whose folders of .txt files are corpora");

  d.Group("Log");
  d.Add("log-level", o.log_level, OneOf({"debug", "info", "warning", "error"}),
        "Least severe events logged");
  d.Add("log-format", o.log_format, OneOf({"text", "json"}),
        "One line an event, to standard error");
}

std::vector<std::pair<std::string, std::string>> Printed(const CLI::App& app) {
  std::vector<std::pair<std::string, std::string>> printed;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_envname().empty()) continue;
    std::string value = option->get_default_str();
    if (value.empty() && option->get_expected_max() == 0) value = "false";  // a flag
    if (!option->results().empty()) value = option->results().back();
    printed.emplace_back(FlagName(*option), value);
  }
  return printed;
}

std::vector<std::string> Names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) names.push_back(option->get_name());
  return names;
}

absl::Status CheckGivenOnce(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->results().size() < 2) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", FlagName(*option), " is given ",
                                                   option->results().size(),
                                                   " times: must be given once"));
  }
  return absl::OkStatus();
}

absl::Status CheckAllocator(const ServerOptions& options) {
  if (absl::Status status = ValidateAllocator(options.plan_allocator()); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--allocator ", options.allocator, ": ", status.message(),
                     options.allocator == "multipliers" ? " (--layer-multipliers)" : "",
                     options.allocator == "positions" ? " (--layer-positions)" : ""));
  }
  if (NeededMeasurement(options.plan_allocator()) == Measurement::kDamage &&
      options.calibration_damage == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--allocator ", options.allocator,
        " needs what compressing each layer alone costs, and --calibration-damage is 0:"
        " give it a number of texts, or choose another allocator"));
  }
  return absl::OkStatus();
}

OptionsExit UsageError(const CLI::App& app, absl::string_view problem) {
  return {kUsageExit,
          absl::StrCat(app.get_name(), ": ", problem, "\n  See ", app.get_name(), " --help.\n")};
}

void Print(ServerOptions& options, absl::string_view option, std::string text) {
  for (auto& [name, value] : options.printed) {
    if (name == option) value = text;
  }
}

// Defaults that follow other options.
void ResolveDefaults(const CLI::App& app, ServerOptions& options) {
  if (app.get_option("--kv-type")->empty() && options.compute == "fp32") {
    options.kv_type = "compute";
  }
  Print(options, "kv-type", options.kv_type);
  if (app.get_option("--calibration-damage")->empty()) {
    options.calibration_damage = std::min(options.calibration_damage, options.calibration_examples);
    Print(options, "calibration-damage", absl::StrCat(options.calibration_damage));
  }
}

absl::Status CheckAccess(const ServerOptions& o) {
  const bool tls = !o.tls_certificate.empty();
  if (tls != !o.tls_key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tls-certificate and --tls-key go together: ", tls ? "--tls-key" : "--tls-certificate",
        " is missing"));
  }
  if (!o.tls_client_ca.empty() && !tls) {
    return absl::InvalidArgumentError(
        "--tls-client-ca needs TLS: give --tls-certificate and --tls-key");
  }
  if (!o.token_file.empty() && !tls && !IsLoopbackTarget(o.listen)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--token-file: at --listen ", o.listen,
        " tokens would come in plain text, for everybody on the way to read: give "
        "--tls-certificate and --tls-key, or listen on a loopback address (127.0.0.1:50051) "
        "behind a proxy that ends TLS"));
  }
  return absl::OkStatus();
}

absl::Status CheckCalibrationAccess(const ServerOptions& o) {
  const bool tls = o.calibration_credentials().tls;
  const bool token = !o.calibration_token_file.empty();
  if ((tls || token) && !o.calibrates_remotely()) {
    return absl::InvalidArgumentError(
        absl::StrCat(o.calibration_tls ? "--calibration-tls"
                     : token           ? "--calibration-token-file"
                                       : "--calibration-tls-ca",
                     " is for calls to a calibration server: give --calibration HOST:PORT, not ",
                     o.calibration));
  }
  if (token && !tls && !IsLoopbackTarget(o.calibration)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--calibration-token-file: the token would be sent to ", o.calibration,
                     " in plain text, for everybody on the way to read: give --calibration-tls or "
                     "--calibration-tls-ca"));
  }
  return absl::OkStatus();
}

// Contexts are part of the KV memory.
absl::Status ResolveContextMemory(const CLI::App& app, ServerOptions& options) {
  if (app.get_option("--context-memory")->empty()) {
    options.context_memory_bytes = options.kv_memory_bytes / 4;
    Print(options, "context-memory", FormatByteSize(options.context_memory_bytes));
  }
  if (options.context_memory_bytes <= options.kv_memory_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--context-memory: ", FormatByteSize(options.context_memory_bytes),
                   " is more than --kv-memory, ", FormatByteSize(options.kv_memory_bytes),
                   ", which it is a part of"));
}

}  // namespace

CredentialFiles ServerOptions::calibration_credentials() const {
  CredentialFiles files;
  files.tls = calibration_tls || !calibration_tls_ca.empty();
  files.ca = calibration_tls_ca;
  files.token_file = calibration_token_file;
  if (files.tls) {
    files.certificate = tls_certificate;
    files.key = tls_key;
  }
  return files;
}

std::optional<ServerOptions> ParseOptions(Program program, int argc, const char* const* argv,
                                          OptionsExit* exit) {
  ServerOptions options;
  CLI::App app(
      program == Program::kServer
          ? "Serves a language model by gRPC over KV caches compressed layer by layer."
          : "Measures the KV sensitivity profiles of a language model and serves them by gRPC.",
      program == Program::kServer ? "ripplekv-server" : "ripplekv-calibration-server");
  app.set_help_flag("-h,--help", "Explain every option");
  app.set_version_flag("--version", kVersion);
  app.get_formatter()->column_width(34);
  app.footer(
      "Each option can also be given as the environment variable named beside it, or in the file "
      "of --config (retention = 0.3); a flag wins over a variable, and both over the file.");
  const std::shared_ptr<ConfigFile> file = ConfigFile::AddTo(app, "RIPPLEKV_CONFIG");
  app.get_config_ptr()->take_last()->group("File");
  Declare(program, options, app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, err;
    if (const std::vector<std::string> unexpected = app.remaining();
        error.get_exit_code() != 0 && !unexpected.empty()) {
      // Whatever else is missing, this is what was mistyped.
      *exit = UsageError(app, DescribeUnknownArgument(unexpected, Names(app)));
      return std::nullopt;
    }
    if (app.exit(error, out, err) == 0) {
      *exit = {0, out.str()};  // --help, --version
    } else {
      *exit = UsageError(app, file->Describe(error));
    }
    return std::nullopt;
  }
  options.printed = Printed(app);
  ResolveDefaults(app, options);
  absl::Status status = CheckGivenOnce(app);
  if (status.ok()) status = CheckAllocator(options);
  if (status.ok()) status = CheckAccess(options);
  if (status.ok() && program == Program::kServer) status = CheckCalibrationAccess(options);
  if (status.ok() && program == Program::kServer) status = ResolveContextMemory(app, options);
  if (!status.ok()) {
    *exit = UsageError(app, status.message());
    return std::nullopt;
  }
  if (options.threads == 0) options.threads = AvailableThreads();
  Print(options, "threads", absl::StrCat(options.threads));
  return options;
}

}  // namespace ripplekv
