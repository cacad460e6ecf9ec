#pragma once

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ripplekv/v1/decode.pb.h"

namespace ripplekv {

// Facts about what the layers keep of `tokens` positions: "mean 829 of 4,096 a layer", "least 800
// (layer 0)", "most 858 (layer 29)"; one number where all keep as many. Then the types of keys and
// values, where the server says them: "as int8", "as int8:int4", "as bf16 in 4, int4 in 26 layers".
std::vector<std::string> KeptPositions(
    const google::protobuf::RepeatedPtrField<v1::LayerUsage>& layers, int64_t tokens);

}  // namespace ripplekv
