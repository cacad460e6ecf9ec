#include "client/damage_view.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/fact_sheet.h"
#include "client/format.h"
#include "client/names.h"

namespace ripplekv {
namespace {

constexpr int kLabelColumns = 5;
constexpr int kCellColumns = 11;

struct Column {
  std::string head;
  std::vector<std::string> cells;
};

std::string TypesName(const v1::StorageDamage& stored) {
  return stored.keys() == stored.values()
             ? NameOf(stored.keys())
             : absl::StrCat(NameOf(stored.keys()), ":", NameOf(stored.values()));
}

std::vector<Column> Columns(const v1::Profile& profile) {
  std::vector<Column> columns;
  const v1::LayerSensitivity& first = profile.layers(0);
  for (const v1::RetentionDamage& kept : first.retentions()) {
    columns.push_back({absl::StrCat(FormatNumber(kept.retention() * 100, 3), " %"), {}});
  }
  for (const v1::StorageDamage& stored : first.storage())
    columns.push_back({TypesName(stored), {}});
  const auto add = [&](size_t place, const v1::Damage& damage) {
    if (place < columns.size()) columns[place].cells.push_back(FormatNumber(damage.mean_kl(), 3));
  };
  for (const v1::LayerSensitivity& layer : profile.layers()) {
    size_t place = 0;
    for (const v1::RetentionDamage& kept : layer.retentions()) add(place++, kept.damage());
    for (const v1::StorageDamage& stored : layer.storage()) add(place++, stored.damage());
  }
  return columns;
}

std::string Line(absl::string_view label, const std::vector<std::string>& cells) {
  std::string line = absl::StrFormat("%*s", kLabelColumns, label);
  for (const std::string& cell : cells) absl::StrAppendFormat(&line, "%*s", kCellColumns, cell);
  return line;
}

std::string RenderBlock(const std::vector<Column>& columns, size_t begin, size_t end, size_t layers,
                        const Terminal& terminal) {
  std::vector<std::string> cells;
  for (size_t c = begin; c < end; ++c) cells.push_back(columns[c].head);
  std::string text = absl::StrCat(terminal.Dim(Line("layer", cells)), "\n");
  for (size_t l = 0; l < layers; ++l) {
    cells.clear();
    for (size_t c = begin; c < end; ++c) {
      cells.push_back(l < columns[c].cells.size() ? columns[c].cells[l] : "");
    }
    absl::StrAppend(&text, Line(absl::StrCat(l), cells), "\n");
  }
  return text;
}

std::string Correlation(absl::string_view of, bool present, const v1::RankCorrelation& value) {
  if (!present) return absl::StrCat(of, ": not defined");
  return absl::StrFormat("%s: %.3f [%.3f, %.3f]", of, value.spearman(), value.low(), value.high());
}

}  // namespace

std::string RenderDamage(const v1::Profile& profile, const Terminal& terminal) {
  if (profile.layers().empty()) return "";
  const std::vector<Column> columns = Columns(profile);
  if (columns.empty()) return "";
  const v1::CalibrationSettings& settings = profile.settings();
  FactSheet head;
  head.Add("damage", {"mean KL in nats, one layer compressed alone: rows kept, storage",
                      absl::StrCat("last ", FormatCount(settings.damage_examples()), " examples")});
  std::string text = absl::StrCat("\n", head.Render(terminal));
  const auto room =
      static_cast<size_t>(std::max(1, (terminal.width - kLabelColumns) / kCellColumns));
  for (size_t begin = 0; begin < columns.size(); begin += room) {
    absl::StrAppend(&text, RenderBlock(columns, begin, std::min(begin + room, columns.size()),
                                       static_cast<size_t>(profile.layers_size()), terminal));
  }
  if (!profile.has_damage_agreement()) return text;
  const v1::DamageAgreement& agreement = profile.damage_agreement();
  FactSheet foot;
  foot.Add(
      "rank by",
      {absl::StrCat("Spearman with the damage at ", FormatNumber(agreement.retention() * 100, 3),
                    " % [95 % interval]"),
       Correlation("s_l", agreement.has_sensitivity(), agreement.sensitivity()),
       Correlation("local response", agreement.has_local_response(), agreement.local_response()),
       Correlation("layer index", agreement.has_layer_index(), agreement.layer_index())});
  absl::StrAppend(&text, foot.Render(terminal));
  return text;
}

}  // namespace ripplekv
