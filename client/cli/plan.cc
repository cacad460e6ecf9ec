#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/byte_size.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/profile_id.h"
#include "client/input_file.h"
#include "client/number_list.h"
#include "client/plan_view.h"

namespace ripplekv {
namespace {

struct PlanFlags {
  int32_t prompt_tokens = 0;
  BudgetFlags budget;
  std::optional<int32_t> min_positions;
  std::string profile;
  std::string sensitivities;
  std::string memory;
  std::optional<int32_t> output_tokens;
};

void AddFlags(CLI::App& app, PlanFlags& flags) {
  app.add_option("-t,--prompt-tokens", flags.prompt_tokens,
                 "Length of the prompt that is planned for")
      ->required()
      ->type_name("N");
  auto* memory = app.add_option("--memory", flags.memory,
                                "Also say how many such requests run at once in a --kv-memory of "
                                "this size, e.g. 8GiB")
                     ->type_name("SIZE");
  app.add_option("--output-tokens", flags.output_tokens,
                 "max_tokens of these requests (without: the server's default)")
      ->type_name("N")
      ->needs(memory);
  const std::string group = "Sensitivities (without any: the plan in force)";
  auto* profile = app.add_option("--profile", flags.profile,
                                 "Id of a stored profile, or as much of its start as is unique")
                      ->type_name("ID")
                      ->group(group);
  app.add_option(
         "--sensitivities", flags.sensitivities,
         "A file of s_l, one number a layer, or of what ripplekv profile --json writes; - is "
         "standard input")
      ->type_name("FILE")
      ->excludes(profile)
      ->group(group);
  flags.budget.Add(app);
  app.add_option("--min-positions", flags.min_positions,
                 "Mean positions a layer that are kept in any case")
      ->group("KV cache (without any: the server's plan)");
}

int Run(const PlanFlags& flags, Cli& cli) {
  const Client client = cli.MakeClient();
  v1::PlanBudgetsRequest request;
  if (auto size = flags.budget.Size()) *request.mutable_size() = *std::move(size);
  auto allocator = flags.budget.MakeAllocator();
  if (!allocator.ok()) return cli.UsageError(allocator.status());
  if (allocator->has_value()) *request.mutable_allocator() = **std::move(allocator);
  request.set_prompt_tokens(flags.prompt_tokens);
  if (flags.min_positions) request.set_min_positions(*flags.min_positions);
  if (!flags.memory.empty()) {
    const absl::StatusOr<int64_t> bytes = ParseByteSize(flags.memory);
    if (!bytes.ok()) {
      return cli.UsageError(
          absl::InvalidArgumentError(absl::StrCat("--memory: ", bytes.status().message())));
    }
    request.set_memory_bytes(*bytes);
  }
  if (flags.output_tokens) request.set_output_tokens(*flags.output_tokens);
  if (!flags.sensitivities.empty()) {
    const absl::StatusOr<std::string> text = ReadBytes(flags.sensitivities);
    if (!text.ok()) return cli.UsageError(text.status());
    const absl::StatusOr<std::vector<double>> values = ParseSensitivities(*text);
    if (!values.ok()) {
      return cli.UsageError(absl::InvalidArgumentError(
          absl::StrCat("--sensitivities ", flags.sensitivities, ": ", values.status().message())));
    }
    request.mutable_inline_()->mutable_mean_kl()->Assign(values->begin(), values->end());
  }
  if (!flags.profile.empty()) {
    absl::StatusOr<std::string> id = FindProfileId(client, flags.profile, cli.Options());
    if (!id.ok()) return cli.CallFailed(id.status());
    request.set_profile_id(*std::move(id));
  }
  const absl::StatusOr<v1::PlanBudgetsResponse> response =
      client.PlanBudgets(request, cli.Options());
  if (!response.ok()) return cli.CallFailed(response.status());
  if (cli.json) {
    cli.WriteJson(*response);
  } else {
    cli.Write(RenderPlan(*response, flags.prompt_tokens, cli.out));
  }
  return kExitOk;
}

}  // namespace

void AddPlan(CLI::App& app, Cli& cli) {
  AddCommand<PlanFlags>(
      app, cli, "plan",
      "Show what each layer would keep of a prompt, and how many such requests fit",
      "  ripplekv plan --prompt-tokens 4096\n"
      "  ripplekv plan --memory 8GiB --prompt-tokens 7500 --output-tokens 512\n"
      "  ripplekv plan --prompt-tokens 32000 --retention 0.1 --allocator uniform\n"
      "  ripplekv plan -t 4096 --total-bytes 4000000 --allocator damage_curves\n"
      "  ripplekv profile --json | ripplekv plan -t 4096 --sensitivities - --ripple-r 4\n",
      AddFlags, Run);
}

}  // namespace ripplekv
