#pragma once

#include "ripplekv/v1/decode.pb.h"
#include "server/rpc/decode_service.h"

namespace ripplekv {

// What GetModel answers: the model, limits, and the plan in force now.
void ModelToProto(const DecodeBackend& backend, v1::GetModelResponse* proto);

}  // namespace ripplekv
