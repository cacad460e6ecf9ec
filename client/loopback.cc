#include "client/loopback.h"

#include <arpa/inet.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ripplekv {

bool IsLoopbackHost(absl::string_view host) {
  if (host == "localhost") return true;
  const std::string text(host);
  in_addr v4;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool IsLoopbackTarget(absl::string_view target) {
  if (absl::StartsWith(target, "unix:") || absl::StartsWith(target, "unix-abstract:")) return true;
  if (const size_t slash = target.rfind('/'); slash != absl::string_view::npos) {
    target.remove_prefix(slash + 1);
  }
  for (const absl::string_view scheme : {"dns:", "ipv4:", "ipv6:"}) {
    absl::ConsumePrefix(&target, scheme);
  }
  for (absl::string_view address : absl::StrSplit(target, ',')) {
    absl::string_view host = address.substr(0, address.rfind(':'));
    if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
    if (!IsLoopbackHost(host)) return false;
  }
  return true;
}

}  // namespace ripplekv
