// Log-likelihoods of given continuations, beside those that Generate reports for the same tokens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/server/engine/tiny_requests.h"

namespace ripplekv {
namespace {

using ::testing::HasSubstr;

class ScoreTest : public TinyEngineTest {
 protected:
  std::shared_ptr<Collector> Run(GenerateRequest request) {
    auto sink = Submit(std::move(request));
    EXPECT_TRUE(sink->Wait().status().ok()) << sink->status();
    return sink;
  }
  ScoreResult MustScore(ScoreRequest request) {
    auto result = Score(std::move(request));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : ScoreResult{};
  }
  std::string MakeContext(const std::vector<int32_t>& tokens) {
    const auto made = CreateContext(tokens);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? made->id : "";
  }
};

// Totals are sums, and all of it is greedy where each token is.
void ExpectConsistent(const ContinuationScore& score, const std::vector<int32_t>& tokens) {
  ASSERT_EQ(score.tokens.size(), tokens.size());
  double sum = 0;
  bool greedy = true;
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(score.tokens[i].token, tokens[i]);
    EXPECT_LE(score.tokens[i].logprob, 0);
    sum += double{score.tokens[i].logprob};
    greedy = greedy && score.tokens[i].greedy;
  }
  EXPECT_DOUBLE_EQ(score.logprob, sum);
  EXPECT_EQ(score.greedy, greedy);
}

void ExpectLogprobsOf(const ContinuationScore& score, const Collector& generated) {
  ExpectConsistent(score, generated.tokens());
  ASSERT_EQ(score.tokens.size(), generated.logprobs().size());
  for (size_t i = 0; i < generated.logprobs().size(); ++i) {
    const TokenLogprob& logprob = generated.logprobs()[i];
    ASSERT_NEAR(score.tokens[i].logprob, logprob.logprob, 1e-4) << "token " << i;
    ASSERT_EQ(score.tokens[i].greedy, logprob.top[0].first == logprob.token) << "token " << i;
  }
}

void ExpectSameScore(const ContinuationScore& a, const ContinuationScore& b) {
  ASSERT_EQ(a.tokens.size(), b.tokens.size());
  EXPECT_EQ(a.logprob, b.logprob);
  EXPECT_EQ(a.greedy, b.greedy);
  EXPECT_EQ(a.mean_kl, b.mean_kl);
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    EXPECT_EQ(a.tokens[i].token, b.tokens[i].token);
    EXPECT_EQ(a.tokens[i].logprob, b.tokens[i].logprob);  // the same bits
    EXPECT_EQ(a.tokens[i].greedy, b.tokens[i].greedy);
    EXPECT_EQ(a.tokens[i].reference, b.tokens[i].reference);
  }
}

// The second likeliest token of a step where it is told apart from the likeliest.
struct Runner {
  size_t at = 0;
  int32_t token = 0;
  float logprob = 0;
};
Runner RunnerUp(const Collector& generated, size_t from) {
  for (size_t i = from; i < generated.logprobs().size(); ++i) {
    const auto& top = generated.logprobs()[i].top;
    if (top[0].second - top[1].second > 1e-2f) return {i, top[1].first, top[1].second};
  }
  ADD_FAILURE() << "every step is a tie";
  return {};
}

// Over the full cache and over compressed ones; beyond a chunk and several tiles of logits.
TEST_F(ScoreTest, GeneratedTokensScoreAsTheyWereGenerated) {
  StartTiny();
  for (const Size& size : {Size(Full{}), Size(Retention{0.3})}) {
    for (size_t length : {1u, 40u, 300u}) {
      for (int32_t output : {1, 2, 17, 18, 257, 258, 600}) {
        SCOPED_TRACE(std::to_string(length) + " + " + std::to_string(output));
        GenerateRequest request = Sampled(TinyAsk(TinyTokens(length, length), output), length);
        request.kv.size = size;
        const auto generated = Run(request);
        ScoreRequest score;
        score.prompt = request.prompt;
        score.kv = request.kv;
        score.continuations = {generated->tokens()};
        const ScoreResult result = MustScore(std::move(score));
        ASSERT_EQ(result.continuations.size(), 1u);
        ExpectLogprobsOf(result.continuations[0], *generated);
        EXPECT_EQ(result.usage.completion_tokens, output);
        EXPECT_EQ(result.cache.kept_bytes, generated->completion().cache.kept_bytes);
        if (HasFailure()) return;
      }
    }
  }
  ExpectAllFree();
}

