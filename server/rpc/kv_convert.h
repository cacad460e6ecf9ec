#pragma once

#include "absl/status/statusor.h"
#include "ripplekv/v1/decode.pb.h"
#include "server/engine/request.h"
#include "server/rpc/plan_convert.h"

namespace ripplekv {

// Whose KvParams they are.
enum class KvUse {
  kGenerate,             // every field
  kGenerateOverContext,  // growth_cap only: CreateContext fixed the others
  kPrefill,              // Score, CreateContext: all but growth_cap
  kPrefillOverContext,   // nothing
};

// INVALID_ARGUMENT names field ("kv.size.retention"), value and range.
absl::StatusOr<KvParams> KvParamsFromProto(const v1::KvParams& proto, const PlanDefaults& defaults,
                                           KvUse use);

}  // namespace ripplekv
