#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/help.h"
#include "client/cli/profile_id.h"
#include "client/profile_view.h"

namespace ripplekv {
namespace {

struct ProfileFlags {
  std::string id;
  std::string scale = "auto";
};

void AddFlags(CLI::App& app, ProfileFlags& flags) {
  app.add_option(
         "--id", flags.id,
         "Its id, or as much of its start as is unique; without it the profile of the server's "
         "settings")
      ->type_name("ID");
  app.add_option(
         "--scale", flags.scale,
         "Of the bars; auto (the default) takes the logarithmic one where a layer outweighs the "
         "others by far")
      ->check(OneOf({"auto", "linear", "log"}))
      ->type_name("auto|linear|log");
}

int Run(const ProfileFlags& flags, Cli& cli) {
  const Client client = cli.MakeClient();
  v1::GetProfileRequest request;
  if (!flags.id.empty()) {
    absl::StatusOr<std::string> id = FindProfileId(client, flags.id, cli.Options());
    if (!id.ok()) return cli.CallFailed(id.status());
    request.set_profile_id(*std::move(id));
  }
  const absl::StatusOr<v1::GetProfileResponse> response = client.GetProfile(request, cli.Options());
  if (!response.ok()) {
    const int code = cli.CallFailed(response.status());
    if (absl::IsNotFound(response.status()) && !cli.json) {
      cli.WriteSide(
          "  Measure it:       ripplekv calibrate\n"
          "  See what there is: ripplekv profile list\n");
    }
    return code;
  }
  if (cli.json) {
    cli.WriteJson(*response);
  } else {
    const ChartScale scale = flags.scale == "log"      ? ChartScale::kLog
                             : flags.scale == "linear" ? ChartScale::kLinear
                                                       : ChartScale::kAuto;
    cli.Write(RenderProfile(*response, scale, cli.out));
  }
  return kExitOk;
}

struct ListFlags {};

int RunList(const ListFlags&, Cli& cli) {
  const absl::StatusOr<std::vector<v1::Profile>> profiles =
      ListAllProfiles(cli.MakeClient(), cli.Options());
  if (!profiles.ok()) return cli.CallFailed(profiles.status());
  if (!cli.json && profiles->empty()) cli.WriteSide("No profile is stored.\n");
  for (const v1::Profile& profile : *profiles) {
    if (cli.json) {
      cli.WriteJson(profile);
    } else {
      cli.Write(RenderProfileEntry(profile, cli.out));
    }
  }
  return kExitOk;
}

struct DeleteFlags {
  std::string id;
};

void AddDeleteFlags(CLI::App& app, DeleteFlags& flags) {
  app.add_option("id", flags.id, "Its id, or as much of its start as is unique")
      ->required()
      ->type_name("ID");
}

int RunDelete(const DeleteFlags& flags, Cli& cli) {
  const Client client = cli.MakeClient();
  absl::StatusOr<std::string> id = FindProfileId(client, flags.id, cli.Options());
  if (!id.ok()) return cli.CallFailed(id.status());
  v1::DeleteProfileRequest request;
  request.set_profile_id(*id);
  const absl::StatusOr<v1::DeleteProfileResponse> response =
      client.DeleteProfile(request, cli.Options());
  if (!response.ok()) return cli.CallFailed(response.status());
  if (cli.json) {
    cli.WriteJson(*response);
  } else {
    cli.Write(absl::StrCat("Deleted profile ", *id, ".\n"));
  }
  return kExitOk;
}

}  // namespace

void AddProfile(CLI::App& app, Cli& cli) {
  CLI::App& profile =
      AddCommand<ProfileFlags>(app, cli, "profile", "Show a sensitivity profile, layer by layer",
                               "  ripplekv profile\n"
                               "  ripplekv profile --scale log\n"
                               "  ripplekv profile list\n"
                               "  ripplekv profile --json > profile.json\n",
                               AddFlags, Run);
  profile.require_subcommand(0, 1);
  AddCommand<ListFlags>(
      profile, cli, "list", "The stored profiles", "  ripplekv profile list\n",
      [](CLI::App&, ListFlags&) {}, RunList);
  AddCommand<DeleteFlags>(profile, cli, "delete", "Remove a stored profile",
                          "  ripplekv profile delete 3f786850e387\n", AddDeleteFlags, RunDelete);
}

}  // namespace ripplekv
