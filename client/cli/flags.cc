#include "client/cli/flags.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/help.h"
#include "client/input_file.h"
#include "client/names.h"
#include "client/number_list.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

absl::Status CheckUtf8(absl::string_view flag, absl::string_view text) {
  const size_t invalid = FirstInvalidUtf8(text);
  if (invalid == text.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is not UTF-8 text: see its byte ", invalid));
}

}  // namespace

CLI::Option* AddRepeated(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                         const std::string& description) {
  return app.add_option(name, values, description)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void PromptFlags::AddForContext(CLI::App& app) {
  asks = false;
  Add(app, /*with_token_ids=*/true);
}

void PromptFlags::Add(CLI::App& app, bool with_token_ids) {
  const std::string group = "Prompt (one of --prompt, --prompt-file, --document, --message";
  const std::string name = group + (with_token_ids ? ", --token-ids)" : ")");
  app.add_option("-p,--prompt", prompt, "The prompt's text")->type_name("TEXT")->group(name);
  app.add_option("-f,--prompt-file", prompt_file, "A file with it; - is standard input")
      ->type_name("FILE")
      ->group(name);
  app.add_option(
         "-d,--document", document,
         asks ? "A document to ask --question about; - is standard input. They make one message: "
                "the document, a blank line, the question"
              : "A document to ask later, with generate --context; - is standard input")
      ->type_name("FILE")
      ->group(name);
  if (asks) {
    app.add_option("-q,--question", question, "The question about --document")
        ->type_name("TEXT")
        ->group(name);
  }
  AddRepeated(
      app, "-m,--message", messages,
      "One message of a chat, with a role of system, user or assistant; once for each message")
      ->type_name("ROLE:TEXT")
      ->group(name);
  if (with_token_ids) {
    app.add_option("--token-ids", token_ids,
                   "A file of token ids, used as they are, between spaces or commas or as a JSON "
                   "list; - is standard input")
        ->type_name("FILE")
        ->group(name);
  }
  app.add_option("--system", system, "A system message before the prompt")
      ->type_name("TEXT")
      ->group(name);
  app.add_flag("--raw", raw,
               "Send the text as it is, with special tokens parsed, instead of as a user's message "
               "in the model's chat template")
      ->group(name);
}

bool PromptFlags::given() const {
  return !prompt.empty() || !prompt_file.empty() || !document.empty() || !question.empty() ||
         !system.empty() || !messages.empty() || !token_ids.empty() || raw;
}

absl::StatusOr<Prompt> PromptFlags::Read() const {
  const int sources = !prompt.empty() + !prompt_file.empty() + !document.empty() +
                      !messages.empty() + !token_ids.empty();
  if (sources != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(sources == 0 ? "there is no prompt" : "there are several prompts",
                     ": give one of --prompt TEXT, --prompt-file FILE, --document FILE",
                     asks ? " with --question TEXT" : "", ", or --message ROLE:TEXT"));
  }
  if (asks && document.empty() != question.empty()) {
    return absl::InvalidArgumentError(document.empty()
                                          ? "--question needs the --document it is about"
                                          : "--document needs a --question about it");
  }
  if (raw && (!messages.empty() || !token_ids.empty() || !system.empty())) {
    return absl::InvalidArgumentError(
        "--raw sends one text as it is: it goes with --prompt, --prompt-file or --document only, "
        "without --system");
  }
  for (const auto& [flag, text] :
       {std::pair<absl::string_view, const std::string&>("--prompt", prompt),
        {"--question", question},
        {"--system", system}}) {
    if (absl::Status invalid = CheckUtf8(flag, text); !invalid.ok()) return invalid;
  }
  if (!token_ids.empty()) {
    if (!system.empty()) {
      return absl::InvalidArgumentError(
          "--system does not go with --token-ids: they are used as they are");
    }
    absl::StatusOr<std::string> text = ReadBytes(token_ids);
    if (!text.ok()) return text.status();
    const absl::StatusOr<std::vector<int32_t>> ids = ParseTokenIds(*text);
    if (!ids.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--token-ids ", token_ids, ": ", ids.status().message()));
    }
    v1::TokenIdsPrompt result;
    result.mutable_ids()->Assign(ids->begin(), ids->end());
    return result;
  }

  v1::ChatPrompt chat;
  if (!system.empty()) {
    v1::ChatMessage& message = *chat.add_messages();
    message.set_role(v1::ROLE_SYSTEM);
    message.set_content(system);
  }
  for (const std::string& text : messages) {
    if (absl::Status invalid = CheckUtf8("--message", text); !invalid.ok()) return invalid;
    absl::StatusOr<v1::ChatMessage> message = ParseMessage(text);
    if (!message.ok()) return message.status();
    *chat.add_messages() = *std::move(message);
  }
  if (!messages.empty()) return chat;

  std::string text = prompt;
  if (prompt.empty()) {
    absl::StatusOr<std::string> read = ReadText(document.empty() ? prompt_file : document);
    if (!read.ok()) return read.status();
    text = question.empty() ? *std::move(read) : DocumentQuestion(*read, question);
  }
  if (raw) return text;
  v1::ChatMessage& message = *chat.add_messages();
  message.set_role(v1::ROLE_USER);
  message.set_content(std::move(text));
  return chat;
}

