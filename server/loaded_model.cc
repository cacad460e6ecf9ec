#include "server/loaded_model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/kv_page.h"
#include "model/fingerprint.h"
#include "model/gguf.h"
#include "model/weights.h"

namespace ripplekv {
namespace {

std::vector<std::string> WeightTypes(const GgufFile& file) {
  std::map<std::string, size_t> bytes;
  for (const GgufTensor& tensor : file.tensors()) bytes[name(tensor.type)] += tensor.size_bytes;
  std::vector<std::pair<std::string, size_t>> sorted(bytes.begin(), bytes.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> names;
  for (const auto& [type, size] : sorted) names.push_back(type);
  return names;
}

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  if (absl::StrContains(status.message(), path)) return status;
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

int64_t ModelInfo::kv_bytes_per_position_layer() const {
  return static_cast<int64_t>(KvPageLayout::RowBytes(kv_types, config.kv_heads, config.head_dim));
}

absl::StatusOr<LoadedModel> LoadModel(const std::string& path, ComputeType compute,
                                      std::optional<KvTypes> kv_types, int threads) {
  absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  if (!file.ok()) return WithPath(path, file.status());
  absl::StatusOr<ModelConfig> config = ModelConfig::FromGguf(*file);
  if (!config.ok()) return WithPath(path, config.status());
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromGguf(*file);
  if (!tokenizer.ok()) return WithPath(path, tokenizer.status());
  absl::StatusOr<std::string> fingerprint = FileSha256(path);
  if (!fingerprint.ok()) return WithPath(path, fingerprint.status());
  absl::StatusOr<std::shared_ptr<const Weights>> weights = Weights::Load(*file, *config);
  if (!weights.ok()) return WithPath(path, weights.status());

  LoadedModel loaded;
  loaded.pool = std::make_unique<ThreadPool>(threads);
  absl::StatusOr<std::unique_ptr<Decoder>> decoder =
      Decoder::Create(*weights, compute, loaded.pool.get());
  if (!decoder.ok()) return WithPath(path, decoder.status());
  loaded.decoder = *std::move(decoder);

  auto info = std::make_shared<ModelInfo>(ModelInfo{
      .config = *config,
      .fingerprint = *fingerprint,
      .weight_types = WeightTypes(*file),
      .compute = compute,
      .kv_types = kv_types.value_or(loaded.decoder->kv_type()),
      .tokenizer = *std::move(tokenizer),
      .chat_template = absl::UnknownError(""),
      .eos_token_ids = {},
  });
  info->chat_template = ChatTemplate::FromGguf(*file, *info->tokenizer);
  for (int32_t id = 0; id < info->tokenizer->vocab_size(); ++id) {
    if (info->tokenizer->IsEndOfGeneration(id)) info->eos_token_ids.push_back(id);
    info->longest_token_bytes =
        std::max(info->longest_token_bytes, info->tokenizer->TokenBytes(id).size());
  }
  loaded.info = std::move(info);
  return loaded;
}

}  // namespace ripplekv
