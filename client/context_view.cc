#include "client/context_view.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/fact_sheet.h"
#include "client/format.h"
#include "client/kept_positions.h"
#include "client/names.h"

namespace ripplekv {
namespace {

std::string Moment(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixSeconds(time.seconds()),
                          absl::UTCTimeZone());
}

std::string Stay(const v1::Context& context) {
  if (context.users() > 0) return "";
  return context.has_expires_at() ? absl::StrCat("expires ", Moment(context.expires_at()))
                                  : "does not expire";
}

}  // namespace

std::string RenderContext(const v1::Context& context, const Terminal& terminal) {
  FactSheet sheet;
  sheet.Add("holds", {absl::StrCat(FormatCount(context.tokens()), " tokens"),
                      context.chat() ? "a chat" : "a text",
                      context.profile_id().empty()
                          ? "planned without a profile"
                          : absl::StrCat("planned from profile ", ShortId(context.profile_id()))});
  sheet.Add("kept", KeptPositions(context.layers(), context.tokens()));
  sheet.Add(
      "cache",
      {absl::StrCat(FormatBytes(context.kv_bytes()), " of ", FormatBytes(context.full_kv_bytes())),
       context.full_kv_bytes() > 0 ? FormatPercent(static_cast<double>(context.kv_bytes()) /
                                                   static_cast<double>(context.full_kv_bytes()))
                                   : "",
       absl::StrCat(FormatBytes(context.page_bytes()), " in pages")});
  sheet.Add("made", {Moment(context.created_at())});
  sheet.Add("used",
            {context.users() > 0 ? absl::StrCat("by ", FormatCount(context.users()), " now")
                                 : absl::StrCat("not for ", FormatSeconds(context.idle_seconds())),
             Stay(context)});
  return absl::StrCat(terminal.Bold(context.context_id()), "\n", sheet.Render(terminal));
}

}  // namespace ripplekv
