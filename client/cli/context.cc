#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/context_view.h"

namespace ripplekv {
namespace {

struct CreateFlags {
  PromptFlags prompt;
  KvFlags kv;
  bool stats = false;
};

void AddCreateFlags(CLI::App& app, CreateFlags& flags) {
  flags.prompt.AddForContext(app);
  flags.kv.Add(app, /*with_growth=*/false);
  app.add_flag("--stats", flags.stats,
               "Describe the context on standard error although it is not a terminal")
      ->group("Output");
}

int RunCreate(const CreateFlags& flags, Cli& cli) {
  absl::StatusOr<Prompt> prompt = flags.prompt.Read();
  if (!prompt.ok()) return cli.UsageError(prompt.status());
  v1::CreateContextRequest request;
  SetPrompt(*std::move(prompt), request);
  if (absl::Status wrong = flags.kv.Fill(request); !wrong.ok()) return cli.UsageError(wrong);
  const absl::StatusOr<v1::CreateContextResponse> response =
      cli.MakeClient().CreateContext(request, cli.Options());
  if (!response.ok()) return cli.CallFailed(response.status());
  if (cli.json) {
    cli.WriteJson(*response);
    return kExitOk;
  }
  // The id alone, for a script to keep.
  cli.Write(absl::StrCat(response->context().context_id(), "\n"));
  if (flags.stats || cli.err.interactive) {
    cli.WriteSide(absl::StrCat("\n", RenderContext(response->context(), cli.err)));
  }
  return kExitOk;
}

struct ListFlags {};

int RunList(const ListFlags&, Cli& cli) {
  const Client client = cli.MakeClient();
  v1::ListContextsRequest request;
  bool any = false;
  do {
    const absl::StatusOr<v1::ListContextsResponse> page =
        client.ListContexts(request, cli.Options());
    if (!page.ok()) return cli.CallFailed(page.status());
    for (const v1::Context& context : page->contexts()) {
      any = true;
      if (cli.json) {
        cli.WriteJson(context);
      } else {
        cli.Write(RenderContext(context, cli.out));
      }
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  if (!cli.json && !any) cli.WriteSide("No context is kept.\n");
  return kExitOk;
}

struct IdFlags {
  std::string id;
};

void AddIdFlags(CLI::App& app, IdFlags& flags) {
  app.add_option("id", flags.id, "Its id")->required()->type_name("ID");
}

int RunShow(const IdFlags& flags, Cli& cli) {
  v1::GetContextRequest request;
  request.set_context_id(flags.id);
  const absl::StatusOr<v1::GetContextResponse> response =
      cli.MakeClient().GetContext(request, cli.Options());
  if (!response.ok()) return cli.CallFailed(response.status());
  if (cli.json) {
    cli.WriteJson(*response);
  } else {
    cli.Write(RenderContext(response->context(), cli.out));
  }
  return kExitOk;
}

int RunDelete(const IdFlags& flags, Cli& cli) {
  v1::DeleteContextRequest request;
  request.set_context_id(flags.id);
  const absl::StatusOr<v1::DeleteContextResponse> response =
      cli.MakeClient().DeleteContext(request, cli.Options());
  if (!response.ok()) return cli.CallFailed(response.status());
  if (cli.json) {
    cli.WriteJson(*response);
  } else {
    cli.Write(absl::StrCat("Deleted context ", flags.id, ".\n"));
  }
  return kExitOk;
}

struct ContextGroupFlags {};

int RunGroup(const ContextGroupFlags&, Cli&) { return kExitUsage; }  // a subcommand is required

}  // namespace

void AddContext(CLI::App& app, Cli& cli) {
  CLI::App& context = AddCommand<ContextGroupFlags>(
      app, cli, "context", "Keep the compressed cache of a prompt, to ask it many times",
      "  id=$(ripplekv context create --document report.txt)\n"
      "  ripplekv generate --context $id --prompt \"What was decided?\"\n"
      "  ripplekv context list\n"
      "  ripplekv context delete $id\n",
      [](CLI::App&, ContextGroupFlags&) {}, RunGroup);
  context.require_subcommand(1);
  AddCommand<CreateFlags>(context, cli, "create", "Compress a prompt, keep it and write its id",
                          "  ripplekv context create --document report.txt --retention 0.2\n"
                          "  ripplekv context create --raw --prompt-file story.txt --stats\n",
                          AddCreateFlags, RunCreate);
  AddCommand<ListFlags>(
      context, cli, "list", "Your contexts", "  ripplekv context list\n",
      [](CLI::App&, ListFlags&) {}, RunList);
  AddCommand<IdFlags>(context, cli, "show", "Describe one",
                      "  ripplekv context show ID\n  ripplekv context show ID --json\n", AddIdFlags,
                      RunShow);
  AddCommand<IdFlags>(context, cli, "delete", "Forget one", "  ripplekv context delete ID\n",
                      AddIdFlags, RunDelete);
}

}  // namespace ripplekv
