#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "calibration/policy/selector.h"
#include "ripplekv/v1/decode.pb.h"

namespace ripplekv {

// Unset where the message says nothing; parameters that it leaves out are those of `defaults`.
// INVALID_ARGUMENT names field (after `path`, e.g. "kv.selector."), value and range.
absl::StatusOr<std::optional<SelectorSpec>> SelectorFromProto(const v1::Selector& proto,
                                                              const Selectors& defaults,
                                                              const std::string& path);

// Every parameter is set.
v1::Selector SelectorToProto(const SelectorSpec& selector);

}  // namespace ripplekv