TEST_F(ScoreTest, AnotherTokenIsNotGreedyAndHasItsOwnProbability) {
  StartTiny();
  const std::vector<int32_t> prompt = TinyTokens(120, 1);
  const auto generated = Run(TinyAsk(prompt, 40));
  for (size_t from : {0u, 1u, 20u}) {
    const Runner other = RunnerUp(*generated, from);
    std::vector<int32_t> tokens = generated->tokens();
    tokens[other.at] = other.token;
    ScoreRequest request;
    request.prompt = prompt;
    request.continuations = {tokens};
    const ScoreResult result = MustScore(std::move(request));
    const ContinuationScore& score = result.continuations[0];
    ExpectConsistent(score, tokens);
    EXPECT_FALSE(score.greedy);
    EXPECT_FALSE(score.tokens[other.at].greedy);
    EXPECT_NEAR(score.tokens[other.at].logprob, other.logprob, 1e-3);
    for (size_t i = 0; i < other.at; ++i) EXPECT_TRUE(score.tokens[i].greedy) << "token " << i;
  }
}

// With a question and without one: then the context's own logits come first.
TEST_F(ScoreTest, OverAContextAsGenerateDoes) {
  StartTiny();
  const std::vector<int32_t> document = TinyTokens(350, 2);
  const std::string id = MakeContext(document);
  GenerateRequest ask = Sampled(TinyAsk(TinyTokens(20, 3), 70), 1);
  ask.context = Lease(id);
  const auto generated = Run(ask);
  ScoreRequest request;
  request.prompt = ask.prompt;
  request.context = Lease(id);
  request.continuations = {generated->tokens()};
  ScoreResult result = MustScore(request);
  ASSERT_EQ(result.continuations.size(), 1u);
  ExpectLogprobsOf(result.continuations[0], *generated);
  EXPECT_EQ(result.usage.context_tokens, 350);
  EXPECT_EQ(result.usage.prompt_tokens, 20);

  // Nothing dropped yet: what follows the document's last token does not depend on the cache.
  const auto next = Run(TinyAsk(document, 1));
  // The document compressed as the plan in force says, and what the plain prompt's decode gives.
  const auto straight = Run(Sampled(TinyAsk(document, 60), 2));
  request.prompt.clear();
  request.context = Lease(id);
  request.continuations = {next->tokens(), straight->tokens()};
  result = MustScore(request);
  EXPECT_EQ(result.continuations[0].tokens[0].logprob, next->logprobs()[0].logprob);
  EXPECT_TRUE(result.continuations[0].greedy);
  ExpectLogprobsOf(result.continuations[1], *straight);
  EXPECT_EQ(result.usage.context_tokens, 350);
  EXPECT_EQ(result.usage.prompt_tokens, 0);
}

struct SliceCounter : EngineObserver {
  void OnPrefill(int64_t prompt_tokens, int64_t, int64_t) override { tokens += prompt_tokens; }
  void OnStep(const StepRecord& step) override {
    chunks += step.slice == StepRecord::Slice::kPrefillChunk;
    tiles += step.slice == StepRecord::Slice::kLogits;
    decodes += step.decode_rows;
  }
  std::atomic<int64_t> tokens{0}, chunks{0}, tiles{0}, decodes{0};
};

