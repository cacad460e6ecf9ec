#include "server/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace ripplekv {
namespace {

using testing::HasSubstr;

struct Parsed {
  std::optional<ServerOptions> options;
  OptionsExit exit;
};

Parsed Parse(std::vector<const char*> arguments, Program program = Program::kServer) {
  arguments.insert(arguments.begin(), "ripplekv-server");
  Parsed parsed;
  parsed.options =
      ParseOptions(program, static_cast<int>(arguments.size()), arguments.data(), &parsed.exit);
  return parsed;
}

// What is wrong with an option ends the program with its name.
void ExpectRefused(const std::vector<const char*>& arguments, const std::string& name,
                   const std::string& value) {
  const Parsed parsed = Parse(arguments);
  ASSERT_FALSE(parsed.options.has_value()) << name << " " << value;
  EXPECT_EQ(parsed.exit.code, 2);
  EXPECT_THAT(parsed.exit.text, testing::StartsWith("ripplekv-server: "));
  EXPECT_THAT(parsed.exit.text, testing::EndsWith("\n  See ripplekv-server --help.\n"));
  EXPECT_THAT(parsed.exit.text, HasSubstr(name));
  EXPECT_THAT(parsed.exit.text, HasSubstr(value));
}

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(ParseOptions, HasTheDocumentedDefaults) {
  const Parsed parsed = Parse({"--model", "m.gguf"});
  ASSERT_TRUE(parsed.options.has_value()) << parsed.exit.text;
  const ServerOptions& options = *parsed.options;
  EXPECT_EQ(options.listen, "127.0.0.1:50051");
  EXPECT_EQ(options.metrics_listen, "127.0.0.1:9464");
  EXPECT_EQ(options.kv_memory_bytes, 268435456);
  EXPECT_EQ(options.retention, 0.2);
  EXPECT_EQ(options.min_positions, 256);
  EXPECT_EQ(options.max_batch, 16);
  EXPECT_EQ(options.work_memory_bytes, 512 << 20);
  EXPECT_EQ(options.queue_timeout_seconds, 120);
  EXPECT_EQ(options.context_memory_bytes, 64 << 20);
  EXPECT_EQ(options.context_idle_seconds, 3600);
  EXPECT_EQ(options.growth_cap, 0);
  EXPECT_EQ(options.fidelity_sample, 0.01);
  EXPECT_EQ(options.slow_reader_timeout_seconds, 60);
  EXPECT_EQ(options.compute, "bf16");
  EXPECT_EQ(options.kv_type, "auto");
  EXPECT_EQ(options.calibration, "embedded");
  EXPECT_GE(options.threads, 1);
  EXPECT_FALSE(options.calibrates_remotely());
  const CalibrationSettings settings = options.calibration_settings(8192, KvType::kInt8);
  CalibrationSettings expected;
  expected.damage_examples = 8;
  expected.damage_retentions = {0.04, 0.06, 0.1, 0.2, 0.4, 0.7};
  expected.damage_storage = true;
  EXPECT_EQ(settings, expected);
  EXPECT_EQ(options.plan_allocator(), Allocator(DamageCurvesAllocator{}));
  EXPECT_EQ(options.plan_selector(), SelectorSpec(SnapKv()));
  EXPECT_EQ(Parse({"--model", "m", "--compute", "fp32"}).options->kv_type, "compute");
  EXPECT_EQ(Parse({"--model", "m", "--compute", "fp32", "--kv-type", "auto"}).options->kv_type,
            "auto");
  EXPECT_EQ(Parse({"--model", "m", "--calibration-examples", "3"}).options->calibration_damage, 3);
}

TEST(ParseOptions, NamesAMistypedOptionRatherThanWhatElseIsMissing) {
  ExpectRefused({"--modle", "m.gguf"}, "there is no option --modle", "did you mean --model?");
  ExpectRefused({"--model", "m.gguf", "--retentoin", "0.3"}, "--retentoin", "--retention?");
  ExpectRefused({"--model", "m.gguf", "stray"}, "'stray'", "not expected");
}

TEST(ParseOptions, ReadsEveryFixedFlag) {
  const Parsed parsed = Parse({"--model",
                               "m.gguf",
                               "--listen",
                               "0.0.0.0:7",
                               "--metrics-listen",
                               "[::1]:8",
                               "--kv-memory",
                               "1GiB",
                               "--retention",
                               "0.1",
                               "--min-positions",
                               "0",
                               "--profile-dir",
                               "p",
                               "--compute",
                               "fp32",
                               "--threads",
                               "3",
                               "--calibration",
                               "calibration:50052",
                               "--allocator",
                               "uniform",
                               "--snapkv-window",
                               "16",
                               "--snapkv-kernel",
                               "5",
                               "--snapkv-pooling",
                               "mean",
                               "--selector",
                               "mixed",
                               "--selector-queries",
                               "300",
                               "--h2o-normalised",
                               "--recent-kernel",
                               "3",
                               "--recent-pooling",
                               "max",
                               "--mixed-weight",
                               "0.25",
                               "--random-seed",
                               "11",
                               "--sinks",
                               "2",
                               "--calibration-examples",
                               "3",
                               "--calibration-prefix",
                               "64",
                               "--calibration-window",
                               "8",
                               "--calibration-eta",
                               "0",
                               "--calibration-recent",
                               "1",
                               "--calibration-seed",
                               "9",
                               "--calibration-damage",
                               "2",
                               "--max-queue",
                               "1",
                               "--max-batch",
                               "4",
                               "--work-memory",
                               "1GiB",
                               "--queue-timeout",
                               "0",
                               "--context-memory",
                               "0",
                               "--context-idle",
                               "1.5",
                               "--growth-cap",
                               "1024",
                               "--fidelity-sample",
                               "1",
                               "--slow-reader-timeout",
                               "0.5",
                               "--reflection",
                               "--wait-for-profile"});
  ASSERT_TRUE(parsed.options.has_value()) << parsed.exit.text;
  const ServerOptions& options = *parsed.options;
  EXPECT_EQ(options.kv_memory_bytes, 1 << 30);
  EXPECT_EQ(options.retention, 0.1);
  EXPECT_EQ(options.min_positions, 0);
  EXPECT_EQ(options.threads, 3);
  EXPECT_TRUE(options.calibrates_remotely());
  EXPECT_TRUE(std::holds_alternative<UniformAllocator>(options.plan_allocator()));
  const SnapKv snapkv = {16, 5, Pooling::kMean};
  const Selectors selectors = options.selectors();
  EXPECT_EQ(selectors.snapkv, snapkv);
  EXPECT_EQ(selectors.h2o, (H2o{16, 300, true}));
  EXPECT_EQ(selectors.recent_attention, (RecentAttention{16, 300, 3, Pooling::kMax}));
  EXPECT_EQ(selectors.mixed, (MixedAttention{snapkv, 300, 0.25}));
  EXPECT_EQ(selectors.streaming_llm, StreamingLlm{16});
  EXPECT_EQ(selectors.random, (RandomPositions{16, 11}));
  EXPECT_EQ(options.plan_selector(), SelectorSpec(selectors.mixed));
  CalibrationSettings settings{3, 64, 8, 0, 2, 1, 9};
  settings.damage_examples = 2;
  settings.selector = options.plan_selector();
  settings.damage_retentions = settings.DefaultDamageRetentions();
  settings.damage_storage = true;
  EXPECT_EQ(options.calibration_settings(8192, KvType::kBf16), settings);
  EXPECT_EQ(options.max_queue, 1);
  EXPECT_EQ(options.max_batch, 4);
  EXPECT_EQ(options.work_memory_bytes, 1 << 30);
  EXPECT_EQ(options.queue_timeout_seconds, 0);
  EXPECT_EQ(options.context_memory_bytes, 0);
  EXPECT_EQ(options.context_idle_seconds, 1.5);
  EXPECT_EQ(options.growth_cap, 1024);
  EXPECT_EQ(options.fidelity_sample, 1);
  EXPECT_EQ(options.slow_reader_timeout_seconds, 0.5);
  EXPECT_TRUE(options.reflection);
  EXPECT_TRUE(options.wait_for_profile);
}

TEST(ParseOptions, MakesTheAllocatorThatIsNamed) {
  const auto made = [](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), {"--model", "m"});
    const Parsed parsed = Parse(arguments);
    EXPECT_TRUE(parsed.options.has_value()) << parsed.exit.text;
    return parsed.options.has_value() ? parsed.options->plan_allocator() : Allocator();
  };
  const RippleAllocator ripple{.r = 3, .gamma = 2, .map = SignalMap::kLog};
  const auto with_ripple = [&](const char* name, std::vector<const char*> more = {}) {
    more.insert(more.end(), {"--allocator", name, "--ripple-r", "3", "--ripple-gamma", "2",
                             "--ripple-map", "log"});
    return made(more);
  };
  EXPECT_EQ(with_ripple("ripple"), Allocator(ripple));
  EXPECT_EQ(with_ripple("inverse_ripple"), Allocator(InverseRippleAllocator{ripple}));
  EXPECT_EQ(with_ripple("shuffled_ripple", {"--shuffle-seed", "5"}),
            Allocator(ShuffledRippleAllocator{ripple, 5}));
  EXPECT_EQ(
      with_ripple("isolated_damage", {"--damage-retention", "0.3", "--calibration-damage", "4"}),
      Allocator(IsolatedDamageAllocator{ripple, 0.3}));
  EXPECT_EQ(with_ripple("local_response"), Allocator(LocalResponseAllocator{ripple}));
  EXPECT_EQ(made({"--allocator", "sqrt"}), Allocator(SqrtAllocator{}));
  EXPECT_EQ(made({"--allocator", "pyramid", "--pyramid-beta", "9"}),
            Allocator(PyramidAllocator{9}));
  EXPECT_EQ(made({"--allocator", "damage_curves", "--damage-least-share", "0.5",
                  "--calibration-damage", "4", "--kv-type", "auto"}),
            Allocator(DamageCurvesAllocator{0.5}));
  EXPECT_EQ(made({"--allocator", "multipliers", "--layer-multipliers", "1,0.5,2"}),
            Allocator(MultipliersAllocator{{1, 0.5, 2}}));
  EXPECT_EQ(made({"--allocator", "positions", "--layer-positions", "100,50"}),
            Allocator(PositionsAllocator{{100, 50}}));

  const auto refused = [](std::vector<const char*> arguments, const char* part) {
    arguments.insert(arguments.begin(), {"--model", "m"});
    const Parsed parsed = Parse(arguments);
    EXPECT_FALSE(parsed.options.has_value());
    EXPECT_NE(parsed.exit.text.find(part), std::string::npos) << parsed.exit.text;
  };
  refused({"--allocator", "multipliers"}, "multipliers has 0 values");
  refused({"--allocator", "positions", "--layer-positions", "5,0"}, "positions[1] is 0");
  refused({"--layer-positions", "5,x"}, "'5,x' is not numbers between commas");
  refused({"--damage-retention", "1"}, "above 0, below 1");
  refused({"--calibration-damage", "0"}, "--calibration-damage is 0");
}

