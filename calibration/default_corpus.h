#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "calibration/corpus.h"

namespace ripplekv {

// The texts of calibration/corpus/[0-9]*.txt in byte order of their names, part of the program.
absl::StatusOr<Corpus> DefaultCorpus();

// DefaultCorpus() for "default" or an empty name, else LoadCorpus.
absl::StatusOr<Corpus> FindCorpus(const std::string& corpus_dir, const std::string& name);

}  // namespace ripplekv
