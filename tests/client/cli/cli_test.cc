// The command `ripplekv` as a process against a scripted service: exit codes, what goes where, and
// signals.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/scripted_service.h"

namespace ripplekv {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

struct Outcome {
  int exit_code = -1;  // -1: ended by `signal`
  int signal = 0;
  std::string out, err;
};

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class CliTest : public testing::Test {
 protected:
  void SetUp() override {
    out_ = testing::TempDir() + "/cli_test.out." + std::to_string(getpid());
    err_ = testing::TempDir() + "/cli_test.err." + std::to_string(getpid());
    in_ = testing::TempDir() + "/cli_test.in." + std::to_string(getpid());
    std::ofstream(in_).close();
    setenv("LC_ALL", "C.UTF-8", 1);
    setenv("COLUMNS", "100", 1);
    setenv("RIPPLEKV_SERVER", service_.address().c_str(), 1);
  }

  void TearDown() override {
    for (const std::string& file : {out_, err_, in_}) unlink(file.c_str());
  }

  std::string InputFile(const std::string& bytes) {
    std::ofstream(in_, std::ios::binary) << bytes;
    return in_;
  }

  pid_t Start(const std::vector<std::string>& arguments, int out_descriptor = -1) {
    std::vector<std::string> words = {RIPPLEKV_COMMAND};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      dup2(open(in_.c_str(), O_RDONLY), 0);
      dup2(out_descriptor >= 0 ? out_descriptor
                               : open(out_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600),
           1);
      dup2(open(err_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), 2);
      for (int descriptor = 3; descriptor < 1024; ++descriptor) close(descriptor);
      execv(argv[0], argv.data());
      _exit(127);
    }
    return child;
  }

  Outcome Wait(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    Outcome outcome;
    if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
    outcome.out = Slurp(out_);
    outcome.err = Slurp(err_);
    return outcome;
  }

  Outcome Run(const std::vector<std::string>& arguments) { return Wait(Start(arguments)); }

  ScriptedService service_;
  std::string out_, err_, in_;
};

TEST_F(CliTest, TextToOutputAndNothingElseWithoutATerminal) {
  const Outcome outcome = Run({"generate", "--prompt", "hello world"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "hello world\n");
  EXPECT_EQ(outcome.err, "");
  ASSERT_TRUE(service_.last_request.has_chat());
  EXPECT_EQ(service_.last_request.chat().messages(0).role(), v1::ROLE_USER);
  EXPECT_FALSE(service_.last_request.has_kv());
}

TEST_F(CliTest, StatsGoToTheSide) {
  const Outcome outcome = Run({"generate", "--prompt", "hello", "--stats"});
  EXPECT_EQ(outcome.out, "hello\n");
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("prompt 4,096"), HasSubstr("20.2 %"), Not(HasSubstr("\033"))));
}