TEST(ParseOptions, NamesTheOptionThatIsWrong) {
  unsetenv("RIPPLEKV_MODEL");  // where other tests find their model
  ExpectRefused({}, "--model", "required");
  ExpectRefused({"--model"}, "--model", "needs a value");
  ExpectRefused({"--model", "m", "--reflection=maybe"}, "--reflection", "'maybe' is not a value");
  const auto with = [](const char* name, const char* value) {
    ExpectRefused({"--model", "m", name, value}, name, value);
  };
  with("--listen", "nowhere");
  with("--metrics-listen", "host:99999");
  with("--kv-memory", "256MB");
  with("--kv-memory", "1KiB");
  with("--retention", "0");
  with("--retention", "1.01");
  with("--retention", "nan");
  with("--min-positions", "-1");
  with("--compute", "int8");
  with("--kv-type", "int2");
  with("--kv-type", "int8:");
  with("--threads", "two");
  with("--calibration", "somewhere");
  with("--ripple-r", "0.5");
  with("--snapkv-kernel", "4");
  with("--snapkv-pooling", "median");
  with("--selector", "best");
  with("--selector-queries", "0");
  with("--selector-queries", "513");
  with("--recent-kernel", "2");
  with("--recent-pooling", "median");
  with("--mixed-weight", "1.5");
  with("--random-seed", "-1");
  with("--layer-positions", "40,010");
  with("--calibration-eta", "11");
  with("--calibration-examples", "0");
  with("--max-queue", "x");
  with("--max-queue", "0");
  with("--max-queue", "010");  // eight to some
  with("--max-queue", "0x10");
  with("--max-batch", "0");
  with("--max-batch", "17");
  with("--work-memory", "1KiB");
  with("--queue-timeout", "-1");
  with("--context-idle", "-1");
  with("--context-memory", "-1");
  with("--context-memory", "257MiB");  // of a --kv-memory of 256 MiB
  with("--growth-cap", "15");
  with("--growth-cap", "1048577");
  with("--fidelity-sample", "1.5");
  with("--slow-reader-timeout", "0");
  with("--log-level", "loud");
  with("--log-format", "xml");
  with("--profile-dir", "");
  ExpectRefused({"--model", "m", "--no-such-flag"}, "--no-such-flag", "");
  ExpectRefused({"--model", "m", "stray"}, "stray", "");
}

