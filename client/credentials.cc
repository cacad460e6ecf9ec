#include "client/credentials.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/loopback.h"

namespace ripplekv {

std::shared_ptr<grpc::ChannelCredentials> Credentials::channel() const {
  if (!tls) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials(
      {.pem_root_certs = ca, .pem_private_key = key, .pem_cert_chain = certificate});
}

absl::StatusOr<Credentials> ReadCredentials(const CredentialFiles& files) {
  Credentials credentials;
  credentials.tls =
      files.tls || !files.ca.empty() || !files.certificate.empty() || !files.key.empty();
  if (files.certificate.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(
        files.key.empty()
            ? absl::StrCat("the certificate ", files.certificate, " needs its key: --tls-key FILE")
            : absl::StrCat("the key ", files.key,
                           " needs its certificate: --tls-certificate FILE"));
  }
  const auto read = [](const std::string& path, std::string* content) {
    if (path.empty()) return absl::OkStatus();
    absl::StatusOr<std::string> text = ReadCredentialFile(path);
    if (text.ok()) *content = *std::move(text);
    return text.status();
  };
  absl::Status status = read(files.ca, &credentials.ca);
  if (status.ok() && !files.ca.empty()) status = CheckCertificates(files.ca, credentials.ca);
  if (status.ok()) status = read(files.certificate, &credentials.certificate);
  if (status.ok()) status = read(files.key, &credentials.key);
  if (status.ok() && !files.key.empty()) {
    status = CheckKeyPair(files.certificate, credentials.certificate, files.key, credentials.key);
  }
  if (!status.ok()) return status;
  if (!files.token_file.empty()) {
    absl::StatusOr<std::string> token = ReadTokenFile(files.token_file);
    if (!token.ok()) return token.status();
    credentials.token = *std::move(token);
  }
  return credentials;
}

absl::Status CheckTokenIsSafe(const Credentials& credentials, const std::string& address) {
  if (credentials.token.empty() || credentials.tls || IsLoopbackTarget(address)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the token would be sent to ", address,
                   " in plain text, for everybody on the way to read: call by TLS, or a proxy on "
                   "this machine that does"));
}

}  // namespace ripplekv
