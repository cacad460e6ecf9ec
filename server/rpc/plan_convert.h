#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "calibration/policy/plan.h"
#include "ripplekv/v1/decode.pb.h"
#include "ripplekv/v1/profile.pb.h"

namespace ripplekv {

// What absent parameters of a request's allocator or selector mean: the server's options.
struct PlanDefaults {
  Allocators allocators;
  Selectors selectors;
  int layers = 0;  // of the model; 0: lists of one value a layer are checked later
};

// Unset where the message says nothing. INVALID_ARGUMENT names field (after `path`, e.g.
// "kv.size."), value and range.
absl::StatusOr<std::optional<Size>> SizeFromProto(const v1::CacheSize& proto,
                                                  const std::string& path);

// INVALID_ARGUMENT naming the field where a request gives a size beside an allocator that needs
// none.
absl::Status CheckGivenOnce(const Allocator& allocator, bool gives_size, const std::string& field);

v1::CacheSize SizeToProto(const Size& size);
// source: PROFILE where a profile decides the shares, INLINE where sensitivities without a profile
// do, FIXED where nothing measured does and they differ.
v1::Plan PlanToProto(const Plan& plan);

}  // namespace ripplekv
