// Requests over contexts: stored once, never changed, right by an independent way to the same
// answer, and gone only when nobody uses them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/engine/tiny_requests.h"

namespace ripplekv {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

KvParams FullCache() {
  KvParams kv;
  kv.size = Full{};
  return kv;
}

class ContextTest : public TinyEngineTest {
 protected:
  std::string MakeContext(const std::vector<int32_t>& tokens, const KvParams& kv = {}) {
    auto made = CreateContext(tokens, "anonymous", kv);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? made->id : "";
  }
  GenerateRequest AskOver(const std::string& id, std::vector<int32_t> question,
                          int32_t max_tokens) {
    GenerateRequest request = TinyAsk(std::move(question), max_tokens);
    request.context = Lease(id);
    return request;
  }
  std::shared_ptr<Collector> Run(GenerateRequest request) {
    auto sink = Submit(std::move(request));
    EXPECT_TRUE(sink->Wait().status().ok()) << sink->status();
    return sink;
  }
  bool Known(const std::string& id) { return engine_->contexts().Get("anonymous", id).ok(); }
  size_t PageBytes() const { return engine_->kv_layout().page_bytes; }
};

TEST_F(ContextTest, IsStoredOnceWhoeverUsesIt) {
  StartTiny();
  const auto made = CreateContext(TinyTokens(300, 1));
  ASSERT_TRUE(made.ok()) << made.status();
  const KvPageLayout layout = engine_->kv_layout();
  size_t context_bytes = 0;  // of its pages
  for (const LayerUsage& layer : made->layers) {
    context_bytes += static_cast<size_t>(layout.PagesFor(layer.positions)) * PageBytes();
  }
  ASSERT_EQ(engine_->stats().kv_used_bytes, context_bytes);

  constexpr int kRequests = 6;
  constexpr int kOutput = 200;
  std::vector<std::shared_ptr<Collector>> sinks(kRequests);
  std::vector<int64_t> question(kRequests), emitted(kRequests), before(kRequests);
  int looks = 0;
  Gate all_there;
  for (int i = 0; i < kRequests; ++i) {
    sinks[i] = std::make_shared<Collector>();
    sinks[i]->on_start = [&] { all_there.Wait(); };
    sinks[i]->on_token = [&, i](int tokens) {
      emitted[i] = tokens;
      // The last one admitted is the last one in a step: now all got their token, and the figures
      // are those at the end of the step before, when everyone had `before`.
      if (i != kRequests - 1) return;
      const bool all_decode = std::count(before.begin(), before.end(), 0) == 0;
      if (all_decode && emitted[0] < kOutput) {
        const EngineStats stats = engine_->stats();
        size_t total = 0;
        for (size_t l = 0; l < stats.layers.size(); ++l) {
          const int64_t base = made->layers[l].positions;
          int64_t pages = layout.PagesFor(base);
          for (int r = 0; r < kRequests; ++r) {
            pages +=
                layout.PagesFor(base + question[r] + before[r] - 1) - base / layout.rows_per_page;
          }
          EXPECT_EQ(stats.layers[l].used_bytes, static_cast<size_t>(pages) * PageBytes())
              << "layer " << l;
          total += static_cast<size_t>(pages) * PageBytes();
        }
        EXPECT_EQ(stats.kv_used_bytes, total);
        EXPECT_EQ(stats.context_bytes, static_cast<size_t>(made->page_bytes));
        EXPECT_EQ(stats.contexts, 1);
        ++looks;
      }
      before = emitted;
    };
  }
  for (int i = 0; i < kRequests; ++i) {
    question[i] = 3 + 11 * i;
    Submit(AskOver(made->id, TinyTokens(static_cast<size_t>(question[i]), 10 + i), kOutput),
           sinks[i]);
  }
  EXPECT_EQ(engine_->contexts().Get("anonymous", made->id)->users, kRequests);
  all_there.Open();
  for (auto& sink : sinks) EXPECT_TRUE(sink->Wait().status().ok()) << sink->status();
  EXPECT_GT(looks, 40);
  EXPECT_TRUE(Eventually([&] { return engine_->stats().kv_used_bytes == context_bytes; }));
  EXPECT_EQ(engine_->stats().kv_reserved_bytes, 0u);
  ASSERT_TRUE(engine_->contexts().Delete("anonymous", made->id).ok());
  EXPECT_TRUE(Eventually([&] { return engine_->stats().kv_used_bytes == 0; }));
  ExpectAllFree();
}

// Whatever ran over it: long questions, answers that are compacted, scores.
TEST_F(ContextTest, ItsRowsNeverChange) {
  StartTiny();
  const std::string id = MakeContext(TinyTokens(333, 2));
  const std::vector<int32_t> question = TinyTokens(9, 3);
  const auto first = Run(AskOver(id, question, 40));
  std::vector<std::shared_ptr<Collector>> others;
  for (int i = 0; i < 5; ++i) {
    GenerateRequest other = AskOver(id, TinyTokens(static_cast<size_t>(1 + 90 * i), 20 + i), 120);
    if (i % 2 == 0) other.kv.growth_cap = 16;
    other.sampling.temperature = 1;
    other.sampling.seed = static_cast<uint64_t>(i);
    others.push_back(Submit(std::move(other)));
  }
  auto beside = Submit(AskOver(id, question, 40));
  ScoreRequest score;
  score.context = Lease(id);
  score.continuations = {TinyTokens(200, 4), TinyTokens(3, 5)};
  EXPECT_TRUE(Score(std::move(score)).ok());
  int64_t compactions = 0;
  for (auto& other : others) {
    EXPECT_TRUE(other->Wait().status().ok()) << other->status();
    compactions += other->completion().compactions;
  }
  EXPECT_GT(compactions, 0);
  beside->Wait();
  ExpectSameOutput(*first, *beside);
  ExpectSameOutput(*first, *Run(AskOver(id, question, 40)));
}

// The independent check of positions and attention across the seam: the whole prompt at once.
TEST_F(ContextTest, AFullContextAnswersAsTheWholePromptDoes) {
  StartTiny();
  for (size_t context : {1u, 31u, 32u, 255u, 256u, 300u, 513u}) {
    const std::vector<int32_t> document = TinyTokens(context, context);
    const std::string id = MakeContext(document, FullCache());
    for (size_t length : {1u, 2u, 30u, 257u}) {
      SCOPED_TRACE(std::to_string(context) + " + " + std::to_string(length));
      const std::vector<int32_t> question = TinyTokens(length, 1000 + length);
      const auto over = Run(Sampled(AskOver(id, question, 50), length));
      GenerateRequest whole = Sampled(TinyAsk(Joined(document, question), 50), length);
      whole.kv = FullCache();
      ExpectCloseOutput(*over, *Run(std::move(whole)), 1e-4f);
      EXPECT_EQ(over->completion().usage.context_tokens, static_cast<int64_t>(context));
      EXPECT_EQ(over->completion().usage.prompt_tokens, static_cast<int64_t>(length));
      for (const LayerUsage& layer : over->completion().cache.layers) {
        EXPECT_EQ(layer.positions, static_cast<int64_t>(context + length));
      }
      if (HasFailure()) return;
    }
    ASSERT_TRUE(engine_->contexts().Delete("anonymous", id).ok());
  }
}

TEST_F(ContextTest, PenaltiesCountItsTokens) {
  StartTiny();
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const std::vector<int32_t> document = TinyTokens(700, 40 + seed);  // nearly every byte
    const std::vector<int32_t> question = TinyTokens(1, 50 + seed);
    const std::string id = MakeContext(document, FullCache());
    GenerateRequest penalised = AskOver(id, question, 30);
    penalised.sampling.repetition_penalty = 8;
    const auto over = Run(std::move(penalised));
    GenerateRequest whole = TinyAsk(Joined(document, question), 30);
    whole.kv = FullCache();
    whole.sampling.repetition_penalty = 8;
    ExpectCloseOutput(*over, *Run(std::move(whole)), 1e-3f);
    EXPECT_EQ(std::count(document.begin(), document.end(), over->tokens()[0]), 0)
        << "seed " << seed << ": a token that was not penalised was likelier";
    ASSERT_TRUE(engine_->contexts().Delete("anonymous", id).ok());
  }
}

