#pragma once

#include <string>

#include "ripplekv/v1/calibration.pb.h"
#include "ripplekv/v1/decode.pb.h"

namespace ripplekv {

// Values of the API as people read them.

std::string NameOf(v1::ComputeType type);        // "bf16"
std::string NameOf(v1::KvType type);             // "bf16"
std::string NameOf(v1::Pooling pooling);         // "max"
std::string NameOf(v1::FinishReason reason);     // "end of text"
std::string NameOf(v1::CalibrationState state);  // "running"
// "ripple (r 1.5, gamma 16)", "uniform"; empty where none is set.
std::string Describe(const v1::Allocator& allocator);
// "retention 0.2", "24,576 positions", "every position"; empty where none is set.
std::string Describe(const v1::CacheSize& size);
// "SnapKV (window 32, kernel 7, max pooling)"; empty where none is set.
std::string Describe(const v1::Selector& selector);
// "from profile 0123456789ab", "without a profile", "from the given sensitivities"
std::string DescribeSource(const v1::Plan& plan);
// The first 12 characters of an id.
std::string ShortId(const std::string& id);

}  // namespace ripplekv
