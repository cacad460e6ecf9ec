#include "client/credential_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 512;

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using X509Pointer = std::unique_ptr<X509, Free<X509_free>>;
using KeyPointer = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using ContextPointer = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;
using BioPointer = std::unique_ptr<BIO, Free<BIO_free>>;

BioPointer Open(absl::string_view text) {
  return BioPointer(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// What OpenSSL said last; forgets it.
std::string Reason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "no reason given" : reason;
}

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<std::vector<X509Pointer>> Certificates(const std::string& path,
                                                      absl::string_view pem) {
  ERR_clear_error();
  const BioPointer bio = Open(pem);
  std::vector<X509Pointer> found;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    found.emplace_back(next);
  }
  // The end of the text, as OpenSSL says it.
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (!ended) {
    return Wrong(
        path, absl::StrCat("certificate ", found.size() + 1, " of it cannot be read: ", Reason()));
  }
  ERR_clear_error();
  if (found.empty()) {
    return Wrong(path, "holds no certificate: must be PEM (-----BEGIN CERTIFICATE-----)");
  }
  return found;
}

int NoPassphrase(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

}  // namespace

absl::StatusOr<std::string> ReadCredentialFile(const std::string& path) {
  const std::unique_ptr<std::FILE, Free<std::fclose>> file(std::fopen(path.c_str(), "rbe"));
  if (file == nullptr) {
    return Wrong(path, absl::StrCat("cannot be read: ", std::strerror(errno)));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) {
    return Wrong(path, absl::StrCat("cannot be read: ", std::strerror(errno)));
  }
  if (text.size() > kMaxFileBytes) return Wrong(path, "is longer than 1 MiB");
  return text;
}

absl::Status CheckCertificates(const std::string& path, absl::string_view pem) {
  return Certificates(path, pem).status();
}

absl::Status CheckKeyPair(const std::string& certificate_path, absl::string_view certificate,
                          const std::string& key_path, absl::string_view key) {
  absl::StatusOr<std::vector<X509Pointer>> chain = Certificates(certificate_path, certificate);
  if (!chain.ok()) return chain.status();
  const BioPointer bio = Open(key);
  bool asked = false;
  const KeyPointer parsed(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, &asked));
  if (parsed == nullptr) {
    const std::string reason = Reason();
    return Wrong(key_path, asked ? "is encrypted: must be a key without a passphrase"
                                 : absl::StrCat("holds no private key in PEM: ", reason));
  }
  const ContextPointer context(SSL_CTX_new(TLS_method()));
  for (size_t i = 0; i < chain->size(); ++i) {
    X509* each = (*chain)[i].get();
    if ((i == 0 ? SSL_CTX_use_certificate(context.get(), each)
                : static_cast<int>(SSL_CTX_add1_chain_cert(context.get(), each))) != 1) {
      return Wrong(certificate_path, absl::StrCat("TLS does not take it: ", Reason()));
    }
  }
  if (X509_check_private_key(chain->front().get(), parsed.get()) != 1) {
    ERR_clear_error();
    return Wrong(key_path,
                 absl::StrCat("is not the key of the first certificate in ", certificate_path));
  }
  if (SSL_CTX_use_PrivateKey(context.get(), parsed.get()) != 1) {
    return Wrong(key_path, absl::StrCat("TLS does not take it: ", Reason()));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CertificateExpiry(const std::string& path, absl::string_view pem) {
  const absl::StatusOr<std::vector<X509Pointer>> certificates = Certificates(path, pem);
  if (!certificates.ok()) return certificates.status();
  int64_t first = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < certificates->size(); ++i) {
    std::tm time{};
    if (ASN1_TIME_to_tm(X509_get0_notAfter((*certificates)[i].get()), &time) != 1) {
      return Wrong(path, absl::StrCat("certificate ", i + 1, " of it says no time of its end"));
    }
    first = std::min(first, int64_t{timegm(&time)});
  }
  return first;
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadCredentialFile(path);
  if (!text.ok()) return text.status();
  std::string token(absl::StripAsciiWhitespace(*text));
  if (absl::Status wrong = CheckToken(path, token); !wrong.ok()) return wrong;
  return token;
}

absl::Status CheckToken(absl::string_view name, absl::string_view token) {
  bool plain = token.size() >= kMinTokenBytes && token.size() <= kMaxTokenBytes;
  for (const char c : token) plain = plain && c > ' ' && c < 0x7f;
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": the token must be ", kMinTokenBytes, " to ", kMaxTokenBytes,
                   " printable ASCII characters without spaces (it has ", token.size(), " bytes)"));
}

}  // namespace ripplekv
