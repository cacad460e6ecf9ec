#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "model/gguf.h"
#include "model/model_config.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace ripplekv {

inline std::string TestModelPath() {
  const char* path = std::getenv("RIPPLEKV_MODEL");
  return path != nullptr ? path : RIPPLEKV_DEFAULT_MODEL;
}

/// The test model's file, opened once; a missing one fails the test that asks.
inline const GgufFile* TestModelFile() {
  static absl::StatusOr<GgufFile> file = GgufFile::Open(TestModelPath());
  if (!file.ok()) {
    ADD_FAILURE() << file.status()
                  << "\nGet the model with scripts/get_model.sh, or set RIPPLEKV_MODEL.";
    return nullptr;
  }
  return &*file;
}

inline std::shared_ptr<const Tokenizer> TestTokenizer() {
  const GgufFile* file = TestModelFile();
  if (file == nullptr) return nullptr;
  static std::shared_ptr<const Tokenizer> tokenizer = [&]() -> std::shared_ptr<const Tokenizer> {
    auto created = Tokenizer::FromGguf(*file);
    if (!created.ok()) {
      ADD_FAILURE() << created.status();
      return nullptr;
    }
    return *std::move(created);
  }();
  return tokenizer;
}

inline std::shared_ptr<const Weights> TestWeights() {
  const GgufFile* file = TestModelFile();
  if (file == nullptr) return nullptr;
  static std::shared_ptr<const Weights> weights = [&]() -> std::shared_ptr<const Weights> {
    auto config = ModelConfig::FromGguf(*file);
    if (!config.ok()) {
      ADD_FAILURE() << config.status();
      return nullptr;
    }
    auto loaded = Weights::Load(*file, *config);
    if (!loaded.ok()) {
      ADD_FAILURE() << loaded.status();
      return nullptr;
    }
    return *std::move(loaded);
  }();
  return weights;
}

}  // namespace ripplekv