void SamplingFlags::Add(CLI::App& app) {
  const std::string group = "Sampling (without any: greedy, the same text every time)";
  app.add_option("--temperature", temperature, "0 to 100; 0 is greedy")->group(group);
  app.add_option("--top-k", top_k, "Keep the K most probable tokens; 0 keeps all")->group(group);
  app.add_option("--top-p", top_p, "Keep the most probable tokens that together reach P")
      ->group(group);
  app.add_option("--min-p", min_p, "Drop tokens less probable than this share of the best one's")
      ->group(group);
  app.add_option("--repetition-penalty", repetition_penalty,
                 "0.01 to 10, above 1 against repetition; 1 is off")
      ->group(group);
  app.add_option("--presence-penalty", presence_penalty,
                 "-10 to 10, off the logits of tokens in the output; 0 is off")
      ->group(group);
  app.add_option("--frequency-penalty", frequency_penalty,
                 "-10 to 10, the same once for every occurrence; 0 is off")
      ->group(group);
  AddRepeated(app, "--logit-bias", logit_bias,
              "Added to a token's logit, -100 to 100; once for each")
      ->type_name("ID:BIAS")
      ->group(group);
  app.add_option("--seed", seed, "Repeats a draw; the summary says the seed that was used")
      ->check(NotNegative())
      ->group(group);
}

absl::Status SamplingFlags::Fill(v1::SamplingParams& params) const {
  if (temperature) params.set_temperature(*temperature);
  if (top_k) params.set_top_k(*top_k);
  if (top_p) params.set_top_p(*top_p);
  if (min_p) params.set_min_p(*min_p);
  if (repetition_penalty) params.set_repetition_penalty(*repetition_penalty);
  if (presence_penalty) params.set_presence_penalty(*presence_penalty);
  if (frequency_penalty) params.set_frequency_penalty(*frequency_penalty);
  if (seed) params.set_seed(*seed);
  for (const std::string& entry : logit_bias) {
    const size_t colon = entry.find(':');
    int32_t id = 0;
    float bias = 0;
    if (colon == std::string::npos || !absl::SimpleAtoi(entry.substr(0, colon), &id) ||
        !absl::SimpleAtof(entry.substr(colon + 1), &bias)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--logit-bias is '", entry, "': must be ID:BIAS, e.g. 42:-1.5"));
    }
    (*params.mutable_logit_bias())[id] = bias;
  }
  return absl::OkStatus();
}

void StoppingFlags::Add(CLI::App& app) {
  const std::string group = "Stopping";
  app.add_option("-n,--max-tokens", max_tokens,
                 "Output tokens at most; without it 256, or what the context leaves")
      ->group(group);
  app.add_option("--min-tokens", min_tokens, "Do not stop before this many")->group(group);
  AddRepeated(app, "--stop", stop, "End before this text; once for each of up to 16")
      ->type_name("TEXT")
      ->group(group);
  AddRepeated(app, "--stop-token-id", stop_token_ids, "End at this token id; once for each")
      ->type_name("ID")
      ->check(Decimal())
      ->group(group);
  app.add_flag("--ignore-eos", ignore_eos, "Go on after the model's end of text")->group(group);
}

absl::Status StoppingFlags::Fill(v1::StoppingParams& params) const {
  if (max_tokens) params.set_max_tokens(*max_tokens);
  if (min_tokens) params.set_min_tokens(*min_tokens);
  for (const std::string& text : stop) {
    if (absl::Status invalid = CheckUtf8("--stop", text); !invalid.ok()) return invalid;
    params.add_stop_strings(text);
  }
  for (const std::string& text : stop_token_ids) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(text, &id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--stop-token-id is '", text, "': must be a token id"));
    }
    params.add_stop_token_ids(id);
  }
  params.set_ignore_eos(ignore_eos);
  return absl::OkStatus();
}

namespace {

std::optional<v1::KvType> KvTypeNamed(const std::string& name) {
  for (v1::KvType type : {v1::KV_TYPE_FP32, v1::KV_TYPE_BF16, v1::KV_TYPE_INT8, v1::KV_TYPE_INT4}) {
    if (name == NameOf(type)) return type;
  }
  return std::nullopt;
}

}  // namespace

void KvFlags::Add(CLI::App& app, bool with_growth) {
  const std::string group = "KV cache (without any: the server's plan)";
  budget.Add(app);
  selector.Add(app, group);
  app.add_option("--kv-type", kv_type,
                 "What keys and values are stored in, one type or one for each (int8:int4), "
                 "whatever the plan says")
      ->type_name("fp32|bf16|int8|int4|KEYS:VALUES")
      ->group(group);
  if (!with_growth) return;
  app.add_option("--growth-cap", growth_cap,
                 "Compact a layer back whenever the output has made it grow by N positions, 16 to "
                 "1048576; 0 lets it grow")
      ->type_name("N")
      ->group(group);
}

