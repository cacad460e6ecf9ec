// Prefills a prompt with a compressed cache and decodes over it, and writes what an independent
// implementation needs to check both: the kept positions, every step's logits, the arena's own
// count. No server.
//
//   ripplekv-kv-dump model=FILE tokens=FILE.i32 out=DIR [compute=fp32|bf16] [threads=N]
//   [retention=X|full]
//                    [sensitivity=FILE.f64] [steps=N] [forced=FILE.i32] [kv_memory=BYTES]
//                    [question=FILE.i32]
//                    [selector=NAME] [window=N] [kernel=N] [pooling=max|mean|none] [queries=N]
//                    [normalised=1] [weight=X] [seed=N]
//
// sensitivity: one s_l a layer, allocated by ripple; without it layers keep alike. steps: greedy
// decode steps; forced: the tokens to feed instead. min_positions is 0, 4 sinks. selector: a name
// of SelectorName, with those of the parameters behind it that it has (default: SnapKV, window 32,
// max pooling of 7).
//
// DIR/budgets.i64 [layers], DIR/kept.i32 (per layer [kv_heads, b_l]), DIR/fed.i32 [steps],
// DIR/logits.f32 [1 + steps, vocab] (after the prompt, then after each fed token). Standard output:
// one "name value" a line.
//
// question: token ids that go on from the prompt, which is a context then: prefilled over its
// compressed rows, as requests over contexts are. The steps and the logits come after the question.
// Needs compute=fp32; DIR/keys.f32 and DIR/values.f32 (per layer [kv_heads, b_l, d]) are the
// context's rows, read after the last step.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "calibration/policy/plan.h"
#include "kernels/kl_divergence.h"
#include "model/load_decoder.h"
#include "server/engine/decode_step.h"
#include "server/engine/prefill.h"
#include "server/kv/invariants.h"

namespace ripplekv {
namespace {

template <typename T>
std::vector<T> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<T> out(bytes.size() / sizeof(T));
  std::copy_n(bytes.data(), out.size() * sizeof(T), reinterpret_cast<char*>(out.data()));
  return out;
}

template <typename T>
bool WriteFile(const std::string& path, const std::vector<T>& values) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
  return out.good();
}

absl::StatusOr<SelectorSpec> MakeSelector(std::map<std::string, std::string>& args) {
  Selectors all;
  const auto read = [&](const char* name, auto& value) {
    if (args[name].empty()) return;
    value = static_cast<std::decay_t<decltype(value)>>(std::strtod(args[name].c_str(), nullptr));
  };
  const auto read_pooling = [&](Pooling& pooling) {
    if (args["pooling"] == "max") pooling = Pooling::kMax;
    if (args["pooling"] == "mean") pooling = Pooling::kMean;
    if (args["pooling"] == "none") pooling = Pooling::kNone;
  };
  read("window", all.snapkv.window);
  read("kernel", all.snapkv.kernel);
  read_pooling(all.snapkv.pooling);
  all.mixed.snapkv = all.snapkv;
  read("queries", all.mixed.queries);
  read("weight", all.mixed.weight);
  read("window", all.h2o.window);
  read("queries", all.h2o.queries);
  read("normalised", all.h2o.normalised);
  read("window", all.recent_attention.window);
  read("queries", all.recent_attention.queries);
  read("kernel", all.recent_attention.kernel);
  read_pooling(all.recent_attention.pooling);
  read("window", all.streaming_llm.window);
  read("window", all.random.window);
  read("seed", all.random.seed);
  for (const SelectorSpec& one : std::initializer_list<SelectorSpec>{
           all.snapkv, all.h2o, all.recent_attention, all.mixed, all.streaming_llm, all.random}) {
    if (args["selector"].empty() || SelectorName(one) == args["selector"]) return one;
  }
  return absl::InvalidArgumentError("selector= is none");
}

absl::StatusOr<Plan> MakePlan(int layers, std::map<std::string, std::string>& args) {
  PlanSpec spec;
  spec.layers = layers;
  spec.min_positions = 0;
  if (args["retention"] == "full") {
    spec.size = Full{};
  } else {
    spec.size = Retention{std::strtod(args["retention"].c_str(), nullptr)};
  }
  if (!args["sensitivity"].empty()) {
    spec.sensitivity = ReadFile<double>(args["sensitivity"]);
    spec.allocator = RippleAllocator{};
  }
  auto selector = MakeSelector(args);
  if (!selector.ok()) return selector.status();
  spec.selector = *selector;
  return Plan::Make(spec);
}