TEST(ParseOptions, TakesTheEnvironmentUnlessTheFlagIsThere) {
  const Environment model("RIPPLEKV_MODEL", "from-environment.gguf");
  const Environment memory("RIPPLEKV_KV_MEMORY", "64MiB");
  const Environment reflection("RIPPLEKV_REFLECTION", "true");
  const Parsed parsed = Parse({});
  ASSERT_TRUE(parsed.options.has_value()) << parsed.exit.text;
  EXPECT_EQ(parsed.options->model, "from-environment.gguf");
  EXPECT_EQ(parsed.options->kv_memory_bytes, 64 << 20);
  EXPECT_TRUE(parsed.options->reflection);
  EXPECT_EQ(Parse({"--model", "flag.gguf"}).options->model, "flag.gguf");
}

TEST(ParseOptions, AnOptionGivenTwiceIsAMistake) {
  ExpectRefused({"--model", "a", "--retention", "0.1", "--retention", "0.1"}, "--retention",
                "is given 2 times: must be given once");
  ExpectRefused({"--model", "a", "--reflection", "--reflection"}, "--reflection", "2 times");
  // Beside a variable of the environment it is not.
  const Environment retention("RIPPLEKV_RETENTION", "0.5");
  EXPECT_EQ(Parse({"--model", "a", "--retention", "0.1"}).options->retention, 0.1);
}