struct PrefillCounter : EngineObserver {
  void OnPrefill(int64_t prompt_tokens, int64_t kept, int64_t dropped) override {
    tokens += prompt_tokens;
    EXPECT_EQ(kept + dropped, prompt_tokens * TinyModel::kLayers);
    drops += dropped;
  }
  void OnStep(const StepRecord& step) override {
    chunks += step.slice == StepRecord::Slice::kPrefillChunk;
  }
  std::atomic<int64_t> tokens{0}, drops{0}, chunks{0};
};

TEST_F(ContextTest, OnlyTheQuestionsAreThenPrefilled) {
  PrefillCounter counter;
  StartTiny({}, 1, &counter);
  const std::string id = MakeContext(TinyTokens(600, 6));
  EXPECT_EQ(counter.tokens, 600);
  EXPECT_GT(counter.drops, 0);
  const int64_t dropped = counter.drops;
  const int64_t chunks = counter.chunks;
  EXPECT_EQ(chunks, 3 * TinyModel::kLayers);
  int64_t asked = 0;
  for (size_t i = 1; i <= 20; ++i) {
    const auto answer = Run(AskOver(id, TinyTokens(i, i), 3));
    EXPECT_EQ(answer->completion().usage.prompt_tokens, static_cast<int64_t>(i));
    EXPECT_EQ(answer->completion().usage.context_tokens, 600);
    asked += static_cast<int64_t>(i);
  }
  ASSERT_TRUE(engine_->Drain(Clock::now() + seconds(60)).ok());
  engine_->Shutdown();  // the observer goes before the engine
  EXPECT_EQ(counter.tokens - 600, asked);
  EXPECT_EQ(counter.drops, dropped) << "every row of a question is kept";
  EXPECT_EQ(counter.chunks - chunks, 20 * TinyModel::kLayers);
}

