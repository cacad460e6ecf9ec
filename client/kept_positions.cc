#include "client/kept_positions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/format.h"
#include "client/names.h"

namespace ripplekv {
namespace {

std::string StoredAs(const google::protobuf::RepeatedPtrField<v1::LayerUsage>& layers) {
  std::vector<std::pair<std::string, int>> counts;  // in the order of the layers
  for (const v1::LayerUsage& layer : layers) {
    std::string types = NameOf(layer.key_type());
    if (layer.value_type() != layer.key_type()) {
      absl::StrAppend(&types, ":", NameOf(layer.value_type()));
    }
    const auto known = std::find_if(counts.begin(), counts.end(),
                                    [&](const auto& count) { return count.first == types; });
    if (known == counts.end()) {
      counts.emplace_back(std::move(types), 1);
    } else {
      ++known->second;
    }
  }
  if (counts.size() == 1) return absl::StrCat("as ", counts[0].first);
  return absl::StrCat("as ",
                      absl::StrJoin(counts, ", ",
                                    [](std::string* out, const auto& count) {
                                      absl::StrAppend(out, count.first, " in ", count.second);
                                    }),
                      " layers");
}

}  // namespace

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
  std::vector<std::string> facts;
  facts.reserve(4);
  facts.push_back(absl::StrCat(mean, " of ", FormatCount(tokens), " a layer"));
  if (!even) {
    facts.push_back(absl::StrCat("least ", FormatCount(least->positions_kept()), " (layer ",
                                 least->layer(), ")"));
    facts.push_back(
        absl::StrCat("most ", FormatCount(most->positions_kept()), " (layer ", most->layer(), ")"));
  }
  if (layers[0].key_type() != v1::KV_TYPE_UNSPECIFIED) facts.push_back(StoredAs(layers));
  return facts;
}

}  // namespace ripplekv