absl::Status KvFlags::Fill(v1::KvParams& params) const {
  if (auto size = budget.Size()) *params.mutable_size() = *std::move(size);
  auto allocator = budget.MakeAllocator();
  if (!allocator.ok()) return allocator.status();
  if (allocator->has_value()) *params.mutable_allocator() = **std::move(allocator);
  if (!kv_type.empty()) {
    const size_t colon = kv_type.find(':');
    const auto keys = KvTypeNamed(kv_type.substr(0, colon));
    const auto values =
        KvTypeNamed(colon == std::string::npos ? kv_type : kv_type.substr(colon + 1));
    if (!keys || !values) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--kv-type is '", kv_type,
          "': must be fp32, bf16, int8 or int4, or one for keys and one for values: int8:int4"));
    }
    params.set_key_type(*keys);
    params.set_value_type(*values);
  }
  if (growth_cap) params.set_growth_cap(*growth_cap);
  auto made = selector.Make();
  if (!made.ok()) return made.status();
  if (made->has_value()) *params.mutable_selector() = **std::move(made);
  return absl::OkStatus();
}

void ContextFlags::Add(CLI::App& app) {
  app.add_option(
         "--context", id,
         "Go on from this context (ripplekv context create): its tokens are not prefilled "
         "again. A chat prompt goes on from a context of a chat, --raw and --token-ids from "
         "any")
      ->type_name("ID")
      ->group("Context");
}

void CalibrationFlags::Add(CLI::App& app) {
  const std::string group = "Settings (each absent one: the server's)";
  app.add_option("--examples", examples, "Texts measured, 1 to 4096")->group(group);
  app.add_option("--prefix-tokens", prefix_tokens, "Tokens that build the cache of a text")
      ->group(group);
  app.add_option("--window-tokens", window_tokens, "Tokens measured after them")->group(group);
  app.add_option("--eta", eta, "Noise on a cached value relative to its norm, 0 to 10")
      ->group(group);
  app.add_option("--sinks", sinks, "First positions that are never perturbed")->group(group);
  app.add_option("--recent", recent, "Last positions that are never perturbed")->group(group);
  app.add_option("--seed", seed, "Seed of the noise")->check(NotNegative())->group(group);
  app.add_option("--damage", damage,
                 "Texts, the last of them all, on which it is also measured what compressing each "
                 "layer alone costs, by rows kept and by storage type; 0 for none")
      ->type_name("N")
      ->group(group);
  app.add_option("--damage-retentions", damage_retentions,
                 "With --damage: shares of the rows that are kept, ascending (0.04,0.06,0.1,0.2,"
                 "0.4,0.7 as far as the prefix allows)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("A,B,...")
      ->group(group);
  app.add_option("--sizes", sizes,
                 "Texts on which the mean KL of the server's whole plan is measured by size and "
                 "prompt length, for --target-mean-kl; 0 for none")
      ->type_name("N")
      ->group(group);
  app.add_option("--size-prompts", size_prompts,
                 "With --sizes: the prompt lengths, tokens, ascending (those of the prefix, twice "
                 "and four times as many, as far as the model allows)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("A,B,...")
      ->group(group);
  app.add_option("--size-retentions", size_retentions,
                 "With --sizes: the sizes as --retention, ascending (0.05,0.1,0.2,0.3,0.5,1)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("A,B,...")
      ->group(group);
}

void CalibrationFlags::Fill(v1::CalibrateModelRequest& request) const {
  if (!examples && !prefix_tokens && !window_tokens && !eta && !sinks && !recent && !seed &&
      !damage && damage_retentions.empty() && !sizes && size_prompts.empty() &&
      size_retentions.empty()) {
    return;
  }
  v1::CalibrationSettings& settings = *request.mutable_settings();
  if (examples) settings.set_examples(*examples);
  if (prefix_tokens) settings.set_prefix_tokens(*prefix_tokens);
  if (window_tokens) settings.set_window_tokens(*window_tokens);
  if (eta) settings.set_eta(*eta);
  if (sinks) settings.set_sinks(*sinks);
  if (recent) settings.set_recent(*recent);
  if (seed) settings.set_seed(*seed);
  if (damage) settings.set_damage_examples(*damage);
  settings.mutable_damage_retentions()->Assign(damage_retentions.begin(), damage_retentions.end());
  if (sizes) settings.set_size_examples(*sizes);
  settings.mutable_size_prompt_tokens()->Assign(size_prompts.begin(), size_prompts.end());
  settings.mutable_size_retentions()->Assign(size_retentions.begin(), size_retentions.end());
}

}  // namespace ripplekv
