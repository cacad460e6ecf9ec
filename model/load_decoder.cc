#include "model/load_decoder.h"

#include <utility>

#include "model/gguf.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace ripplekv {

absl::StatusOr<std::unique_ptr<Decoder>> LoadDecoder(const std::string& path,
                                                     std::string_view compute, ThreadPool* pool) {
  auto file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  auto config = ModelConfig::FromGguf(*file);
  if (!config.ok()) return config.status();
  auto weights = Weights::Load(*file, *config);
  if (!weights.ok()) return weights.status();
  auto type = ParseComputeType(compute);
  if (!type.ok()) return type.status();
  return Decoder::Create(*std::move(weights), *type, pool);
}

}  // namespace ripplekv
