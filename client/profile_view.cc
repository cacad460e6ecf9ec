#include "client/profile_view.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/bar_chart.h"
#include "client/damage_view.h"
#include "client/fact_sheet.h"
#include "client/format.h"
#include "client/names.h"
#include "client/size_view.h"

namespace ripplekv {
namespace {

constexpr int kMaxChartColumns = 110;

std::string Examples(const v1::Profile& profile) {
  const int asked = profile.settings().examples();
  return profile.examples_measured() == asked
             ? absl::StrCat(FormatCount(asked), " examples")
             : absl::StrCat(FormatCount(profile.examples_measured()), " of ", FormatCount(asked),
                            " examples");
}

std::string SplitHalf(const v1::Profile& profile) {
  return profile.has_split_half_spearman()
             ? absl::StrFormat("%.3f", profile.split_half_spearman())
             : "not defined (fewer than 4 examples, or a constant half)";
}

std::string Date(const v1::Profile& profile) {
  if (!profile.run().has_started_at()) return "";
  const absl::Time time = absl::FromUnixSeconds(profile.run().started_at().seconds());
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

// "0.0123" with as many decimals as the least value needs for three digits, so that a column lines
// up; with an exponent where that would take more than seven.
std::string FixedOrScientific(double value, double least) {
  int decimals = 3;
  for (double scaled = least; scaled < 0.1 && decimals <= 7; scaled *= 10) ++decimals;
  return decimals > 7 ? absl::StrFormat("%.2e", value) : absl::StrFormat("%.*f", decimals, value);
}

void AddOrigin(const v1::Profile& profile, FactSheet& sheet) {
  const v1::CalibrationSettings& settings = profile.settings();
  sheet.Add("model", {profile.model_name(),
                      absl::StrCat("fingerprint ", ShortId(profile.model_fingerprint())),
                      NameOf(profile.compute_type())});
  sheet.Add(
      "measured",
      {Examples(profile), absl::StrCat("corpus ", profile.corpus_name()),
       absl::StrCat("prefix ", FormatCount(settings.prefix_tokens())),
       absl::StrCat("window ", FormatCount(settings.window_tokens())),
       absl::StrCat("eta ", FormatNumber(settings.eta())), absl::StrCat("sinks ", settings.sinks()),
       absl::StrCat("recent ", settings.recent()), absl::StrCat("seed ", settings.seed())});
}

void AddRun(const v1::Profile& profile, FactSheet& sheet) {
  const v1::CalibrationRun& run = profile.run();
  sheet.Add(
      "run",
      {Date(profile),
       run.duration_seconds() > 0 ? absl::StrCat("took ", FormatSeconds(run.duration_seconds()))
                                  : "",
       run.host().empty() ? "" : absl::StrCat("on ", run.host()),
       run.threads() > 0 ? absl::StrCat(run.threads(), " threads") : "",
       profile.software_version().empty() ? ""
                                          : absl::StrCat("RippleKV ", profile.software_version())});
}

}  // namespace

std::string RenderProfile(const v1::GetProfileResponse& response, ChartScale scale,
                          const Terminal& terminal) {
  const v1::Profile& profile = response.profile();
  FactSheet head;
  head.Add("profile", {profile.profile_id(), response.in_force() ? "in force" : ""});
  AddOrigin(profile, head);
  AddRun(profile, head);
  if (profile.layers().empty()) return head.Render(terminal);

  std::vector<double> values;
  const v1::LayerSensitivity* least = &profile.layers(0);
  const v1::LayerSensitivity* most = least;
  double least_positive = 0;
  for (const v1::LayerSensitivity& layer : profile.layers()) {
    values.push_back(layer.mean_kl());
    if (layer.mean_kl() < least->mean_kl()) least = &layer;
    if (layer.mean_kl() > most->mean_kl()) most = &layer;
    if (layer.mean_kl() > 0 && (least_positive == 0 || layer.mean_kl() < least_positive)) {
      least_positive = layer.mean_kl();
    }
  }
  if (least_positive == 0) least_positive = 1;  // all zero: 0.000
  const BarScale bars = scale == ChartScale::kLog      ? LogScale(values)
                        : scale == ChartScale::kLinear ? LinearScale(values)
                                                       : ReadableScale(values);
  std::vector<BarChartRow> rows;
  for (const v1::LayerSensitivity& layer : profile.layers()) {
    const std::string value = FixedOrScientific(layer.mean_kl(), least_positive);
    rows.push_back({absl::StrCat(layer.layer()), layer.mean_kl(),
                    layer.has_standard_error()
                        ? absl::StrCat(value, " ", terminal.plus_minus(), " ",
                                       FixedOrScientific(layer.standard_error(), least_positive))
                        : value,
                    value});
  }
  FactSheet foot;
  foot.Add("max / min",
           {least->mean_kl() > 0
                ? absl::StrCat(FormatNumber(most->mean_kl() / least->mean_kl()), " (layer ",
                               most->layer(), " / layer ", least->layer(), ")")
                : absl::StrCat("not defined: the least is 0 (layer ", least->layer(), ")")});
  foot.Add("agreement", {absl::StrCat("split-half Spearman ", SplitHalf(profile))});
  head.Add("bars", {"s_l: mean KL in nats", absl::StrCat(terminal.plus_minus(), " standard error"),
                    bars.ToString()});
  return absl::StrCat(head.Render(terminal), "\n",
                      RenderBarChart(rows, bars,
                                     {.width = std::min(terminal.width, kMaxChartColumns),
                                      .utf8 = terminal.utf8,
                                      .mark = std::nullopt}),
                      foot.Render(terminal), RenderDamage(profile, terminal),
                      RenderSizes(profile, terminal));
}

std::string RenderProfileEntry(const v1::Profile& profile, const Terminal& terminal) {
  FactSheet sheet;
  AddOrigin(profile, sheet);
  AddRun(profile, sheet);
  sheet.Add("agreement", {absl::StrCat("split-half Spearman ", SplitHalf(profile))});
  return absl::StrCat(terminal.Bold(profile.profile_id()), "\n", sheet.Render(terminal));
}

std::string RenderCalibration(const v1::CalibrationComplete& complete) {
  const v1::Profile& profile = complete.profile();
  std::string text = absl::StrCat("Profile ", profile.profile_id(), " of ", profile.model_name(),
                                  ": ", Examples(profile), " of corpus ", profile.corpus_name());
  if (complete.from_store()) {
    absl::StrAppend(&text, ", found in the store (measured ", Date(profile), " in ",
                    FormatSeconds(profile.run().duration_seconds()), "; --force measures again)");
  } else {
    absl::StrAppend(&text, ", measured in ", FormatSeconds(profile.run().duration_seconds()));
  }
  absl::StrAppend(&text, ". Split-half rank agreement: ", SplitHalf(profile), ". ",
                  complete.in_force()
                      ? "It is in force: the server sizes its KV pools by it from now on."
                      : "It is not in force: its settings are not those the server is configured "
                        "with.");
  return text;
}

}  // namespace ripplekv
