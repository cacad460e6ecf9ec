#include "model/fingerprint.h"

#include <openssl/evp.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

absl::StatusOr<std::string> FileSha256(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             &std::fclose);
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));

  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> digest(EVP_MD_CTX_new(),
                                                                  &EVP_MD_CTX_free);
  if (digest == nullptr || EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) != 1) {
    return absl::InternalError("OpenSSL offers no SHA-256");
  }
  std::vector<unsigned char> buffer(size_t{1} << 20);
  for (;;) {
    const size_t read = std::fread(buffer.data(), 1, buffer.size(), file.get());
    if (read > 0 && EVP_DigestUpdate(digest.get(), buffer.data(), read) != 1) {
      return absl::InternalError("OpenSSL failed to hash");
    }
    if (read < buffer.size()) break;
  }
  if (std::ferror(file.get()))
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));

  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_DigestFinal_ex(digest.get(), hash, &size) != 1) {
    return absl::InternalError("OpenSSL failed to hash");
  }
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(hash), size));
}

}  // namespace ripplekv
