#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

// Files that prove who one is, and what of them can be told before anybody is called. Every error
// is INVALID_ARGUMENT, names the file and never holds its content.

// What a caller shows and whom it trusts (client/credentials.h), as paths; empty: not given. Any of
// ca, certificate and key means TLS.
struct CredentialFiles {
  bool tls = false;
  std::string ca, certificate, key;
  std::string token_file;
};

// A whole file of at most 1 MiB.
absl::StatusOr<std::string> ReadCredentialFile(const std::string& path);

// OK where `pem` holds one certificate or more, all of them sound.
absl::Status CheckCertificates(const std::string& path, absl::string_view pem);

// OK where `certificate` is a chain that TLS takes, and `key` the key of its first certificate,
// without a passphrase.
absl::Status CheckKeyPair(const std::string& certificate_path, absl::string_view certificate,
                          const std::string& key_path, absl::string_view key);

// When the first of the certificates ends, in seconds since the Unix epoch. The error begins with
// `path`.
absl::StatusOr<int64_t> CertificateExpiry(const std::string& path, absl::string_view pem);

// A bearer token alone in a file: 16 to 512 printable ASCII characters without spaces, white space
// around them left out.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);
// The same of a token that is given as text; the error begins with `name`.
absl::Status CheckToken(absl::string_view name, absl::string_view token);

}  // namespace ripplekv
