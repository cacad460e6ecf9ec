#include "server/rpc/access.h"

#include <grpc/grpc_security_constants.h>

#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/credential_files.h"

namespace ripplekv {
namespace {

constexpr std::chrono::seconds kReadAgain(1);
constexpr char kAnonymous[] = "anonymous";

absl::Status Read(const char* option, const std::string& path, std::string* content) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  const std::filesystem::file_status found = std::filesystem::status(path, error);
  if (std::filesystem::exists(found) && !std::filesystem::is_regular_file(found)) {
    // A pipe would be waited for, at every look.
    return absl::InvalidArgumentError(absl::StrCat(
        option, ": ", path, ": must be a regular file, since it is read again and again"));
  }
  absl::StatusOr<std::string> text = ReadCredentialFile(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", text.status().message()));
  }
  *content = *std::move(text);
  return absl::OkStatus();
}

absl::Status WithOption(const char* option, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", status.message()));
}

// As 2026-01-31T12:00:00Z.
std::string FormatTime(int64_t unix_seconds) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(unix_seconds),
                          absl::UTCTimeZone());
}

// Certificates that have ended are no error: others may be on their way.
void WarnOfEnded(Log& log, const char* option, const std::string& path, int64_t expiry) {
  if (expiry > absl::ToUnixSeconds(absl::Now())) return;
  log.Warning("tls_certificate_ended",
              {{"option", option}, {"file", path}, {"ended", FormatTime(expiry)}});
}

}  // namespace

Access::Access(const ServerOptions& options, Log* log, Metrics* metrics)
    : certificate_(options.tls_certificate),
      key_(options.tls_key),
      client_ca_(options.tls_client_ca),
      token_file_(options.token_file),
      log_(log),
      metrics_(metrics) {}

absl::StatusOr<std::unique_ptr<Access>> Access::Open(const ServerOptions& options, Log* log,
                                                     Metrics* metrics) {
  std::unique_ptr<Access> access(new Access(options, log, metrics));
  absl::Status status = access->ReadTls();
  if (status.ok()) status = access->ReadTokens();
  if (!status.ok()) return status;
  if (!access->certificate_.empty() || !access->token_file_.empty()) {
    access->thread_ = std::thread([each = access.get()] { each->Watch(); });
  }
  return access;
}

Access::~Access() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<grpc::ServerCredentials> Access::credentials() const {
  return tls_ == nullptr ? grpc::InsecureServerCredentials() : tls_->credentials();
}

absl::Status Access::ReadTls() {
  if (certificate_.empty()) return absl::OkStatus();
  TlsPems pems;
  absl::Status status = Read("--tls-certificate", certificate_, &pems.certificate);
  if (status.ok()) status = Read("--tls-key", key_, &pems.key);
  if (status.ok()) status = Read("--tls-client-ca", client_ca_, &pems.client_ca);
  if (!status.ok() || pems == pems_) return status;
  status = WithOption("--tls-certificate, --tls-key",
                      CheckKeyPair(certificate_, pems.certificate, key_, pems.key));
  if (status.ok() && !client_ca_.empty()) {
    status = WithOption("--tls-client-ca", CheckCertificates(client_ca_, pems.client_ca));
  }
  if (!status.ok()) return status;
  const absl::StatusOr<int64_t> expiry = CertificateExpiry(certificate_, pems.certificate);
  if (!expiry.ok()) return WithOption("--tls-certificate", expiry.status());
  absl::StatusOr<int64_t> ca_expiry = 0;
  if (!client_ca_.empty()) ca_expiry = CertificateExpiry(client_ca_, pems.client_ca);
  if (!ca_expiry.ok()) return WithOption("--tls-client-ca", ca_expiry.status());
  const bool first = tls_ == nullptr;
  if (first) {
    absl::StatusOr<std::unique_ptr<ServerTls>> tls = ServerTls::Create(pems);
    if (!tls.ok()) return tls.status();
    tls_ = *std::move(tls);
  } else {
    status = tls_->Replace(pems);
    if (!status.ok()) return status;
  }
  pems_ = std::move(pems);
  metrics_->SetCertificateExpiry("server", *expiry);
  if (!client_ca_.empty()) metrics_->SetCertificateExpiry("client_ca", *ca_expiry);
  log_->Info(first ? "tls_loaded" : "tls_reloaded",
             {{"certificate", certificate_},
              {"expires", FormatTime(*expiry)},
              {"client_certificates", client_ca_.empty() ? "not asked for" : "needed"}});
  WarnOfEnded(*log_, "--tls-certificate", certificate_, *expiry);
  if (!client_ca_.empty()) WarnOfEnded(*log_, "--tls-client-ca", client_ca_, *ca_expiry);
  return absl::OkStatus();
}

