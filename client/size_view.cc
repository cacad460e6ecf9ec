#include "client/size_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/fact_sheet.h"
#include "client/format.h"
#include "client/names.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

constexpr int kLabelColumns = 10;
constexpr int kCellColumns = 19;

std::string Types(const v1::CalibrationSettings& settings) {
  if (settings.size_chooses_types()) return "types chosen layer by layer";
  const std::string keys = NameOf(settings.size_key_type());
  const std::string values = NameOf(settings.size_value_type());
  return keys == values ? absl::StrCat("rows in ", keys)
                        : absl::StrCat("keys in ", keys, ", values in ", values);
}

std::string Right(const std::string& text, int columns) {
  return absl::StrCat(std::string(static_cast<size_t>(std::max(0, columns - Columns(text))), ' '),
                      text);
}

std::string Cell(const v1::Damage& damage, const Terminal& terminal) {
  const std::string mean = FormatNumber(damage.mean_kl(), 3);
  if (!damage.has_standard_error()) return mean;
  return absl::StrCat(mean, " ", terminal.plus_minus(), " ",
                      FormatNumber(damage.standard_error(), 2));
}

// Of the prompt lengths [begin, end).
std::string RenderBlock(const v1::Profile& profile, int begin, int end, const Terminal& terminal) {
  const v1::CalibrationSettings& settings = profile.settings();
  const int retentions = settings.size_retentions_size();
  std::string line = Right("retention", kLabelColumns);
  for (int p = begin; p < end; ++p) {
    line +=
        Right(absl::StrCat(FormatCount(settings.size_prompt_tokens(p)), " tokens"), kCellColumns);
  }
  std::string text = absl::StrCat(terminal.Dim(line), "\n");
  for (int r = 0; r < retentions; ++r) {
    line = Right(FormatNumber(settings.size_retentions(r)), kLabelColumns);
    for (int p = begin; p < end; ++p) {
      line += Right(Cell(profile.sizes(p * retentions + r).damage(), terminal), kCellColumns);
    }
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace

std::string RenderSizes(const v1::Profile& profile, const Terminal& terminal) {
  const v1::CalibrationSettings& settings = profile.settings();
  const int prompts = settings.size_prompt_tokens_size();
  if (profile.sizes().empty() ||
      profile.sizes_size() != prompts * settings.size_retentions_size()) {
    return "";
  }
  FactSheet head;
  head.Add("sizes",
           {"mean KL in nats, every layer compressed",
            absl::StrCat(terminal.plus_minus(), " standard error"),
            absl::StrCat(FormatCount(settings.size_examples()), " examples"),
            Describe(settings.size_allocator()), Describe(settings.selector()), Types(settings)});
  std::string text = absl::StrCat("\n", head.Render(terminal));
  const int room = std::max(1, (terminal.width - kLabelColumns) / kCellColumns);
  for (int begin = 0; begin < prompts; begin += room) {
    absl::StrAppend(&text, RenderBlock(profile, begin, std::min(begin + room, prompts), terminal));
  }
  return text;
}

}  // namespace ripplekv