TEST_F(ScoreTest, ContinuationsShareOnePrefill) {
  SliceCounter counter;
  StartTiny({}, 1, &counter);
  ScoreRequest request;
  request.prompt = TinyTokens(300, 4);
  // 0, 1, 16, 17 and 300 rows are pushed through: the last token never is.
  for (size_t length : {1u, 2u, 17u, 18u, 301u}) {
    request.continuations.push_back(TinyTokens(length, length));
  }
  const ScoreResult result = MustScore(std::move(request));
  EXPECT_EQ(result.usage.prompt_tokens, 300);
  EXPECT_EQ(result.usage.completion_tokens, 1 + 2 + 17 + 18 + 301);
  ASSERT_TRUE(engine_->Drain(Clock::now() + seconds(60)).ok());
  engine_->Shutdown();
  EXPECT_EQ(counter.tokens, 300);
  EXPECT_EQ(counter.chunks, TinyModel::kLayers * (2 + 1 + 1 + 1 + 2));
  EXPECT_EQ(counter.tiles, 1 + 1 + 2 + 19);  // 16 rows of logits a slice
  EXPECT_EQ(counter.decodes, 0);
}

// Continuations go through once more, in chunks too; the prompt does not.
TEST_F(ScoreTest, AReferenceIsASecondPassOfTheContinuations) {
  SliceCounter counter;
  StartTiny({}, 1, &counter);
  ScoreRequest request;
  request.reference = true;
  request.prompt = TinyTokens(300, 4);
  for (size_t length : {1u, 2u, 17u, 18u, 301u}) {
    request.continuations.push_back(TinyTokens(length, length));
  }
  MustScore(std::move(request));
  ASSERT_TRUE(engine_->Drain(Clock::now() + seconds(60)).ok());
  engine_->Shutdown();
  EXPECT_EQ(counter.tokens, 300);
  EXPECT_EQ(counter.chunks, TinyModel::kLayers * (2 + 2 * (1 + 1 + 1 + 2)));
  EXPECT_EQ(counter.tiles, 1 + 1 + 2 + 19);
}

// Exactly nothing: the same arithmetic over the same rows.
TEST_F(ScoreTest, WhereNothingIsDroppedNothingDiverges) {
  for (ComputeType compute : {ComputeType::kF32, ComputeType::kBf16}) {
    for (int threads : {1, 3}) {
      compute_ = compute;
      StartTiny({}, threads);
      ScoreRequest request;
      request.reference = true;
      request.prompt = TinyTokens(330, 21);
      for (size_t length : {1u, 18u, 280u}) {
        request.continuations.push_back(TinyTokens(length, length));
      }
      for (const Size& size : {Size(Full{}), Size(Retention{1})}) {
        request.kv.size = size;
        for (const ContinuationScore& score : MustScore(request).continuations) {
          EXPECT_EQ(score.mean_kl, 0.0);
          for (size_t i = 0; i < score.tokens.size(); ++i) {
            const TokenScore& token = score.tokens[i];
            ASSERT_TRUE(token.reference.has_value());
            EXPECT_EQ(token.reference->kl, 0.0) << "token " << i;
            EXPECT_TRUE(token.reference->top1_agrees);
            if (i > 0) {
              EXPECT_EQ(token.reference->logprob, token.logprob);
            }
          }
        }
      }
    }
  }
}

// Rows that are stored more coarsely than they were computed are compared with those that were not.
TEST_F(ScoreTest, TheReferenceIsAsItWasComputed) {
  StartTiny();
  ScoreRequest request;
  request.reference = true;
  request.kv.size = Full{};
  request.prompt = TinyTokens(200, 22);
  request.continuations = {TinyTokens(40, 23)};
  const ScoreResult exact = MustScore(request);
  request.kv.key_type = request.kv.value_type = KvType::kInt4;
  const ScoreResult coarse = MustScore(request);
  EXPECT_GT(*coarse.continuations[0].mean_kl, 1e-6);
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(coarse.continuations[0].tokens[i].reference->logprob,
              exact.continuations[0].tokens[i].reference->logprob);
  }
}

