#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/client.h"
#include "client/terminal.h"

namespace ripplekv {

// Exit codes of `ripplekv`.
inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;  // the call failed
inline constexpr int kExitUsage = 2;  // wrong arguments or unreadable input
inline constexpr int kExitInterrupted = 130;

// What every command gets: the options before or after the command's name, and where to write.
struct Cli {
  std::string server = "127.0.0.1:50051";
  std::optional<double> timeout_seconds;
  std::string request_id;
  bool json = false;
  CredentialFiles credential_files;
  Credentials credentials;  // once ReadCredentialFlags has read them

  Terminal out;  // standard output
  Terminal err;  // standard error
  Canceller canceller;

  // The command that was named; set while arguments are parsed.
  std::function<int(Cli&)> command;

  // Reads --tls and its like; --token-file goes before RIPPLEKV_TOKEN. INVALID_ARGUMENT: what
  // cannot be used.
  absl::Status ReadCredentialFlags();
  Client MakeClient() const { return Client(server, credentials); }
  CallOptions Options();

  // Writes an error to standard error, as JSON with --json, and returns the exit code for it:
  // interrupted where Ctrl-C cancelled the call.
  int CallFailed(const absl::Status& status);
  // The same for input that cannot be used.
  int UsageError(const absl::Status& status);

  // Text or JSON to standard output, as it is.
  void Write(absl::string_view text);
  // Text to standard error, after all that was written to standard output.
  void WriteSide(absl::string_view text);
  // A line of JSON to standard output.
  void WriteJson(const google::protobuf::Message& message);
};

}  // namespace ripplekv