TEST(ParseOptions, ContextsGetAQuarterOfTheKvMemoryUnlessToldOtherwise) {
  const Parsed quarter = Parse({"--model", "m", "--kv-memory", "1GiB"});
  EXPECT_EQ(quarter.options->context_memory_bytes, 256 << 20);
  bool printed = false;
  for (const auto& [name, value] : quarter.options->printed) {
    if (name == "context-memory") printed = value == "256MiB";
  }
  EXPECT_TRUE(printed);
  EXPECT_EQ(Parse({"--model", "m", "--kv-memory", "1GiB", "--context-memory", "1GiB"})
                .options->context_memory_bytes,
            1 << 30);
}

TEST(ParseOptions, ChecksTheEnvironmentToo) {
  const Environment retention("RIPPLEKV_RETENTION", "2");
  ExpectRefused({"--model", "m"}, "--retention", "2");
}

TEST(ParseOptions, PrintsEveryValueInForce) {
  const Parsed parsed = Parse({"--model", "m.gguf", "--kv-memory", "1GiB"});
  ASSERT_TRUE(parsed.options.has_value());
  const auto value = [&](const std::string& name) -> std::string {
    for (const auto& [key, text] : parsed.options->printed) {
      if (key == name) return text;
    }
    return "absent";
  };
  EXPECT_EQ(value("model"), "m.gguf");
  EXPECT_EQ(value("kv-memory"), "1GiB");
  EXPECT_EQ(value("retention"), "0.2");
  EXPECT_EQ(value("reflection"), "false");
  EXPECT_EQ(value("calibration-eta"), "0.5");
  EXPECT_EQ(value("kv-type"), "auto");
  EXPECT_EQ(value("threads"), std::to_string(parsed.options->threads));
  EXPECT_EQ(value("calibration-damage"), "8");
}

