#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace ripplekv {

// A message as one line of JSON by protobuf's JSON mapping (so that its libraries read it back):
// field names as in the protos, fields at their default written out, absent `optional` fields and
// messages left out, 64-bit integers as strings, bytes in base64. No line feed.
std::string JsonLine(const google::protobuf::Message& message);

}  // namespace ripplekv
