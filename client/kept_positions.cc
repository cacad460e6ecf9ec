#include "client/kept_positions.h"

#include "absl/strings/str_cat.h"
#include "client/format.h"

namespace ripplekv {

std::vector<std::string> KeptPositions(
    const google::protobuf::RepeatedPtrField<v1::LayerUsage>& layers, int64_t tokens) {
  if (layers.empty()) return {};
  int64_t total = 0;
  const v1::LayerUsage* least = &layers[0];
  const v1::LayerUsage* most = least;
  for (const v1::LayerUsage& layer : layers) {
    total += layer.positions_kept();
    if (layer.positions_kept() < least->positions_kept()) least = &layer;
    if (layer.positions_kept() > most->positions_kept()) most = &layer;
  }
  const bool even = least->positions_kept() == most->positions_kept();
  const std::string mean =
      even ? FormatCount(least->positions_kept())
           : absl::StrCat("mean ", FormatNumber(static_cast<double>(total) / layers.size(), 6));
  std::vector<std::string> facts = {absl::StrCat(mean, " of ", FormatCount(tokens), " a layer")};
  if (even) return facts;
  facts.push_back(absl::StrCat("least ", FormatCount(least->positions_kept()), " (layer ",
                               least->layer(), ")"));
  facts.push_back(
      absl::StrCat("most ", FormatCount(most->positions_kept()), " (layer ", most->layer(), ")"));
  return facts;
}

}  // namespace ripplekv
