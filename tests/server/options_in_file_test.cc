#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>

#include "server/options.h"

namespace ripplekv {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// What a server takes from a file (client/config_file.h).
class OptionsInFileTest : public testing::Test {
 protected:
  OptionsInFileTest()
      : path_(testing::TempDir() + "/config_" + std::to_string(getpid()) + ".toml") {}
  ~OptionsInFileTest() override {
    std::remove(path_.c_str());
    for (const char* name : {"RIPPLEKV_CONFIG", "RIPPLEKV_RETENTION", "RIPPLEKV_REFLECTION"})
      unsetenv(name);
  }

  std::optional<ServerOptions> Parse(const std::string& text,
                                     std::vector<std::string> arguments = {}) {
    std::ofstream(path_) << text;
    if (std::getenv("RIPPLEKV_CONFIG") == nullptr)
      arguments.insert(arguments.begin(), "--config=" + path_);
    std::vector<const char*> argv = {"ripplekv-server"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return ParseOptions(Program::kServer, static_cast<int>(argv.size()), argv.data(), &exit_);
  }

  void ExpectRefused(const std::string& text, const std::vector<std::string>& parts) {
    EXPECT_FALSE(Parse(text).has_value()) << text;
    EXPECT_EQ(exit_.code, 2) << text;
    EXPECT_THAT(exit_.text, HasSubstr(path_ + ": "));
    for (const std::string& part : parts) EXPECT_THAT(exit_.text, HasSubstr(part)) << text;
  }

  const std::string path_;
  OptionsExit exit_;
};

TEST_F(OptionsInFileTest, GivesOptionsOfEveryKind) {
  const auto options = Parse(
      "# a comment\n"
      "model = \"m.gguf\"\n"
      "kv-memory = \"1GiB\"   # another\n"
      "retention = 0.3\n"
      "max-queue = 7\n"
      "reflection = true\n"
      "wait-for-profile = false\n"
      "allocator = \"multipliers\"\n"
      "layer-multipliers = [1, 0.5, 2]\n"
      "log-format = 'json'\n");
  ASSERT_TRUE(options.has_value()) << exit_.text;
  EXPECT_EQ(options->model, "m.gguf");
  EXPECT_EQ(options->kv_memory_bytes, 1 << 30);
  EXPECT_EQ(options->retention, 0.3);
  EXPECT_EQ(options->max_queue, 7);
  EXPECT_TRUE(options->reflection);
  EXPECT_FALSE(options->wait_for_profile);
  EXPECT_EQ(options->layer_multipliers, (std::vector<double>{1, 0.5, 2}));
  EXPECT_EQ(options->log_format, "json");
  EXPECT_THAT(options->printed, testing::Contains(testing::Pair("retention", "0.3")));
  EXPECT_THAT(options->printed, testing::Contains(testing::Pair("config", path_)));
}

TEST_F(OptionsInFileTest, FlagsAndVariablesWin) {
  setenv("RIPPLEKV_RETENTION", "0.4", 1);
  const std::string text = "model = \"m\"\nretention = 0.3\nmax-queue = 7\nmin-positions = 1\n";
  const auto options = Parse(text, {"--max-queue", "9"});
  ASSERT_TRUE(options.has_value()) << exit_.text;
  EXPECT_EQ(options->retention, 0.4);
  EXPECT_EQ(options->max_queue, 9);
  EXPECT_EQ(options->min_positions, 1);
  EXPECT_EQ(Parse(text, {"--retention", "0.5"})->retention, 0.5);
}

TEST_F(OptionsInFileTest, MayBeNamedByItsVariable) {
  setenv("RIPPLEKV_CONFIG", path_.c_str(), 1);
  const auto options = Parse("model = \"m\"\nretention = 0.3\n");
  ASSERT_TRUE(options.has_value()) << exit_.text;
  EXPECT_EQ(options->retention, 0.3);
  ExpectRefused("model = \"m\"\nretention = 3\n", {"--retention", "'3'", "above 0 to 1"});
  setenv("RIPPLEKV_CONFIG", "/nowhere/at-all.toml", 1);
  EXPECT_FALSE(Parse("", {"--model", "m"}).has_value());
  EXPECT_EQ(exit_.code, 2);
  EXPECT_THAT(exit_.text, StartsWith("ripplekv-server: RIPPLEKV_CONFIG: the file "
                                     "/nowhere/at-all.toml cannot be read: No such file"));
}

TEST_F(OptionsInFileTest, NamesFileKeyAndRange) {
  ExpectRefused("model = \"m\"\nretention = 2\n", {"--retention", "'2'", "above 0 to 1"});
  ExpectRefused("model = \"m\"\nkv-memory = \"1KiB\"\n", {"--kv-memory", "1KiB", "1MiB to"});
  ExpectRefused("model = \"m\"\nretentoin = 0.2\n",
                {"no option retentoin; did you mean retention?"});
  ExpectRefused("model = \"m\"\nkv_memory = \"1GiB\"\n", {"no option kv_memory", "kv-memory?"});
  ExpectRefused("model = \"m\"\nconfig = \"other\"\n", {"no option config"});
  ExpectRefused("model = \"m\"\nhelp = true\n", {"no option help"});
  ExpectRefused("[server]\nmodel = \"m\"\n", {"without sections", "[server]"});
  ExpectRefused("server.model = \"m\"\n", {"without sections", "[server]"});
  ExpectRefused("model = \"m\"\nreflection = maybe\n",
                {"reflection: 'maybe' is not true or false"});
  ExpectRefused("model = \"m\"\nmax-queue = [1, 2]\n", {"max-queue: has 2 values"});
  ExpectRefused("model = \"m\"\nmodel = \"n\"\n", {"model: has 2 values"});
  ExpectRefused("sinks = 1\nmodel = \"m\"\nsinks = 1\n", {"sinks: is given twice"});
  ExpectRefused("model = \"a # b\"\n", {"model: ", "quotes"});
  ExpectRefused("model = \"a\\tb\"\n", {"model: ", "backslash"});
}

TEST_F(OptionsInFileTest, MustBeThere) {
  OptionsExit exit;
  for (const std::string& path : {path_ + ".missing", testing::TempDir()}) {
    const std::vector<const char*> argv = {"ripplekv-server", "--model", "m", "--config",
                                           path.c_str()};
    EXPECT_FALSE(ParseOptions(Program::kServer, static_cast<int>(argv.size()), argv.data(), &exit));
    EXPECT_EQ(exit.code, 2);
    EXPECT_THAT(exit.text, StartsWith("ripplekv-server: --config: the file " + path + " cannot"));
  }
}

}  // namespace
}  // namespace ripplekv
