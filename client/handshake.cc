#include "client/handshake.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace ripplekv {

std::string ExplainHandshake(bool tls, absl::string_view message) {
  // OpenSSL's and BoringSSL's words differ in this only.
  const std::string text = absl::AsciiStrToLower(absl::StrReplaceAll(message, {{"_", " "}}));
  const bool closed = absl::StrContains(text, "socket closed") ||
                      absl::StrContains(text, "connection reset") ||
                      absl::StrContains(text, "broken pipe");
  if (!tls) {
    return closed ? "it ends connections in plain text: if it speaks TLS, call it by TLS" : "";
  }
  if (absl::StrContains(text, "wrong version number")) {
    return "it does not speak TLS: call it in plain text, or turn TLS on there";
  }
  if (absl::StrContains(text, "certificate verify failed")) {
    return "its certificate is of no CA that is trusted here, or not valid today: name the file of "
           "its CA, or renew it there";
  }
  if (absl::StrContains(text, "is not in peer certificate") ||
      absl::StrContains(text, "hostname verification check failed")) {
    return "its certificate is for another name: call it by a name or address that the certificate "
           "holds";
  }
  if (closed || absl::StrContains(text, "alert")) {
    return "it ends connections after the handshake: it may want a client's certificate, of a CA "
           "that it trusts";
  }
  return "";
}

}  // namespace ripplekv
