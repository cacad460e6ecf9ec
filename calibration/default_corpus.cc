#include "calibration/default_corpus.h"

#include <vector>

#include "calibration/embedded_corpus.h"

namespace ripplekv {

absl::StatusOr<Corpus> DefaultCorpus() {
  std::vector<std::string> texts;
  for (std::string_view text : EmbeddedCorpusTexts()) texts.emplace_back(text);
  return CorpusFromTexts(kDefaultCorpusName, std::move(texts));
}

absl::StatusOr<Corpus> FindCorpus(const std::string& corpus_dir, const std::string& name) {
  if (name.empty() || name == kDefaultCorpusName) return DefaultCorpus();
  return LoadCorpus(corpus_dir, name);
}

}  // namespace ripplekv
