#include "client/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace ripplekv {
namespace {

using testing::HasSubstr;

// What servers and the command make of a file is tested with their options.
class ConfigFileTest : public testing::Test {
 protected:
  ConfigFileTest() : path_(testing::TempDir() + "/config_" + std::to_string(getpid()) + ".toml") {
    app_.add_option("--shown", shown_)->envname("RIPPLEKV_TEST_SHOWN");
    app_.add_option("--hidden", hidden_)->group("");
    app_.add_flag("--never", never_)->configurable(false);
    file_ = ConfigFile::AddTo(app_, "RIPPLEKV_TEST_CONFIG");
  }
  ~ConfigFileTest() override {
    std::remove(path_.c_str());
    unsetenv("RIPPLEKV_TEST_SHOWN");
  }

  // Empty, or what is wrong.
  std::string Parse(const std::string& text, std::vector<std::string> arguments = {}) {
    std::ofstream(path_) << text;
    arguments.insert(arguments.end(), {"--config", path_});
    std::vector<const char*> argv = {"program"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    try {
      app_.parse(static_cast<int>(argv.size()), argv.data());
      return "";
    } catch (const CLI::ParseError& error) {
      return file_->Describe(error);
    }
  }

  const std::string path_;
  CLI::App app_;
  std::shared_ptr<ConfigFile> file_;
  std::string shown_, hidden_;
  bool never_ = false;
};

TEST_F(ConfigFileTest, SaysWhichOptionsItGave) {
  EXPECT_EQ(Parse("shown = \"a\"\nhidden = \"b\"\n"), "");
  EXPECT_EQ(shown_, "a");
  EXPECT_EQ(hidden_, "b");
  EXPECT_TRUE(file_->Gave("shown"));
  EXPECT_TRUE(file_->Gave("hidden"));
  EXPECT_FALSE(file_->Gave("never"));
}

TEST_F(ConfigFileTest, GivesNothingThatAFlagOrVariableGives) {
  setenv("RIPPLEKV_TEST_SHOWN", "c", 1);
  EXPECT_EQ(Parse("shown = \"a\"\nhidden = \"b\"\n", {"--hidden", "d"}), "");
  EXPECT_EQ(shown_, "c");
  EXPECT_EQ(hidden_, "d");
  EXPECT_FALSE(file_->Gave("shown"));
  EXPECT_FALSE(file_->Gave("hidden"));
}

TEST_F(ConfigFileTest, NamesTheNearestOption) {
  EXPECT_EQ(Parse("shwon = 1\n"), path_ + ": there is no option shwon; did you mean shown?");
  EXPECT_THAT(Parse("never = true\n"), HasSubstr("there is no option never"));
  EXPECT_THAT(Parse("config = \"x\"\n"), HasSubstr("there is no option config"));
}

TEST_F(ConfigFileTest, PassesOverNoLine) {
  EXPECT_EQ(Parse("shown = [\"a\",\n"), path_ + ": shown: its list is not closed: ] is missing");
  EXPECT_EQ(Parse("shown = [\"a\" # ]\n"), path_ + ": shown: its list is not closed: ] is missing");
  EXPECT_EQ(Parse("[server]\n"),
            path_ + ": options stand at the top, without sections: no [server]");
  EXPECT_EQ(Parse("[default]\nshown = \"a\"\n"),
            path_ + ": options stand at the top, without sections: no [default]");
  EXPECT_EQ(Parse("a.shown = 1\n"), path_ + ": options stand at the top, without sections: no [a]");
  EXPECT_EQ(Parse("; shown = 1\n"),
            path_ + ": '; shown = 1' is not a line KEY = VALUE (comments begin with #)");
  EXPECT_EQ(Parse("shown\n"),
            path_ + ": 'shown' is not a line KEY = VALUE (comments begin with #)");
  EXPECT_EQ(Parse("x\n"), path_ + ": 'x' is not a line KEY = VALUE (comments begin with #)");
  EXPECT_EQ(Parse("shown = # nothing\n"), path_ + ": shown: has no value");
  EXPECT_EQ(Parse("# shown = [\n\n  shown = \"a\"  # [\r\n"), "");
  EXPECT_EQ(shown_, "a");
}

TEST(FlagName, IsThatOfHiddenOptionsToo) {
  CLI::App app;
  std::string value;
  EXPECT_EQ(FlagName(*app.add_option("-s,--shown", value)), "shown");
  EXPECT_EQ(FlagName(*app.add_option("-i,--hidden", value)->group("")), "hidden");
}

}  // namespace
}  // namespace ripplekv
