#include "client/cli/commands.h"
#include "client/model_view.h"

namespace ripplekv {
namespace {

struct ModelFlags {};

int Run(const ModelFlags&, Cli& cli) {
  const absl::StatusOr<v1::GetModelResponse> response = cli.MakeClient().GetModel(cli.Options());
  if (!response.ok()) return cli.CallFailed(response.status());
  if (cli.json) {
    cli.WriteJson(*response);
  } else {
    cli.Write(RenderModel(*response, cli.out));
  }
  return kExitOk;
}

}  // namespace

void AddModel(CLI::App& app, Cli& cli) {
  AddCommand<ModelFlags>(
      app, cli, "model", "Show the loaded model, the plan in force, limits and versions",
      "  ripplekv model\n"
      "  ripplekv model --json\n",
      [](CLI::App&, ModelFlags&) {}, Run);
}

}  // namespace ripplekv
