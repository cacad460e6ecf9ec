#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/budget_flags.h"
#include "client/cli/selector_flags.h"
#include "client/prompt.h"
#include "ripplekv/v1/calibration.pb.h"
#include "ripplekv/v1/decode.pb.h"

namespace ripplekv {

// Groups of flags that several commands share. Each Add declares the flags, whose targets must
// outlive the parsing; ranges are the server's to check.

// A flag that may be given several times, one value each.
CLI::Option* AddRepeated(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                         const std::string& description);

struct PromptFlags {
  std::string prompt;
  std::string prompt_file;
  std::string document;
  std::string question;
  std::string system;
  std::vector<std::string> messages;
  std::string token_ids;
  bool raw = false;
  bool asks = true;  // a document goes with a question

  void Add(CLI::App& app, bool with_token_ids);
  // Of a command that keeps a document to be asked later: no --question.
  void AddForContext(CLI::App& app);
  // Whether any is given.
  bool given() const;
  // Reads the files. INVALID_ARGUMENT where no source or several are given, or a text is not UTF-8.
  absl::StatusOr<Prompt> Read() const;
};

struct SamplingFlags {
  std::optional<float> temperature, top_p, min_p;
  std::optional<int32_t> top_k;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;

  void Add(CLI::App& app);
  absl::Status Fill(v1::SamplingParams& params) const;
};

struct StoppingFlags {
  std::optional<int32_t> max_tokens, min_tokens;
  std::vector<std::string> stop;
  std::vector<std::string> stop_token_ids;
  bool ignore_eos = false;

  void Add(CLI::App& app);
  absl::Status Fill(v1::StoppingParams& params) const;
};

struct KvFlags {
  BudgetFlags budget;
  SelectorFlags selector;
  std::string kv_type;
  std::optional<int32_t> growth_cap;

  // with_growth: --growth-cap too, for commands that generate.
  void Add(CLI::App& app, bool with_growth);
  // Leaves `request.kv` absent where no flag is given. Request: one that has it.
  template <typename Request>
  absl::Status Fill(Request& request) const {
    v1::KvParams params;
    if (absl::Status wrong = Fill(params); !wrong.ok()) return wrong;
    if (params.ByteSizeLong() > 0) *request.mutable_kv() = std::move(params);
    return absl::OkStatus();
  }
  absl::Status Fill(v1::KvParams& params) const;
};

// --context.
struct ContextFlags {
  std::string id;

  void Add(CLI::App& app);
};

struct CalibrationFlags {
  std::optional<int32_t> examples, prefix_tokens, window_tokens, sinks, recent, damage, sizes;
  std::vector<double> damage_retentions, size_retentions;
  std::vector<int32_t> size_prompts;
  std::optional<double> eta;
  std::optional<uint64_t> seed;

  void Add(CLI::App& app);
  void Fill(v1::CalibrateModelRequest& request) const;
};

}  // namespace ripplekv