absl::Status Access::ReadTokens() {
  if (token_file_.empty()) return absl::OkStatus();
  std::string text;
  if (absl::Status status = Read("--token-file", token_file_, &text); !status.ok()) return status;
  if (tokens_ != nullptr && text == token_text_) return absl::OkStatus();
  absl::StatusOr<Tokens> parsed = Tokens::Parse(text);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token-file: ", token_file_, ": ", parsed.status().message()));
  }
  const bool first = tokens_ == nullptr;
  const auto tokens = std::make_shared<const Tokens>(*std::move(parsed));
  token_text_ = std::move(text);
  {
    const std::lock_guard lock(mutex_);
    tokens_ = tokens;
  }
  log_->Info(first ? "tokens_loaded" : "tokens_reloaded",
             {{"file", token_file_}, {"tokens", tokens->size()}});
  return absl::OkStatus();
}

void Access::Watch() {
  std::string tls_error, token_error;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kReadAgain, [this] { return stopping_; })) {
    lock.unlock();
    ReadAgain(&Access::ReadTls, "tls_reload_failed", &tls_error);
    ReadAgain(&Access::ReadTokens, "tokens_reload_failed", &token_error);
    lock.lock();
  }
}

void Access::ReadAgain(absl::Status (Access::*read)(), const char* event, std::string* last_error) {
  const absl::Status status = (this->*read)();
  const std::string error(status.message());
  // The same trouble again is no news.
  if (!status.ok() && error != *last_error) {
    log_->Error(event, {{"error", error}, {"in_force", "what was read before"}});
  }
  *last_error = error;
}

absl::StatusOr<std::string> Access::CallerOf(const grpc::CallbackServerContext& context) const {
  const absl::StatusOr<std::string> token = TokenName(context);
  if (!token.ok()) return token.status();
  if (!client_ca_.empty()) {
    const std::vector<grpc::string_ref> names =
        context.auth_context()->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
    if (!names.empty() && !names.front().empty()) {
      return std::string(names.front().data(), names.front().size());
    }
  }
  return token->empty() ? std::string(kAnonymous) : *token;
}

absl::StatusOr<std::string> Access::TokenName(const grpc::CallbackServerContext& context) const {
  std::shared_ptr<const Tokens> tokens;
  {
    const std::lock_guard lock(mutex_);
    tokens = tokens_;
  }
  if (tokens == nullptr) return std::string();
  const auto& metadata = context.client_metadata();
  const auto [begin, end] = metadata.equal_range("authorization");
  if (begin == end) {
    return absl::UnauthenticatedError(
        "this server needs a token: send metadata 'authorization: Bearer TOKEN'");
  }
  absl::string_view value(begin->second.data(), begin->second.size());
  if (std::next(begin) != end || !absl::StartsWithIgnoreCase(value, "bearer ")) {
    return absl::UnauthenticatedError(
        "the call's authorization is not a bearer token: send metadata 'authorization: Bearer "
        "TOKEN' once");
  }
  value.remove_prefix(sizeof("bearer ") - 1);
  const std::string* name = tokens->NameOf(value);
  if (name == nullptr) {
    return absl::UnauthenticatedError("the call's token is none that this server takes");
  }
  return *name;
}

}  // namespace ripplekv