// Both whole distributions, a token at a time, from scores without a reference: the oracle of KL
// and agreement.
TEST_F(ScoreTest, DivergenceIsThatOfTheWholeDistributions) {
  StartTiny();
  const std::vector<int32_t> prompt = TinyTokens(260, 24);
  const std::vector<int32_t> continuation = TinyTokens(150, 25);
  const int vocab = weights_->config().vocab;
  ScoreRequest request;
  request.prompt = prompt;
  request.reference = true;
  request.kv.size = Retention{0.2};
  request.continuations = {continuation};
  const ScoreResult result = MustScore(request);
  const ContinuationScore& score = result.continuations[0];
  ExpectConsistent(score, continuation);

  // log p of every token after the first `at` of the continuation.
  const auto distribution = [&](size_t at, const Size& size) {
    std::vector<double> log_probs;
    while (static_cast<int>(log_probs.size()) < vocab) {
      ScoreRequest all;
      all.prompt = prompt;
      all.kv.size = size;
      const auto begin = static_cast<int32_t>(log_probs.size());
      for (int32_t id = begin; id < std::min(vocab, begin + 200); ++id) {
        all.continuations.emplace_back(continuation.begin(), continuation.begin() + at);
        all.continuations.back().push_back(id);
      }
      for (const ContinuationScore& one : MustScore(std::move(all)).continuations) {
        log_probs.push_back(double{one.tokens.back().logprob});
      }
    }
    return log_probs;
  };
  // The model is all but certain of most tokens: those of the largest divergence say the most.
  std::vector<size_t> places(continuation.size() - 1);
  std::iota(places.begin(), places.end(), size_t{1});
  std::sort(places.begin(), places.end(), [&](size_t a, size_t b) {
    return score.tokens[a].reference->kl > score.tokens[b].reference->kl;
  });
  places.resize(3);
  places.insert(places.end(), {1, 17});
  int agree = 0;
  for (const size_t at : places) {
    SCOPED_TRACE("token " + std::to_string(at));
    const std::vector<double> p = distribution(at, Full{});
    const std::vector<double> q = distribution(at, Retention{0.2});
    double kl = 0;
    for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
    const ReferenceScore& reference = *score.tokens[at].reference;
    EXPECT_NEAR(reference.kl, kl, 1e-5 + 1e-3 * kl);
    EXPECT_NEAR(reference.logprob, p[static_cast<size_t>(continuation[at])], 1e-4);
    const bool same = std::max_element(p.begin(), p.end()) - p.begin() ==
                      std::max_element(q.begin(), q.end()) - q.begin();
    EXPECT_EQ(reference.top1_agrees, same);
    agree += same;
  }
  EXPECT_GT(score.tokens[places[2]].reference->kl, 1e-3)
      << "compression must be visible in what this test compares";
  EXPECT_LT(agree, 5) << "the test needs a token where they disagree";
  EXPECT_GT(agree, 0);

  double sum = 0;
  for (const TokenScore& token : score.tokens) sum += token.reference->kl;
  EXPECT_DOUBLE_EQ(*score.mean_kl, sum / 150);
}

// As next_token_kl, but for P, which is queried again too: that differs by the floor.
TEST_F(ScoreTest, TheFirstTokenDivergesAsNextTokenKlSays) {
  StartTiny();
  std::shared_ptr<Collector> generated;
  GenerateRequest ask;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    ask = TinyAsk(TinyTokens(300, seed), 1);
    ask.next_token_kl = true;
    generated = Run(ask);
    if (*generated->completion().next_token_kl > 1e-3) break;
  }
  ScoreRequest request;
  request.reference = true;
  request.prompt = ask.prompt;
  request.continuations = {generated->tokens()};
  const TokenScore token = MustScore(request).continuations[0].tokens[0];
  EXPECT_EQ(token.logprob, generated->logprobs()[0].logprob);
  EXPECT_TRUE(token.greedy);
  const double kl = *generated->completion().next_token_kl;
  EXPECT_GT(kl, 1e-3) << "compression must be visible in what this test compares";
  EXPECT_NEAR(token.reference->kl, kl, 1e-5 + 1e-3 * kl);
  EXPECT_NEAR(token.reference->logprob, token.logprob, 1e-4);
}