TEST(ParseOptions, DamageIsMeasuredUnlessNobodyNeedsIt) {
  EXPECT_EQ(Parse({"--model", "m", "--allocator", "ripple", "--calibration-damage", "0"})
                .options->calibration_settings(8192, KvType::kBf16),
            CalibrationSettings());
  const Parsed parsed = Parse({"--model", "m", "--calibration-damage", "5"});
  ASSERT_TRUE(parsed.options.has_value()) << parsed.exit.text;
  const CalibrationSettings settings = parsed.options->calibration_settings(8192, KvType::kBf16);
  EXPECT_EQ(settings.damage_examples, 5);
  EXPECT_EQ(settings.damage_retentions, CalibrationSettings().DefaultDamageRetentions());
  EXPECT_TRUE(settings.damage_storage);
  EXPECT_TRUE(settings.Validate(8192).ok());
  EXPECT_FALSE(Parse({"--model", "m", "--calibration-damage", "-1"}).options.has_value());
}

TEST(ParseOptions, DamageAndSizesAreThoseOfThePlan) {
  const auto of = [](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), {"--model", "m"});
    const Parsed parsed = Parse(arguments);
    EXPECT_TRUE(parsed.options.has_value()) << parsed.exit.text;
    const CalibrationSettings settings =
        parsed.options->calibration_settings(4000, KvTypes(KvType::kInt8));
    EXPECT_TRUE(settings.Validate(4000).ok()) << settings.Validate(4000);
    return settings;
  };
  // Without either the selector means nothing.
  EXPECT_EQ(of({"--selector", "h2o", "--calibration-damage", "0", "--allocator", "ripple"}),
            CalibrationSettings());
  EXPECT_EQ(of({"--selector", "h2o", "--calibration-damage", "2"}).selector, SelectorSpec(H2o()));
  const CalibrationSettings sizes = of({"--calibration-sizes", "5", "--selector", "streaming_llm",
                                        "--allocator", "sqrt", "--calibration-damage", "0"});
  EXPECT_EQ(sizes.damage_examples, 0);
  EXPECT_EQ(sizes.selector, SelectorSpec(StreamingLlm()));
  EXPECT_EQ(sizes.sizes.examples, 5);
  EXPECT_EQ(sizes.sizes.prompt_tokens, (std::vector<int64_t>{1024, 2048}));
  EXPECT_EQ(sizes.sizes.retentions, (std::vector<double>{0.05, 0.1, 0.2, 0.3, 0.5, 1}));
  EXPECT_EQ(sizes.sizes.allocator, Allocator(SqrtAllocator()));
  EXPECT_EQ(sizes.sizes.kv_types, KvTypes(KvType::kInt8)) << "as the model's rows are stored";
  const CalibrationSettings chosen = of({"--calibration-sizes", "5", "--calibration-damage", "2",
                                         "--allocator", "damage_curves", "--kv-type", "auto"});
  EXPECT_EQ(chosen.sizes.allocator, Allocator(DamageCurvesAllocator()));
  EXPECT_FALSE(chosen.sizes.kv_types.has_value());
  EXPECT_FALSE(Parse({"--model", "m", "--calibration-sizes", "-1"}).options.has_value());
}