TEST_F(CliTest, JsonIsOneObjectALineAndNothingElse) {
  const Outcome outcome = Run({"--json", "generate", "--prompt", "hello", "--stats"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  std::istringstream lines(outcome.out);
  std::string line, text;
  int count = 0;
  bool complete = false;
  while (std::getline(lines, line)) {
    const auto event = nlohmann::json::parse(line);
    ++count;
    if (event.contains("chunk")) text += event["chunk"]["text"].get<std::string>();
    complete = event.contains("complete");
  }
  EXPECT_EQ(count, 3);
  EXPECT_EQ(text, "hello");
  EXPECT_TRUE(complete);
}

TEST_F(CliTest, FlagsReachTheirFields) {
  const Outcome outcome = Run({"generate",
                               "--raw",
                               "-p",
                               "x",
                               "--temperature",
                               "0.5",
                               "--top-k",
                               "3",
                               "--presence-penalty",
                               "-1.5",
                               "--seed",
                               "18446744073709551615",
                               "--logit-bias",
                               "42:-1.5",
                               "--max-tokens",
                               "9",
                               "--stop",
                               "-a",
                               "--stop",
                               "b b",
                               "--stop-token-id",
                               "5",
                               "--ignore-eos",
                               "--total-positions",
                               "24000",
                               "--ripple-r",
                               "2",
                               "--snapkv-window",
                               "16",
                               "--snapkv-pooling",
                               "mean",
                               "--logprobs",
                               "0",
                               "--next-token-kl",
                               "--request-id",
                               "mine"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const v1::GenerateRequest& request = service_.last_request;
  EXPECT_EQ(request.text(), "x");
  EXPECT_EQ(request.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.sampling().top_k(), 3);
  EXPECT_FALSE(request.sampling().has_top_p());
  EXPECT_EQ(request.sampling().presence_penalty(), -1.5f);
  EXPECT_EQ(request.sampling().seed(), 18446744073709551615u);
  EXPECT_EQ(request.sampling().logit_bias().at(42), -1.5f);
  EXPECT_EQ(request.stopping().max_tokens(), 9);
  EXPECT_THAT(request.stopping().stop_strings(), testing::ElementsAre("-a", "b b"));
  EXPECT_THAT(request.stopping().stop_token_ids(), testing::ElementsAre(5));
  EXPECT_TRUE(request.stopping().ignore_eos());
  EXPECT_EQ(request.kv().size().total_positions(), 24000);
  EXPECT_EQ(request.kv().allocator().ripple().r(), 2);
  EXPECT_FALSE(request.kv().allocator().ripple().has_gamma());
  EXPECT_EQ(request.kv().selector().snapkv().window(), 16);
  EXPECT_EQ(request.kv().selector().snapkv().pooling(), v1::POOLING_MEAN);
  EXPECT_TRUE(request.output().has_logprobs());
  EXPECT_TRUE(request.output().next_token_kl());
  EXPECT_EQ(service_.last_request_id, "mine");
}

TEST_F(CliTest, SelectorsReachTheirFields) {
  const auto selector = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"generate", "-p", "x"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return service_.last_request.kv().selector();
  };
  EXPECT_TRUE(selector({"--snapkv-window", "8"}).has_snapkv());
  EXPECT_TRUE(selector({"--selector", "snapkv"}).has_snapkv());
  EXPECT_FALSE(selector({"--selector", "h2o"}).h2o().has_queries());
  v1::Selector made = selector({"--selector", "h2o", "--selector-queries", "99", "--h2o-normalised",
                                "--snapkv-window", "5"});
  EXPECT_EQ(made.h2o().queries(), 99);
  EXPECT_EQ(made.h2o().window(), 5);
  EXPECT_TRUE(made.h2o().normalised());
  made = selector({"--selector", "recent_attention", "--selector-queries", "64", "--recent-kernel",
                   "5", "--recent-pooling", "max"});
  EXPECT_EQ(made.recent_attention().queries(), 64);
  EXPECT_EQ(made.recent_attention().kernel(), 5);
  EXPECT_EQ(made.recent_attention().pooling(), v1::POOLING_MAX);
  made = selector({"--selector", "mixed", "--mixed-weight", "0", "--snapkv-kernel", "3",
                   "--selector-queries", "64"});
  EXPECT_TRUE(made.mixed().has_weight());
  EXPECT_EQ(made.mixed().snapkv().kernel(), 3);
  EXPECT_EQ(made.mixed().queries(), 64);
  EXPECT_TRUE(selector({"--selector", "streaming_llm"}).has_streaming_llm());
  EXPECT_EQ(selector({"--selector", "random", "--random-seed", "7"}).random().seed(), 7);
}

TEST_F(CliTest, ContextAndGrowthCapReachTheirFields) {
  const Outcome outcome = Run({"generate", "-p", "x", "--context", "the-id", "--growth-cap", "64"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(service_.last_request.context_id(), "the-id");
  EXPECT_EQ(service_.last_request.kv().growth_cap(), 64);
  EXPECT_FALSE(service_.last_request.kv().has_size());
  // 0 is a wish too.
  Run({"generate", "-p", "x", "--growth-cap", "0"});
  EXPECT_TRUE(service_.last_request.kv().has_growth_cap());
  InputFile("a\nb\n");
  EXPECT_EQ(Run({"chat", "--context", "the-id"}).exit_code, 0);
  EXPECT_EQ(service_.last_request.context_id(), "the-id");
}

TEST_F(CliTest, TypesOfKeysAndValuesReachTheirFields) {
  EXPECT_EQ(Run({"generate", "-p", "x", "--kv-type", "int4"}).exit_code, 0);
  EXPECT_EQ(service_.last_request.kv().key_type(), v1::KV_TYPE_INT4);
  EXPECT_EQ(service_.last_request.kv().value_type(), v1::KV_TYPE_INT4);
  EXPECT_EQ(Run({"generate", "-p", "x", "--kv-type", "fp32:bf16"}).exit_code, 0);
  EXPECT_EQ(service_.last_request.kv().key_type(), v1::KV_TYPE_FP32);
  EXPECT_EQ(service_.last_request.kv().value_type(), v1::KV_TYPE_BF16);
}

TEST_F(CliTest, ScoreTellsEachContinuation) {
  const Outcome outcome = Run({"score", "-c", " ab", "--continuations", InputFile("cd\r\n\n-e\n"),
                               "--raw", "-p", "x", "--retention", "0.5", "--context", "the-id"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out,
            "      total   per token  greedy  tokens  continuation\n"
            "    -1.5000     -0.5000  yes          3  ' ab'\n"
            "    -2.0000     -1.0000  no           2  'cd'\n"
            "    -3.0000     -1.5000  no           2  '-e'\n");
  EXPECT_EQ(service_.last_score.text(), "x");
  EXPECT_EQ(service_.last_score.context_id(), "the-id");
  EXPECT_EQ(service_.last_score.kv().size().retention(), 0.5);
  // Without a prompt it is the model's BOS token, or what the context holds.
  EXPECT_EQ(Run({"score", "-c", "a"}).exit_code, 0);
  EXPECT_EQ(service_.last_score.prompt_case(), v1::ScoreRequest::PROMPT_NOT_SET);
  const Outcome json = Run({"score", "-c", "ab", "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["continuations"][0]["logprob"], -1);
  EXPECT_THAT(Run({"score", "-c", "a", "--stats"}).err, HasSubstr("prompt 9"));
  EXPECT_FALSE(service_.last_score.reference());
  EXPECT_EQ(Run({"score", "-c", "a", "--reference"}).exit_code, 0);
  EXPECT_TRUE(service_.last_score.reference());
}

TEST_F(CliTest, ContextsAreMadeListedShownAndDeleted) {
  const std::string id(32, 'b');
  const Outcome made = Run({"context", "create", "-p", "x", "--full"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(made.out, id + "\n");
  EXPECT_EQ(made.err, "");
  EXPECT_TRUE(service_.last_context.kv().size().has_full());
  EXPECT_EQ(service_.last_context.chat().messages(0).content(), "x");
  EXPECT_THAT(Run({"context", "create", "-p", "x", "--stats"}).err, HasSubstr("4,096 tokens"));
  EXPECT_THAT(Run({"context", "list"}).out, AllOf(StartsWith("aa\n"), HasSubstr("\n" + id + "\n")));
  EXPECT_THAT(Run({"context", "show", id}).out, HasSubstr("mean 829 of 4,096 a layer"));
  EXPECT_EQ(nlohmann::json::parse(Run({"--json", "context", "show", id}).out)["context"]["tokens"],
            4096);
  EXPECT_EQ(Run({"context", "delete", id}).out, "Deleted context " + id + ".\n");
  const Outcome gone = Run({"context", "delete", "x"});
  EXPECT_EQ(gone.exit_code, 1);
  EXPECT_THAT(gone.err, HasSubstr("there is no context 'x'"));
}

TEST_F(CliTest, PromptsFromDocumentsMessagesAndIds) {
  EXPECT_EQ(Run({"generate", "--document", InputFile("A tale.\n"), "--question", "Who?"}).out,
            "A tale.\n\nWho?\n");
  InputFile("From input.");
  EXPECT_EQ(Run({"generate", "-d", "-", "-q", "Who?"}).out, "From input.\n\nWho?\n");
  EXPECT_EQ(Run({"generate", "-m", "user:a", "-m", "assistant:b", "-m", "user:c: d"}).out,
            "a|b|c: d\n");
  EXPECT_EQ(Run({"generate", "--system", "s", "-p", "p"}).out, "s|p\n");
  EXPECT_EQ(Run({"generate", "--token-ids", InputFile("[7, 8]")}).exit_code, 0);
  EXPECT_THAT(service_.last_request.token_ids().ids(), testing::ElementsAre(7, 8));
}

TEST_F(CliTest, WrongUsageExitsWith2AndNamesItsReason) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "ripplekv needs a command: generate, chat, "},
      {{"bogus"}, "there is no command 'bogus'"},
      {{"genrate", "-p", "a"}, "did you mean generate?"},
      {{"context", "create", "-d", "a", "-q", "b"}, "there is no option -q"},
      {{"generate"}, "no prompt"},
      {{"generate", "-p", "a", "-f", "b"}, "several prompts"},
      {{"generate", "-d", "a"}, "--question"},
      {{"generate", "-q", "a", "-p", "b"}, "--document"},
      {{"generate", "-p", "a", "--bogus"}, "there is no option --bogus"},
      {{"generate", "--promt", "a"}, "there is no option --promt; did you mean --prompt?"},
      {{"generate", "-p", "a", "--jsn"}, "did you mean --json?"},
      {{"generate", "-p", "a", "--temperature", "x"}, "--temperature"},
      {{"generate", "-p", "a", "--retention", "0.1", "--full"}, "--full"},
      {{"generate", "-p", "a", "--allocator", "other"}, "other"},
      {{"generate", "-p", "a", "--allocator", "uniform", "--ripple-r", "2"}, "--ripple-r"},
      {{"generate", "-p", "a", "--pyramid-beta", "2"}, "--pyramid-beta does not go without"},
      {{"generate", "-p", "a", "--allocator", "positions", "--layer-positions", "1,b"},
       "must be numbers between commas"},
      {{"generate", "-p", "a", "--retention", "1", "--total-bytes", "2"}, "--total-bytes"},
      {{"generate", "-p", "a", "--selector", "other"}, "other"},
      {{"generate", "-p", "a", "--mixed-weight", "1"}, "--mixed-weight does not go without"},
      {{"generate", "-p", "a", "--selector", "h2o", "--snapkv-kernel", "5"},
       "--snapkv-kernel does not go with --selector h2o"},
      {{"generate", "-p", "a", "--logit-bias", "7"}, "ID:BIAS"},
      {{"generate", "-p", "a", "--stop-token-id", "z"}, "'z'"},
      {{"generate", "-p", "caf\xE9"}, "byte 3"},
      {{"generate", "-m", "tool:x"}, "tool:x"},
      {{"generate", "-f", "/no/such/file"}, "/no/such/file"},
      {{"generate", "--token-ids", "/dev/null"}, "token id"},
      {{"generate", "-p", "a", "-p", "b"}, "--prompt is given 2 times: must be given once"},
      {{"generate", "-p", "a", "--timeout", "1", "--timeout", "2"}, "--timeout is given 2 times"},
      {{"generate", "-p", "a", "--kv-type", "int9"}, "--kv-type is 'int9'"},
      {{"generate", "-p", "a", "--kv-type", "int8:"}, "--kv-type is 'int8:'"},
      {{"score", "-p", "a"}, "no continuation"},
      {{"score", "-c", "a", "--growth-cap", "16"}, "--growth-cap"},
      {{"score", "-c", "caf\xE9"}, "byte 3"},
      {{"score", "-f", "-", "--continuations", "-"}, "cannot both be -"},
      {{"context"}, "context needs a command: create, list, show, delete\n"},
      {{"context", "create"}, "no prompt"},
      {{"context", "show"}, "id"},
      {{"plan"}, "--prompt-tokens"},
      {{"plan", "-t", "9", "--sensitivities", "/dev/null"}, "/dev/null"},
      {{"calibrate", "--text-file", "/dev/null"}, "/dev/null"},
      {{"detokenize"}, "token ids"},
      {{"detokenize", "1", "x"}, "'x'"},
      {{"profile", "delete"}, "id"},
      {{"--timeout", "0", "model"}, "--timeout: '0' is not a number of seconds above 0\n"},
      {{"--timeout", "soon", "model"}, "--timeout: 'soon' is not a number of seconds above 0\n"},
      {{"health", "--wait", "-1"}, "--wait: '-1' is not a number of seconds from 0\n"},
      {{"generate", "-p", "a", "--max-tokens", "many"},
       "--max-tokens: 'many' is not a value that it takes\n"},
      {{"generate", "-p", "a", "--seed", "-1"}, "--seed: '-1' is below 0\n"},
      {{"generate", "-p", "a", "--random-seed", "-1"}, "--random-seed: '-1' is below 0\n"},
      {{"generate", "-p", "a", "--shuffle-seed", "-1"}, "--shuffle-seed: '-1' is below 0\n"},
      {{"calibrate", "--seed", "-1"}, "--seed: '-1' is below 0\n"},
      {{"calibrate", "--damage", "010"},
       "--damage: '010' is not a decimal number: must not begin with 0"},
      {{"generate", "-p", "a", "-n", "0x10"}, "--max-tokens: '0x10' is not a decimal number"},
      {{"generate", "-p", "a", "--seed", "007"}, "--seed: '007' is not a decimal number"},
      {{"generate", "-p", "a", "--stop-token-id", "010"},
       "--stop-token-id: '010' is not a decimal number"},
      {{"detokenize", "010"}, "'010' is not a decimal number"},
      {{"profile", "--id"}, "--id needs a value\n"},
      {{"--server", "nowhere", "model"}, "'nowhere'"},
  };
  for (const auto& [arguments, reason] : cases) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << reason << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("ripplekv: "), HasSubstr(reason)));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

TEST_F(CliTest, HelpOfEveryCommandExitsWith0AndFitsTheWidth) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{},
                                             {"generate"},
                                             {"chat"},
                                             {"calibrate"},
                                             {"calibrations"},
                                             {"profile"},
                                             {"profile", "list"},
                                             {"profile", "delete"},
                                             {"score"},
                                             {"context"},
                                             {"context", "create"},
                                             {"context", "list"},
                                             {"context", "show"},
                                             {"context", "delete"},
                                             {"plan"},
                                             {"model"},
                                             {"health"},
                                             {"tokenize"},
                                             {"detokenize"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--help");
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.out,
                AllOf(HasSubstr("Usage:"), HasSubstr("Examples:"), Not(HasSubstr("\n\n\n"))));
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  }
  EXPECT_THAT(Run({"--version"}).out, StartsWith("ripplekv "));
  const std::string all = Run({"--help"}).out;
  for (const char* variable :
       {"RIPPLEKV_SERVER", "RIPPLEKV_TLS)", "RIPPLEKV_TLS_CA)", "RIPPLEKV_CLIENT_CONFIG"}) {
    EXPECT_THAT(all, HasSubstr(variable));
  }
}

TEST_F(CliTest, FailedCallsExitWith1AndSayWhy) {
  const Outcome invalid = Run({"generate", "-p", "invalid"});
  EXPECT_EQ(invalid.exit_code, 1);
  EXPECT_EQ(invalid.err,
            "ripplekv: INVALID_ARGUMENT: the request is not valid\n  sampling.top_p is 7: must be "
            "above 0 to 1\n"
            "  request id: made\n");
  EXPECT_THAT(Run({"generate", "-p", "full"}).err, HasSubstr("try again in 3 s"));
  const Outcome json = Run({"--json", "generate", "-p", "full"});
  EXPECT_EQ(json.exit_code, 1);
  EXPECT_EQ(json.out, "");
  EXPECT_EQ(nlohmann::json::parse(json.err)["error"]["retry_delay_seconds"], 3);
  // What was said before the failure stays, and ends with its line.
  const Outcome cut = Run({"generate", "-p", "cut"});
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_EQ(cut.out, "cut\n");
  EXPECT_THAT(Run({"generate", "-p", "slow", "--timeout", "0.2"}).err,
              HasSubstr("DEADLINE_EXCEEDED"));
}

TEST_F(CliTest, ANamedAddressWithoutAServerTellsHowToStartOne) {
  service_.Stop();
  const Outcome outcome = Run({"model"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no server can be reached at " + service_.address()));
  EXPECT_THAT(outcome.err,
              HasSubstr("ripplekv-server --model FILE --listen " + service_.address()));
  // Not on another machine.
  EXPECT_THAT(Run({"--server", "0.0.0.0:1", "model"}).err,
              AllOf(HasSubstr("no server can be reached"), Not(HasSubstr("Start one")),
                    HasSubstr("Name another:     ripplekv --server HOST:PORT")));
}

TEST_F(CliTest, InterruptCancelsTheCallAndExitsWith130) {
  const pid_t child = Start({"generate", "-p", "slow"});
  // The first half of the answer is there once the call runs.
  for (int i = 0; i < 2000 && Slurp(out_).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  kill(child, SIGINT);
  const Outcome outcome = Wait(child);
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_EQ(outcome.out, "sl\n");
  EXPECT_THAT(outcome.err, HasSubstr("interrupted"));
  for (int i = 0; i < 2000 && !service_.cancelled; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(service_.cancelled);
}

TEST_F(CliTest, ABrokenPipeEndsItQuietlyAndFreesTheServer) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = Start({"generate", "-p", "long"}, pipe_ends[1]);
  close(pipe_ends[1]);
  char byte = 0;
  ASSERT_EQ(read(pipe_ends[0], &byte, 1), 1);
  close(pipe_ends[0]);
  const Outcome outcome = Wait(child);
  EXPECT_EQ(outcome.signal, SIGPIPE);
  EXPECT_EQ(outcome.err, "");
  for (int i = 0; i < 2000 && !service_.cancelled; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(service_.cancelled);
}

TEST_F(CliTest, OutputThatCannotBeWrittenIsAnError) {
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  const Outcome outcome = Wait(Start({"generate", "-p", "hello"}, full));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cannot write to standard output"));
  close(full);
}

TEST_F(CliTest, ChatKeepsTheConversationUntilReset) {
  InputFile("a\n\nb \\\nc\n/help\n/reset\nd\n/bogus\n/quit\nnever\n");
  const Outcome outcome = Run({"chat", "--system", "s"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "s|a\ns|a|s|a|b \nc\ns|d\n");
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("/reset"), HasSubstr("There is no /bogus")));
}

TEST_F(CliTest, AFailedTurnEndsAPipedChat) {
  InputFile("invalid\nnever\n");
  const Outcome outcome = Run({"chat"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out, "");
}

TEST_F(CliTest, HealthIs0OnlyWhenServing) {
  EXPECT_EQ(Run({"health"}).exit_code, 0);
  EXPECT_EQ(Run({"health"}).out, "SERVING\n");
  service_.health_checks = 0;
  service_.serving_after = 3;
  const Outcome not_yet = Run({"health"});
  EXPECT_EQ(not_yet.exit_code, 1);
  EXPECT_EQ(not_yet.out, "NOT_SERVING\n");
  EXPECT_EQ(Run({"health", "--wait", "30"}).exit_code, 0);
  EXPECT_EQ(service_.health_checks, 4);
  const Outcome unknown = Run({"health", "--service", "x"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("NOT_FOUND"));
}

TEST_F(CliTest, CalibrationShowsFewLinesWithoutATerminal) {
  const Outcome outcome =
      Run({"calibrate", "--examples", "2", "--text-file", InputFile("text"), "--force"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(StartsWith("Profile cccc"), EndsWith(".\n")));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("0/24 examples"), HasSubstr("24/24 examples 100 %"),
                                 Not(HasSubstr("\r"))));
  // 101 progress messages arrive within one interval.
  EXPECT_LE(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 10);
  EXPECT_EQ(service_.last_calibration.settings().examples(), 2);
  EXPECT_FALSE(service_.last_calibration.settings().has_eta());
  EXPECT_EQ(service_.last_calibration.corpus().texts().texts(0), "text");
  EXPECT_TRUE(service_.last_calibration.force());
  EXPECT_FALSE(service_.last_calibration.detach());
  EXPECT_EQ(Run({"calibrate", "--detach"}).exit_code, 0);
  EXPECT_TRUE(service_.last_calibration.detach());
  EXPECT_FALSE(service_.last_calibration.has_settings());
  EXPECT_EQ(Run({"calibrate", "--damage", "8", "--damage-retentions", "0.1,0.25"}).exit_code, 0);
  EXPECT_EQ(service_.last_calibration.settings().damage_examples(), 8);
  EXPECT_THAT(service_.last_calibration.settings().damage_retentions(), ElementsAre(0.1, 0.25));
  EXPECT_FALSE(service_.last_calibration.settings().has_damage_storage());
  EXPECT_EQ(Run({"calibrate", "--damage-retentions", "x"}).exit_code, 2);
  EXPECT_EQ(Run({"calibrate", "--sizes", "6", "--size-prompts", "512,1024", "--size-retentions",
                 "0.1,0.25"})
                .exit_code,
            0);
  EXPECT_EQ(service_.last_calibration.settings().size_examples(), 6);
  EXPECT_THAT(service_.last_calibration.settings().size_prompt_tokens(), ElementsAre(512, 1024));
  EXPECT_THAT(service_.last_calibration.settings().size_retentions(), ElementsAre(0.1, 0.25));
  EXPECT_FALSE(service_.last_calibration.settings().has_damage_examples());
}

TEST_F(CliTest, CalibrationsAsATableAndAsJson) {
  const Outcome table = Run({"calibrations"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(StartsWith("job "), HasSubstr("\ncalibration-2  running"),
                               HasSubstr("\ncalibration-1  failed"),
                               HasSubstr("RESOURCE_EXHAUSTED: the disk is full")));
  const Outcome json = Run({"calibrations", "--json"});
  std::istringstream lines(json.out);
  std::vector<std::string> jobs;
  for (std::string line; std::getline(lines, line);) {
    jobs.push_back(nlohmann::json::parse(line)["job_id"]);
  }
  EXPECT_THAT(jobs, testing::ElementsAre("calibration-2", "calibration-1"));
}

TEST_F(CliTest, CalibrationIsCancelledByItsId) {
  const Outcome cancelled = Run({"calibrations", "--cancel", "calibration-2"});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.err;
  EXPECT_THAT(cancelled.out, StartsWith("Cancelled calibration-2 after 12/24 examples"));
  const Outcome json = Run({"calibrations", "--cancel", "calibration-2", "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["calibration"]["state"], "CALIBRATION_STATE_CANCELLED");
  const Outcome unknown = Run({"calibrations", "--cancel", "calibration-9"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("NOT_FOUND: no calibration 'calibration-9'"));
}

TEST_F(CliTest, ProfilesByIdAndByItsStart) {
  EXPECT_THAT(Run({"profile"}).out, HasSubstr("█"));
  EXPECT_THAT(Run({"profile", "--id", "ccc"}).out, HasSubstr(std::string(64, 'c')));
  EXPECT_THAT(Run({"profile", "--id", "c"}).err, HasSubstr("several"));
  EXPECT_EQ(Run({"profile", "--id", "zz"}).exit_code, 1);
  const Outcome list = Run({"profile", "list"});
  EXPECT_THAT(list.out, AllOf(HasSubstr(std::string(64, 'c')), HasSubstr("cd0000")));
}

TEST_F(CliTest, PlansFromAProfilesJson) {
  const Outcome profile = Run({"profile", "--json"});
  ASSERT_EQ(profile.exit_code, 0);
  InputFile(profile.out);
  const Outcome plan = Run(
      {"plan", "-t", "1000", "--sensitivities", "-", "--retention", "0.1", "--min-positions", "0"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("┃"));
  EXPECT_THAT(service_.last_plan_request.inline_().mean_kl(), testing::ElementsAre(0.5, 0.25));
  EXPECT_EQ(service_.last_plan_request.size().retention(), 0.1);
  EXPECT_TRUE(service_.last_plan_request.has_min_positions());
  EXPECT_EQ(service_.last_plan_request.prompt_tokens(), 1000);
}

TEST_F(CliTest, SizesAndAllocatorsReachTheirFields) {
  const auto planned = [&](std::vector<std::string> flags) {
    std::vector<std::string> arguments = {"plan", "-t", "1000"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return service_.last_plan_request;
  };
  EXPECT_EQ(planned({"--total-bytes", "12345678901"}).size().total_bytes(), 12345678901);
  EXPECT_EQ(planned({"--target-mean-kl", "0.05"}).size().target_mean_kl(), 0.05);
  const auto made = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "--allocator");
    return planned(flags).allocator();
  };
  EXPECT_FALSE(planned({}).has_allocator());
  EXPECT_EQ(planned({"--ripple-map", "log"}).allocator().ripple().map(), v1::SIGNAL_MAP_LOG);
  EXPECT_TRUE(made({"uniform"}).has_uniform());
  EXPECT_TRUE(made({"sqrt"}).has_sqrt());
  EXPECT_EQ(made({"damage_curves", "--damage-least-share", "1"}).damage_curves().least_share(), 1);
  EXPECT_EQ(made({"inverse_ripple", "--ripple-r", "2"}).inverse_ripple().ripple().r(), 2);
  const v1::Allocator shuffled =
      made({"shuffled_ripple", "--shuffle-seed", "0", "--ripple-gamma", "3"});
  EXPECT_TRUE(shuffled.shuffled_ripple().has_seed());
  EXPECT_EQ(shuffled.shuffled_ripple().ripple().gamma(), 3);
  const v1::Allocator isolated =
      made({"isolated_damage", "--damage-retention", "0.3", "--ripple-map", "rank"});
  EXPECT_EQ(isolated.isolated_damage().retention(), 0.3);
  EXPECT_EQ(isolated.isolated_damage().ripple().map(), v1::SIGNAL_MAP_RANK);
  EXPECT_EQ(made({"local_response", "--ripple-map", "minmax"}).local_response().ripple().map(),
            v1::SIGNAL_MAP_MIN_MAX);
  EXPECT_EQ(made({"pyramid", "--pyramid-beta", "5"}).pyramid().beta(), 5);
  EXPECT_TRUE(made({"pyramid"}).has_pyramid());
  EXPECT_THAT(made({"multipliers", "--layer-multipliers", "1,0.5"}).multipliers().multipliers(),
              testing::ElementsAre(1, 0.5));
  EXPECT_THAT(made({"positions", "--layer-positions", "70,80"}).positions().positions(),
              testing::ElementsAre(70, 80));
}

TEST_F(CliTest, TokenizeAndDetokenize) {
  EXPECT_EQ(Run({"tokenize", "--raw", "-p", "a\n"}).out, "97 10\n");
  EXPECT_EQ(Run({"tokenize", "--raw", "-p", "a\n", "--tokens"}).out,
            "      97  'a'\n      10  '\\n'\n");
  EXPECT_EQ(Run({"detokenize", "97", "255"}).out, "a\xFF");
  EXPECT_EQ(nlohmann::json::parse(Run({"--json", "detokenize", "97"}).out)["raw"], "YQ==");
}

TEST_F(CliTest, TheFlagNamesTheServerBeforeTheEnvironmentDoes) {
  setenv("RIPPLEKV_SERVER", "nowhere", 1);
  EXPECT_EQ(Run({"model"}).exit_code, 2);
  EXPECT_EQ(Run({"--server", service_.address(), "model"}).exit_code, 0);
  EXPECT_EQ(Run({"model", "--server", service_.address()}).exit_code, 0);
}

TEST_F(CliTest, AFileGivesTheOptionsOfEveryCommand) {
  unsetenv("RIPPLEKV_SERVER");
  const std::string file = InputFile("server = \"" + service_.address() + "\"\njson = true\n");
  const Outcome outcome = Run({"model", "--config", file});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("{"));
  setenv("RIPPLEKV_CLIENT_CONFIG", file.c_str(), 1);
  EXPECT_THAT(Run({"model"}).out, StartsWith("{"));
  EXPECT_THAT(Run({"--server", "nowhere", "model"}).err, HasSubstr("'nowhere'"));
  setenv("RIPPLEKV_SERVER", "nowhere", 1);
  EXPECT_THAT(Run({"model"}).err, HasSubstr("'nowhere'"));
  unsetenv("RIPPLEKV_SERVER");

  InputFile("server = \"nowhere\"\n");
  EXPECT_THAT(Run({"model"}).err, HasSubstr("'nowhere'"));
  for (const auto& [text, problem] : std::vector<std::pair<std::string, std::string>>{
           {"timeout = 0\n", file + ": --timeout: '0' is not a number of seconds above 0\n"},
           {"sever = \"a:1\"\n", file + ": there is no option sever; did you mean server?\n"},
           {"request-id = \"a\"\n", file + ": there is no option request-id\n"},
           {"prompt = \"a\"\n", file + ": there is no option prompt\n"},
           {"[generate]\nprompt = \"a\"\n", file + ": options stand at the top"},
       }) {
    InputFile(text);
    const Outcome refused = Run({"generate", "-p", "a"});
    EXPECT_EQ(refused.exit_code, 2) << text;
    EXPECT_THAT(refused.err, StartsWith("ripplekv: " + problem));
  }
  setenv("RIPPLEKV_CLIENT_CONFIG", "/no/such/file", 1);
  EXPECT_THAT(Run({"model"}).err,
              StartsWith("ripplekv: RIPPLEKV_CLIENT_CONFIG: the file /no/such/file cannot be read: "
                         "No such file"));
  unsetenv("RIPPLEKV_CLIENT_CONFIG");
  EXPECT_THAT(Run({"--config", "/", "model"}).err,
              StartsWith("ripplekv: --config: the file / cannot be read: it is a directory"));
  EXPECT_THAT(Run({"--config", file, "--config", file, "model"}).err,
              HasSubstr("--config is given 2 times"));
}

TEST_F(CliTest, TheTokenInTheEnvironmentWinsOverTheFileOfTheConfig) {
  const std::string file = InputFile("token-file = \"/no/such/token\"\n");
  EXPECT_THAT(Run({"--config", file, "model"}).err, HasSubstr("/no/such/token"));
  setenv("RIPPLEKV_TOKEN", "0123456789abcdef", 1);
  EXPECT_EQ(Run({"--config", file, "model"}).exit_code, 0);
  EXPECT_THAT(Run({"--token-file", "/no/such/other", "model"}).err, HasSubstr("/no/such/other"));
  unsetenv("RIPPLEKV_TOKEN");
}

}  // namespace
}  // namespace ripplekv