TEST_F(ScoreTest, AReferenceChangesNothingElse) {
  StartTiny();
  ScoreRequest request;
  request.prompt = TinyTokens(300, 27);
  request.continuations = {TinyTokens(70, 28), TinyTokens(1, 29)};
  const ScoreResult without = MustScore(request);
  request.reference = true;
  const ScoreResult with = MustScore(request);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(without.continuations[i].mean_kl.has_value());
    ContinuationScore plain = with.continuations[i];
    plain.mean_kl.reset();
    for (TokenScore& token : plain.tokens) token.reference.reset();
    ExpectSameScore(plain, without.continuations[i]);
  }
  EXPECT_EQ(with.cache.kept_bytes, without.cache.kept_bytes);
  EXPECT_GT(with.cache.peak_prefill_bytes, without.cache.peak_prefill_bytes);
}

// Both caches are reserved at once, or the refusal says for what.
TEST_F(ScoreTest, AReferenceTakesTheFullCachesPages) {
  ScoreRequest request;
  request.prompt = TinyTokens(320, 30);
  request.continuations = {TinyTokens(5, 31)};
  request.kv.size = Retention{0.1};
  // 32 and 320 rows a layer, 32 a page; the plan's shares are uneven, so a page more or less.
  const auto fits = [&](int64_t pages, bool reference) {
    StartTiny(TinyArena(pages, 400));
    request.reference = reference;
    return Score(request).status();
  };
  int64_t plain = TinyModel::kLayers;
  while (!fits(plain, false).ok()) ++plain;
  const int64_t both = plain + TinyModel::kLayers * 10;
  EXPECT_TRUE(fits(both, true).ok());
  ExpectAllFree();
  const absl::Status refused = fits(both - 1, true);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the full cache beside them (reference)"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("score without reference"));
}

TEST_F(ScoreTest, BitsDoNotDependOnTheOtherContinuationsOrOnThreads) {
  StartTiny();
  const std::vector<int32_t> prompt = TinyTokens(200, 5);
  std::vector<std::vector<int32_t>> continuations;
  for (size_t length : {30u, 1u, 280u, 2u, 17u, 30u}) {
    continuations.push_back(TinyTokens(length, 100 + length));
  }
  std::vector<ContinuationScore> alone;
  for (const auto& continuation : continuations) {
    ScoreRequest request;
    request.reference = true;
    request.prompt = prompt;
    request.continuations = {continuation};
    alone.push_back(MustScore(std::move(request)).continuations[0]);
  }
  StartTiny({}, 3);
  ScoreRequest all;
  all.reference = true;
  all.prompt = prompt;
  all.continuations = continuations;
  const ScoreResult forward = MustScore(all);
  std::reverse(all.continuations.begin(), all.continuations.end());
  const ScoreResult backward = MustScore(all);
  ASSERT_EQ(forward.continuations.size(), continuations.size());
  for (size_t i = 0; i < continuations.size(); ++i) {
    SCOPED_TRACE("continuation " + std::to_string(i));
    ExpectConsistent(forward.continuations[i], continuations[i]);
    ExpectSameScore(forward.continuations[i], alone[i]);
    ExpectSameScore(backward.continuations[continuations.size() - 1 - i], alone[i]);
  }
  ExpectSameScore(alone[0], alone[5]);
}

