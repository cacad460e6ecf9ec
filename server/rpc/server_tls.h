#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace ripplekv {

// What a server shows in a TLS handshake, and whom it lets in; all PEM.
struct TlsPems {
  std::string certificate;
  std::string key;
  std::string client_ca;  // empty: clients need no certificate

  bool operator==(const TlsPems&) const = default;
};

// Server credentials whose certificates can be replaced while connections are open: those stay as
// they are, the next ones see the new certificates a second later at most.
//
// gRPC reads certificates again from files, and takes what it finds: a certificate beside another
// one's key, as files have while they are replaced one after the other, would leave a server that
// no handshake succeeds with. So it is given files in memory that only this class writes, each as a
// whole.
class ServerTls {
 public:
  // `pems` passed CheckKeyPair and CheckCertificates (client/credential_files.h). INTERNAL where
  // the system has no files in memory.
  static absl::StatusOr<std::unique_ptr<ServerTls>> Create(const TlsPems& pems);
  ~ServerTls();
  ServerTls(const ServerTls&) = delete;
  ServerTls& operator=(const ServerTls&) = delete;

  const std::shared_ptr<grpc::ServerCredentials>& credentials() const { return credentials_; }

  // Not for turning client certificates on or off: client_ca is empty where it was in Create.
  absl::Status Replace(const TlsPems& pems);

 private:
  ServerTls() = default;
  // Puts a file of that content in the place of descriptor *file (-1: a new one).
  absl::Status Write(const std::string& content, int* file);

  int pair_ = -1;
  int client_ca_ = -1;
  int written_ = 0;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
};

}  // namespace ripplekv