// Per layer and KV head, row by row.
std::vector<int32_t> Positions(const SequenceCache& cache) {
  std::vector<int32_t> positions;
  for (int l = 0; l < cache.layers(); ++l) {
    for (int h = 0; h < cache.layout(l).kv_heads; ++h) {
      for (int64_t r = 0; r < cache.rows(l); ++r) positions.push_back(cache.RowPosition(l, h, r));
    }
  }
  return positions;
}

// A cache's fp32 keys (or values), likewise.
std::vector<float> Rows(const SequenceCache& cache, bool keys) {
  std::vector<float> rows;
  const auto d = static_cast<size_t>(cache.layout(0).head_dim);
  for (int l = 0; l < cache.layers(); ++l) {
    for (int h = 0; h < cache.layout(l).kv_heads; ++h) {
      for (int64_t r = 0; r < cache.rows(l); ++r) {
        const std::byte* row = keys ? cache.KeyRow(l, h, r) : cache.ValueRow(l, h, r);
        rows.resize(rows.size() + d);
        std::memcpy(rows.data() + rows.size() - d, row, d * sizeof(float));
      }
    }
  }
  return rows;
}

absl::Status Run(std::map<std::string, std::string> args) {
  ThreadPool pool(std::atoi(args["threads"].c_str()));
  auto decoder = LoadDecoder(args["model"], args["compute"], &pool);
  if (!decoder.ok()) return decoder.status();
  const ModelConfig& c = (*decoder)->config();

  const auto prompt = ReadFile<int32_t>(args["tokens"]);
  const auto forced = ReadFile<int32_t>(args["forced"]);
  const int64_t steps =
      forced.empty() ? std::atoll(args["steps"].c_str()) : static_cast<int64_t>(forced.size());
  const auto tokens = static_cast<int64_t>(prompt.size());
  if (prompt.empty()) return absl::InvalidArgumentError("tokens= names no file of token ids");
  const auto question = ReadFile<int32_t>(args["question"]);
  const auto question_tokens = static_cast<int64_t>(question.size());
  if (!question.empty() && args["compute"] != "fp32") {
    return absl::InvalidArgumentError("question= writes the context's rows: give compute=fp32");
  }

  auto plan = MakePlan(c.layers, args);
  if (!plan.ok()) return plan.status();
  auto budgets = plan->BudgetsFor(tokens);
  if (!budgets.ok()) return budgets.status();

  const KvType type = (*decoder)->kv_type();
  const KvPageLayout layout =
      KvPageLayout::For(type, c.kv_heads, c.head_dim,
                        KvPageLayout::BytesForRowsPerPage(type, c.kv_heads, c.head_dim, 32));
  const size_t full_layer =
      static_cast<size_t>((tokens + question_tokens) * 2 * c.kv_heads * c.head_dim) *
      KvTypeBytes(type);
  auto arena =
      PageArena::Create({.total_bytes = std::strtoull(args["kv_memory"].c_str(), nullptr, 10),
                         .page_bytes = layout.page_bytes,
                         .prefill_layer_bytes = full_layer});
  if (!arena.ok()) return arena.status();
  std::vector<LayerPool> pools = MakeLayerPools(c.layers, arena->get());
  std::vector<int64_t> capacity;
  for (int64_t rows : budgets->layer) capacity.push_back(rows + (question.empty() ? steps : 0));
  auto cache = SequenceCache::Reserve(absl::MakeSpan(pools), layout, capacity);
  if (!cache.ok()) return cache.status();

  Prefill prefill(decoder->get(), arena->get(), &*cache,
                  {.tokens = prompt,
                   .budgets = &*budgets,
                   .selector = plan->selector(),
                   .sinks = plan->sinks()});
  std::vector<const SequenceCache*> caches = {&*cache};
  while (!prefill.done()) {
    if (absl::Status s = prefill.Step(); !s.ok()) return s;
    if (absl::Status s = CheckKvInvariants(**arena, pools, caches); !s.ok()) return s;
  }
  const auto vocab = static_cast<size_t>(c.vocab);
  std::vector<float> logits(vocab * static_cast<size_t>(1 + steps));
  prefill.LastLogits(logits.data());
  std::cout << "peak_prefill_bytes " << (*arena)->peak_bytes() << "\nfull_layer_bytes "
            << full_layer << "\npage_bytes " << layout.page_bytes << "\nrows_per_page "
            << layout.rows_per_page << "\nkept_page_bytes " << cache->bytes() << "\n";

  const std::vector<int32_t> kept = Positions(*cache);

  DecodeStep decode(decoder->get());
  std::vector<float> again(vocab);
  const DecodeRow query = {.token = prompt.back(),
                           .position = static_cast<int32_t>(tokens) - 1,
                           .cache = &*cache,
                           .append = false};
  if (absl::Status s = decode.Run({&query, 1}, again.data()); !s.ok()) return s;
  std::cout.precision(17);
  std::cout << "next_token_kl " << KlDivergenceOfLogits(logits.data(), again.data(), c.vocab)
            << "\n";

  SequenceCache* sequence = &*cache;
  std::optional<SequenceCache> over;
  if (!question.empty()) {
    for (int64_t& rows : capacity) rows += question_tokens + steps;
    auto reserved = SequenceCache::ReserveOver(*cache, absl::MakeSpan(pools), capacity);
    if (!reserved.ok()) return reserved.status();
    over = *std::move(reserved);
    sequence = &*over;
    caches.push_back(sequence);
    Prefill asked(decoder->get(), arena->get(), sequence,
                  {.tokens = question, .keep = KeepRows::kAll, .first_position = tokens});
    while (!asked.done()) {
      if (absl::Status s = asked.Step(); !s.ok()) return s;
      if (absl::Status s = CheckKvInvariants(**arena, pools, caches); !s.ok()) return s;
    }
    asked.LastLogits(logits.data());
  }

  std::vector<int32_t> fed;
  for (int64_t step = 0; step < steps; ++step) {
    const float* last = logits.data() + static_cast<size_t>(step) * vocab;
    const auto greedy = static_cast<int32_t>(std::max_element(last, last + vocab) - last);
    fed.push_back(forced.empty() ? greedy : forced[static_cast<size_t>(step)]);
    const DecodeRow row = {.token = fed.back(),
                           .position = static_cast<int32_t>(tokens + question_tokens + step),
                           .cache = sequence};
    if (absl::Status s =
            decode.Run({&row, 1}, logits.data() + static_cast<size_t>(step + 1) * vocab);
        !s.ok())
      return s;
    if (absl::Status s = CheckKvInvariants(**arena, pools, caches); !s.ok()) return s;
  }
  const std::string out = args["out"] + "/";
  if (!question.empty() && (!WriteFile(out + "keys.f32", Rows(*cache, /*keys=*/true)) ||
                            !WriteFile(out + "values.f32", Rows(*cache, /*keys=*/false)))) {
    return absl::UnavailableError("cannot write into out=" + args["out"]);
  }
  if (!WriteFile(out + "budgets.i64", budgets->layer) || !WriteFile(out + "kept.i32", kept) ||
      !WriteFile(out + "fed.i32", fed) || !WriteFile(out + "logits.f32", logits)) {
    return absl::UnavailableError("cannot write into out=" + args["out"]);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  std::map<std::string, std::string> args = {{"model", ""},       {"tokens", ""},
                                             {"out", "."},        {"compute", "fp32"},
                                             {"threads", "2"},    {"retention", "full"},
                                             {"sensitivity", ""}, {"steps", "0"},
                                             {"forced", ""},      {"kv_memory", "1073741824"},
                                             {"question", ""},    {"selector", ""},
                                             {"window", ""},      {"kernel", ""},
                                             {"pooling", ""},     {"queries", ""},
                                             {"normalised", ""},  {"weight", ""},
                                             {"seed", ""}};
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const size_t equals = arg.find('=');
    const auto known = args.find(arg.substr(0, equals));
    if (equals == std::string::npos || known == args.end()) {
      std::cerr << "ripplekv-kv-dump: unknown argument " << arg << "\n";
      return 2;
    }
    known->second = arg.substr(equals + 1);
  }
  const absl::Status status = Run(std::move(args));
  if (status.ok()) return 0;
  std::cerr << "ripplekv-kv-dump: " << status << "\n";
  return 1;
}

}  // namespace
}  // namespace ripplekv

int main(int argc, char** argv) { return ripplekv::Main(argc, argv); }