TEST_F(ContextTest, ADeletedOneServesThoseWhoUseIt) {
  StartTiny();
  const std::string id = MakeContext(TinyTokens(300, 7));
  const std::vector<int32_t> question = TinyTokens(12, 8);
  const auto expected = Run(AskOver(id, question, 40));
  auto running = std::make_shared<Collector>();
  Gate decoding, deleted;
  running->on_token = [&](int tokens) {
    if (tokens != 5) return;
    decoding.Open();
    deleted.Wait();
  };
  Submit(AskOver(id, question, 40), running);
  decoding.Wait();
  auto queued = Submit(AskOver(id, question, 40));  // its prompt is not begun yet
  ASSERT_TRUE(engine_->contexts().Delete("anonymous", id).ok());
  EXPECT_EQ(engine_->contexts().Use("anonymous", id, Clock::now()).status().code(),
            absl::StatusCode::kNotFound);
  deleted.Open();
  running->Wait();
  queued->Wait();
  ExpectSameOutput(*expected, *running);
  ExpectSameOutput(*expected, *queued);
  EXPECT_TRUE(Eventually([&] { return engine_->stats().kv_used_bytes == 0; }));
  ExpectAllFree();
  EXPECT_EQ(engine_->stats().contexts, 0);
}

TEST_F(ContextTest, AnUnusedOneExpiresAndAUsedOneDoesNot) {
  EngineOptions options;
  options.context_idle = milliseconds(60);
  StartTiny(options);
  // On a slow machine one may be gone before it is asked for.
  std::string id;
  std::shared_ptr<const ContextLease> lease;
  ASSERT_TRUE(Eventually([&] {
    const auto made = CreateContext(TinyTokens(200, 9));
    if (!made.ok()) return false;
    id = made->id;
    auto used = engine_->contexts().Use("anonymous", id, Clock::now());
    if (used.ok()) lease = std::make_shared<const ContextLease>(*std::move(used));
    return used.ok();
  }));
  auto running = std::make_shared<Collector>();
  running->on_token = [&](int tokens) {
    if (tokens == 2) std::this_thread::sleep_for(milliseconds(200));
  };
  GenerateRequest request = TinyAsk(TinyTokens(4, 10), 20);
  request.context = std::exchange(lease, nullptr);
  GenerateRequest queued = request;
  Submit(std::move(request), running);
  auto second = Submit(std::move(queued));
  EXPECT_TRUE(running->Wait().status().ok()) << running->status();
  EXPECT_TRUE(second->Wait().status().ok()) << second->status();
  ExpectSameOutput(*running, *second);
  EXPECT_TRUE(Eventually([&] { return engine_->stats().kv_used_bytes == 0; }));
  EXPECT_GE(engine_->stats().contexts_expired, 1);
  EXPECT_EQ(engine_->contexts().Use("anonymous", id, Clock::now()).status().code(),
            absl::StatusCode::kNotFound);
  ExpectAllFree();
}