TEST_F(ScoreTest, AllIsFreeAfterwardsHoweverItEnds) {
  StartTiny();
  ScoreRequest request;
  request.prompt = TinyTokens(300, 6);
  request.reference = true;
  request.continuations.assign(ScoreRequest::kMaxContinuations, TinyTokens(200, 7));
  auto cancelled = std::make_shared<ScoreAnswer>();
  Gate started;
  cancelled->on_start = [&] { started.Open(); };
  auto handle = engine_->Submit(request, cancelled);
  ASSERT_TRUE(handle.ok()) << handle.status();
  started.Wait();
  EXPECT_TRUE(Eventually([&] { return engine_->stats().kv_used_bytes > 0; }));
  EXPECT_GT(engine_->stats().work_reserved_bytes, 0u);
  (*handle)->Cancel();
  EXPECT_EQ(cancelled->Wait().status().code(), absl::StatusCode::kCancelled);
  ExpectAllFree();
  EXPECT_EQ(engine_->stats().work_reserved_bytes, 0u);

  request.deadline = Clock::now() + std::chrono::milliseconds(20);
  auto late = std::make_shared<ScoreAnswer>();
  late->on_start = [] { std::this_thread::sleep_for(std::chrono::milliseconds(40)); };
  ASSERT_TRUE(engine_->Submit(request, late).ok());
  EXPECT_EQ(late->Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
  ExpectAllFree();

  request.deadline.reset();
  request.continuations.resize(2);
  MustScore(request);
  ExpectAllFree();
  EXPECT_EQ(engine_->stats().work_reserved_bytes, 0u);
}

TEST_F(ScoreTest, RefusalsNameTheField) {
  EngineOptions options;
  options.max_prompt_tokens = 500;
  StartTiny(options);
  const std::string id = MakeContext(TinyTokens(100, 8));
  ScoreRequest good;
  good.prompt = TinyTokens(10, 9);
  good.continuations.assign(5, TinyTokens(3, 10));
  const auto expect_refused = [&](ScoreRequest request, const std::string& begin) {
    auto refused = engine_->Submit(std::move(request), std::make_shared<ScoreAnswer>());
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << begin;
    EXPECT_THAT(std::string(refused.status().message()), ::testing::StartsWith(begin));
  };
  ScoreRequest bad = good;
  bad.continuations[3].clear();
  expect_refused(bad, "continuations[3] is 0: must be 1 to 491 tokens");
  bad.continuations[3] = TinyTokens(492, 11);
  expect_refused(bad, "continuations[3] is 492: must be 1 to 491 tokens");
  bad.continuations[3] = TinyTokens(491, 11);
  EXPECT_EQ(MustScore(bad).continuations[3].tokens.size(), 491u);
  bad.context = Lease(id);
  expect_refused(bad, "continuations[3] is 491: must be 1 to 391 tokens");
  bad.continuations[3] = {1, 260};
  expect_refused(bad, "continuations[3][1] is 260");
  bad.continuations[3] = {1, -1};
  expect_refused(bad, "continuations[3][1] is -1");
  bad = good;
  bad.continuations.clear();
  expect_refused(bad, "continuations is 0");
  bad.continuations.assign(257, {1});
  expect_refused(bad, "continuations is 257");
  bad = good;
  bad.prompt.clear();
  expect_refused(bad, "prompt is empty");
  bad.context = Lease(id);
  EXPECT_EQ(MustScore(bad).usage.prompt_tokens, 0);
  bad = good;
  bad.prompt = TinyTokens(501, 12);
  expect_refused(bad, "prompt is 501 tokens");
  bad = good;
  bad.prompt[4] = 999;
  expect_refused(bad, "prompt[4] is 999");
  bad = good;
  bad.kv.growth_cap = 16;
  expect_refused(bad, "kv.growth_cap is 16");
  bad = good;
  bad.kv.size = Retention{2};
  EXPECT_EQ(engine_->Submit(bad, std::make_shared<ScoreAnswer>()).status().code(),
            absl::StatusCode::kInvalidArgument);
  bad.kv.size = Retention{0.5};
  bad.context = Lease(id);
  expect_refused(bad, "kv is given with context_id");
  bad = good;
  bad.context = Lease(id);
  bad.reference = true;
  expect_refused(bad, "reference is true: it is not defined over a context");
}

}  // namespace
}  // namespace ripplekv
