#include "client/cli/cli.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/json_line.h"
#include "client/loopback.h"
#include "client/rpc_error.h"

namespace ripplekv {

absl::Status Cli::ReadCredentialFlags() {
  absl::StatusOr<Credentials> read = ReadCredentials(credential_files);
  if (!read.ok()) return read.status();
  credentials = *std::move(read);
  const char* token = std::getenv("RIPPLEKV_TOKEN");
  if (credential_files.token_file.empty() && token != nullptr && *token != '\0') {
    if (absl::Status wrong = CheckToken("RIPPLEKV_TOKEN", token); !wrong.ok()) return wrong;
    credentials.token = token;
  }
  return CheckTokenIsSafe(credentials, server);
}

CallOptions Cli::Options() {
  return {.timeout_seconds = timeout_seconds, .request_id = request_id, .canceller = &canceller};
}

int Cli::CallFailed(const absl::Status& status) {
  if (canceller.cancelled()) {
    WriteSide(json ? absl::StrCat(ErrorJson(absl::CancelledError("interrupted")), "\n")
                   : "\nripplekv: interrupted\n");
    return kExitInterrupted;
  }
  if (json) {
    WriteSide(absl::StrCat(ErrorJson(status), "\n"));
    return kExitError;
  }
  std::string text = absl::StrCat(err.Bold("ripplekv: "), ErrorText(status), "\n");
  if (absl::IsUnavailable(status) &&
      absl::StartsWith(status.message(), "no server can be reached")) {
    if (IsLoopbackTarget(server)) {
      absl::StrAppend(&text, "  Start one:        ripplekv-server --model FILE --listen ", server,
                      "\n  Or name another:  ");
    } else {
      absl::StrAppend(&text, "  Name another:     ");
    }
    absl::StrAppend(&text, "ripplekv --server HOST:PORT (or RIPPLEKV_SERVER)\n");
  }
  if (absl::IsUnauthenticated(status)) {
    absl::StrAppend(&text, "  A token is given with --token-file FILE or RIPPLEKV_TOKEN.\n");
  }
  if (absl::StartsWith(status.message(), "no connection to")) {
    absl::StrAppend(&text,
                    "  TLS: --tls, --tls-ca FILE, --tls-certificate FILE, --tls-key FILE (see "
                    "ripplekv --help).\n");
  }
  if (absl::IsDeadlineExceeded(status) && timeout_seconds) {
    absl::StrAppend(&text, "  The call took longer than --timeout ", *timeout_seconds,
                    " seconds; give it more, or none.\n");
  }
  WriteSide(text);
  return kExitError;
}

int Cli::UsageError(const absl::Status& status) {
  WriteSide(json ? absl::StrCat(ErrorJson(status), "\n")
                 : absl::StrCat(err.Bold("ripplekv: "), status.message(), "\n"));
  return kExitUsage;
}

void Cli::Write(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void Cli::WriteSide(absl::string_view text) {
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void Cli::WriteJson(const google::protobuf::Message& message) {
  Write(absl::StrCat(JsonLine(message), "\n"));
}

}  // namespace ripplekv