TEST_F(ContextTest, ForRoomOnlyUnusedOnesGo) {
  // Budget for two contexts of 128 rows in every layer, each of 16 pages and what else it keeps.
  EngineOptions options = TinyArena(100, 400);
  options.context_memory_bytes =
      33 * KvPageLayout::BytesForRowsPerPage(KvType::kF32, 2, 16, Engine::kRowsPerPage);
  StartTiny(options);
  const std::vector<int32_t> question = TinyTokens(7, 11);
  const std::string used = MakeContext(TinyTokens(128, 12), FullCache());
  const std::string unused = MakeContext(TinyTokens(128, 13), FullCache());
  const auto expected = Run(AskOver(used, question, 30));
  Run(AskOver(unused, question, 30));  // more recently used, but by nobody in a moment

  auto running = std::make_shared<Collector>();
  Gate decoding, go_on;
  running->on_token = [&](int tokens) {
    if (tokens != 3) return;
    decoding.Open();
    go_on.Wait();
  };
  Submit(AskOver(used, question, 30), running);
  decoding.Wait();
  auto queued = Submit(AskOver(used, question, 30));
  ContextRequest third, fourth;
  third.prompt = TinyTokens(128, 14);
  fourth.prompt = TinyTokens(256, 15);  // would need both: one is in use
  third.owner = fourth.owner = "anonymous";
  third.kv = fourth.kv = FullCache();
  auto third_made = std::make_shared<ContextAnswer>();
  auto fourth_made = std::make_shared<ContextAnswer>();
  ASSERT_TRUE(engine_->Submit(std::move(fourth), fourth_made).ok());
  ASSERT_TRUE(engine_->Submit(std::move(third), third_made).ok());
  go_on.Open();
  const auto& refused = fourth_made->Wait();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(refused.status().GetPayload(kRetryLater).has_value());
  EXPECT_TRUE(third_made->Wait().ok()) << third_made->Wait().status();
  running->Wait();
  queued->Wait();
  ExpectSameOutput(*expected, *running);
  ExpectSameOutput(*expected, *queued);
  EXPECT_FALSE(Known(unused));
  EXPECT_TRUE(Known(used));
  EXPECT_TRUE(Known((*third_made->Wait()).id));
  EXPECT_EQ(engine_->stats().contexts_evicted, 1);
}

