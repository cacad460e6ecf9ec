#pragma once

#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/credential_files.h"

namespace ripplekv {

// What a caller shows, and whom it trusts.
struct Credentials {
  bool tls = false;
  std::string ca;           // PEM; empty: the system's
  std::string certificate;  // PEM, with `key`: shown to a server that asks for one
  std::string key;
  std::string token;  // sent with every call; empty: none

  std::shared_ptr<grpc::ChannelCredentials> channel() const;
};

// Reads and checks. INVALID_ARGUMENT names the file, or what is missing beside what.
absl::StatusOr<Credentials> ReadCredentials(const CredentialFiles& files);

// INVALID_ARGUMENT where a token would leave this machine in plain text.
absl::Status CheckTokenIsSafe(const Credentials& credentials, const std::string& address);

}  // namespace ripplekv
