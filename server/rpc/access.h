#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/options.h"
#include "server/rpc/server_tls.h"
#include "server/rpc/tokens.h"

namespace ripplekv {

// Who may connect and call, and who a caller is: certificates and tokens, read again when their
// files change. A file that is broken then is logged and changes nothing. Thread-safe.
class Access {
 public:
  // Reads the files. INVALID_ARGUMENT names the option, the file and what is wrong with it. `log`
  // and `metrics` outlive this object.
  static absl::StatusOr<std::unique_ptr<Access>> Open(const ServerOptions& options, Log* log,
                                                      Metrics* metrics);
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

  // What the server listens with.
  std::shared_ptr<grpc::ServerCredentials> credentials() const;

  // Who calls. The one place that decides it: the common name of the client certificate's subject
  // (mutual TLS), else the name of the token, else "anonymous". UNAUTHENTICATED where tokens are
  // needed and there is none, or nobody's.
  absl::StatusOr<std::string> CallerOf(const grpc::CallbackServerContext& context) const;

 private:
  Access(const ServerOptions& options, Log* log, Metrics* metrics);
  absl::Status ReadTls();
  absl::Status ReadTokens();
  void Watch();
  void ReadAgain(absl::Status (Access::*read)(), const char* event, std::string* last_error);
  absl::StatusOr<std::string> TokenName(const grpc::CallbackServerContext& context) const;

  const std::string certificate_, key_, client_ca_, token_file_;  // paths; empty: not given
  Log* const log_;
  Metrics* const metrics_;
  // Of the constructing thread, then of thread_.
  TlsPems pems_;
  std::string token_text_;
  std::unique_ptr<ServerTls> tls_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::shared_ptr<const Tokens> tokens_;  // null: calls need none
  std::thread thread_;
};

}  // namespace ripplekv