TEST_F(ContextTest, AnotherOwnerSeesNothing) {
  StartTiny();
  const auto made = CreateContext(TinyTokens(50, 16), "alice");
  ASSERT_TRUE(made.ok()) << made.status();
  ContextRegistry& contexts = engine_->contexts();
  const absl::Status unknown = contexts.Get("bob", std::string(32, '0')).status();
  ASSERT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  const auto without_id = [](const absl::Status& status, const std::string& id) {
    std::string text(status.message());
    const size_t at = text.find(id);
    return at == std::string::npos ? text : text.erase(at, id.size());
  };
  const std::string nothing = without_id(unknown, std::string(32, '0'));
  for (const absl::Status& status :
       {contexts.Get("bob", made->id).status(),
        contexts.Use("bob", made->id, Clock::now()).status(), contexts.Delete("bob", made->id)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(without_id(status, made->id), nothing) << "told apart from an unknown one";
  }
  EXPECT_TRUE(contexts.List("bob", "", 100).empty());
  EXPECT_EQ(contexts.List("alice", "", 100).size(), 1u);
  EXPECT_TRUE(contexts.Get("alice", made->id).ok());
  EXPECT_TRUE(contexts.Delete("alice", made->id).ok());
}

TEST_F(ContextTest, ARequestThatNeedsTheirPagesGetsThem) {
  StartTiny(TinyArena(40, 400));
  const std::string old = MakeContext(TinyTokens(120, 17), FullCache());     // 16 pages
  const std::string recent = MakeContext(TinyTokens(120, 18), FullCache());  // 16 pages
  GenerateRequest small = TinyAsk(TinyTokens(33, 19), 30);                   // 8 pages
  small.kv = FullCache();
  Run(std::move(small));
  EXPECT_TRUE(Known(old) && Known(recent)) << "it fitted beside them";
  GenerateRequest larger = TinyAsk(TinyTokens(100, 20), 60);  // 20 pages
  larger.kv = FullCache();
  Run(std::move(larger));
  EXPECT_FALSE(Known(old));
  EXPECT_TRUE(Known(recent)) << "one was enough";
  GenerateRequest largest = TinyAsk(TinyTokens(250, 21), 70);  // 40 pages: all
  largest.kv = FullCache();
  Run(std::move(largest));
  EXPECT_FALSE(Known(recent));
  EXPECT_EQ(engine_->stats().contexts_evicted, 2);
  ExpectAllFree();
}

TEST_F(ContextTest, WhoUsesOneIsLetThroughBeforeABiggerRequestThatWaitsForItsPages) {
  StartTiny(TinyArena(40, 400));
  const std::string id = MakeContext(TinyTokens(256, 22), FullCache());  // 32 pages
  Gate all_there;
  auto holder = std::make_shared<Collector>();
  holder->on_start = [&] { all_there.Wait(); };
  GenerateRequest hold = TinyAsk(TinyTokens(3, 23), 2);
  hold.kv = FullCache();
  Submit(std::move(hold), holder);
  GenerateRequest bigger = TinyAsk(TinyTokens(100, 24), 28);  // 16 pages
  bigger.kv = FullCache();
  std::vector<std::string> ended;  // the engine's thread's
  auto waits = std::make_shared<Collector>();
  waits->on_token = [&](int tokens) {
    if (tokens == 28) ended.push_back("bigger");
  };
  Submit(std::move(bigger), waits);
  auto over = std::make_shared<Collector>();
  over->on_token = [&](int tokens) {
    if (tokens == 28) ended.push_back("over the context");
  };
  Submit(AskOver(id, TinyTokens(4, 25), 28), over);
  all_there.Open();
  for (auto& sink : {holder, over, waits}) {
    EXPECT_TRUE(sink->Wait().status().ok()) << sink->status();
  }
  engine_->Shutdown();
  EXPECT_EQ(ended, (std::vector<std::string>{"over the context", "bigger"}));
}

TEST_F(ContextTest, WhatIsFixedCannotBeChosenOverIt) {
  StartTiny();
  const std::string id = MakeContext(TinyTokens(900, 26));
  GenerateRequest sized = AskOver(id, TinyTokens(3, 27), 3);
  sized.kv.size = Full{};
  GenerateRequest measured = AskOver(id, TinyTokens(3, 27), 3);
  measured.next_token_kl = true;
  GenerateRequest empty = AskOver(id, {}, 3);
  GenerateRequest long_question = AskOver(id, TinyTokens(124, 27), 1);
  GenerateRequest long_answer = AskOver(id, TinyTokens(100, 27), 25);
  const std::pair<GenerateRequest*, const char*> cases[] = {{&sized, "kv"},
                                                            {&measured, "next_token_kl"},
                                                            {&empty, "prompt is empty"},
                                                            {&long_question, "prompt is 124"},
                                                            {&long_answer, "stopping.max_tokens"}};
  for (const auto& [request, field] : cases) {
    const auto refused = engine_->Submit(*request, std::make_shared<Collector>());
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(field));
  }
  long_answer.stopping.max_tokens = 24;  // to the model's last position
  EXPECT_EQ(Run(long_answer)->tokens().size(), 24u);
}

}  // namespace
}  // namespace ripplekv
