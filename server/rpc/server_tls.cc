#include "server/rpc/server_tls.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

constexpr unsigned int kReadAgainSeconds = 1;  // gRPC's least

std::string PathOf(int file) { return absl::StrCat("/proc/self/fd/", file); }

absl::Status Failed(const char* what) {
  return absl::InternalError(
      absl::StrCat("certificates cannot be handed to gRPC: ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerTls>> ServerTls::Create(const TlsPems& pems) {
  std::unique_ptr<ServerTls> tls(new ServerTls);
  if (absl::Status status = tls->Replace(pems); !status.ok()) return status;
  const std::string pair = PathOf(tls->pair_);
  if (access(pair.c_str(), R_OK) != 0) return Failed(pair.c_str());
  const bool mutual = !pems.client_ca.empty();
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          pair, pair, mutual ? PathOf(tls->client_ca_) : "", kReadAgainSeconds));
  options.watch_identity_key_cert_pairs();
  if (mutual) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  tls->credentials_ = grpc::experimental::TlsServerCredentials(options);
  return tls;
}

ServerTls::~ServerTls() {
  credentials_.reset();  // gRPC stops reading
  for (const int file : {pair_, client_ca_}) {
    if (file >= 0) close(file);
  }
}

absl::Status ServerTls::Replace(const TlsPems& pems) {
  // Key and chain in one file, which gRPC reads once as each of them: they cannot come apart.
  absl::Status status = Write(absl::StrCat(pems.key, "\n", pems.certificate), &pair_);
  if (status.ok() && !pems.client_ca.empty()) status = Write(pems.client_ca, &client_ca_);
  return status;
}

absl::Status ServerTls::Write(const std::string& content, int* file) {
  const int written = memfd_create("ripplekv-tls", MFD_CLOEXEC);
  if (written < 0) return Failed("memfd_create");
  absl::Status status;
  if (write(written, content.data(), content.size()) != static_cast<ssize_t>(content.size())) {
    status = Failed("write");
  }
  // By the time in whole seconds gRPC sees whether a file was replaced while it read it twice.
  const timespec time = {.tv_sec = ++written_, .tv_nsec = 0};
  const timespec times[] = {time, time};
  if (status.ok() && futimens(written, times) != 0) status = Failed("futimens");
  if (status.ok() && *file < 0) {
    *file = written;
    return status;
  }
  if (status.ok() && dup3(written, *file, O_CLOEXEC) < 0) status = Failed("dup3");
  close(written);
  return status;
}

}  // namespace ripplekv
