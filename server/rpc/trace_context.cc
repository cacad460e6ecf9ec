#include "server/rpc/trace_context.h"

#include "server/rpc/call.h"

namespace ripplekv {
namespace {

constexpr absl::string_view kHexDigits = "0123456789abcdef";

bool IsHex(absl::string_view text) {
  return text.find_first_not_of(kHexDigits) == absl::string_view::npos;
}

// An id of zeros is none.
bool IsId(absl::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != absl::string_view::npos;
}

}  // namespace

std::optional<std::string> ParseTraceparent(absl::string_view header) {
  // VERSION-TRACE-PARENT-FLAGS
  constexpr size_t kLength = 2 + 1 + 32 + 1 + 16 + 1 + 2;
  if (header.size() < kLength) return std::nullopt;
  const absl::string_view version = header.substr(0, 2);
  const absl::string_view trace = header.substr(3, 32);
  if (header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  if (!IsHex(version) || version == "ff" || !IsId(trace)) return std::nullopt;
  if (!IsId(header.substr(36, 16)) || !IsHex(header.substr(53, 2))) return std::nullopt;
  if (header.size() > kLength && (version == "00" || header[kLength] != '-')) return std::nullopt;
  return std::string(trace);
}

std::string TraceIdOf(const grpc::CallbackServerContext& context) {
  const auto header = context.client_metadata().find("traceparent");
  if (header != context.client_metadata().end()) {
    const auto id = ParseTraceparent({header->second.data(), header->second.size()});
    if (id.has_value()) return *id;
  }
  return RandomId();
}

}  // namespace ripplekv
