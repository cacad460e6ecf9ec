#include "client/json_line.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "client/rpc_error.h"

namespace ripplekv {

std::string JsonLine(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) {
    // Only a message that is not valid itself, such as a timestamp out of range.
    return ErrorJson(absl::InternalError(absl::StrCat(
        message.GetDescriptor()->full_name(), " cannot be written as JSON: ", status.ToString())));
  }
  return json;
}

}  // namespace ripplekv