TEST(ParseOptions, HelpExplainsEachWithDefaultRangeAndVariable) {
  const Parsed parsed = Parse({"--help"});
  ASSERT_FALSE(parsed.options.has_value());
  EXPECT_EQ(parsed.exit.code, 0);
  const Parsed all = Parse({"--model", "m"});
  for (const auto& [name, value] : all.options->printed) {
    EXPECT_THAT(parsed.exit.text, HasSubstr("--" + name));
  }
  EXPECT_THAT(parsed.exit.text, HasSubstr("RIPPLEKV_KV_MEMORY"));
  EXPECT_THAT(parsed.exit.text, HasSubstr("above 0 to 1"));
  EXPECT_THAT(parsed.exit.text, HasSubstr("[0 to 31536000]"));
  EXPECT_THAT(parsed.exit.text, HasSubstr("256MiB"));
  EXPECT_EQ(Parse({"-h"}).exit.text, parsed.exit.text);
}

TEST(ParseOptions, CertificateAndKeyGoTogether) {
  ExpectRefused({"--model", "m", "--tls-certificate", "c.pem"}, "--tls-key", "is missing");
  ExpectRefused({"--model", "m", "--tls-key", "k.pem"}, "--tls-certificate", "is missing");
  ExpectRefused({"--model", "m", "--tls-client-ca", "ca.pem"}, "--tls-client-ca", "needs TLS");
  const Parsed parsed =
      Parse({"--model", "m", "--tls-certificate", "c.pem", "--tls-key", "k.pem", "--token-file",
             "tokens", "--listen", "0.0.0.0:50051", "--tls-client-ca", "ca.pem"});
  ASSERT_TRUE(parsed.options.has_value()) << parsed.exit.text;
  EXPECT_EQ(parsed.options->tls_client_ca, "ca.pem");
}

TEST(ParseOptions, TokensNeedTlsOrALoopbackAddress) {
  for (const char* listen : {"0.0.0.0:50051", "[::]:50051", "10.0.0.7:50051"}) {
    ExpectRefused({"--model", "m", "--token-file", "tokens", "--listen", listen}, "--token-file",
                  listen);
  }
  for (const char* listen : {"127.0.0.1:50051", "[::1]:0", "localhost:50051"}) {
    EXPECT_TRUE(
        Parse({"--model", "m", "--token-file", "tokens", "--listen", listen}).options.has_value())
        << listen;
  }
}

TEST(ParseOptions, CredentialsForACalibrationServerNeedOne) {
  ExpectRefused({"--model", "m", "--calibration-tls"}, "--calibration-tls", "embedded");
  ExpectRefused({"--model", "m", "--calibration", "off", "--calibration-tls-ca", "ca.pem"},
                "--calibration-tls-ca", "off");
  ExpectRefused({"--model", "m", "--calibration", "ripplekv-calibration:50051",
                 "--calibration-token-file", "token"},
                "--calibration-token-file", "plain text");
  const Parsed parsed =
      Parse({"--model", "m", "--calibration", "ripplekv-calibration:50051", "--calibration-tls-ca",
             "ca.pem", "--tls-certificate", "c.pem", "--tls-key", "k.pem"});
  ASSERT_TRUE(parsed.options.has_value()) << parsed.exit.text;
  const CredentialFiles files = parsed.options->calibration_credentials();
  EXPECT_TRUE(files.tls);
  EXPECT_EQ(files.ca, "ca.pem");
  EXPECT_EQ(files.certificate, "c.pem");
  EXPECT_EQ(files.key, "k.pem");
}

TEST(ParseOptions, TheCalibrationServerRefusesWhatMeansNothingToIt) {
  const Parsed parsed = Parse({"--model", "m", "--max-queue", "3"}, Program::kCalibrationServer);
  ASSERT_FALSE(parsed.options.has_value());
  EXPECT_THAT(parsed.exit.text, HasSubstr("--max-queue"));
  EXPECT_TRUE(Parse({"--model", "m", "--retention", "0.3"}, Program::kCalibrationServer)
                  .options.has_value());
}

}  // namespace
}  // namespace ripplekv
