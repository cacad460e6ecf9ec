#include "server/rpc/tokens.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/credential_files.h"

namespace ripplekv {
namespace {

constexpr size_t kMaxNameBytes = 64;

absl::Status CheckName(absl::string_view line, absl::string_view name) {
  bool plain = name.size() <= kMaxNameBytes;
  for (const char c : name) plain = plain && c > ' ' && c < 0x7f;
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(line, ": the name must be 1 to ", kMaxNameBytes, " printable ASCII characters"));
}

}  // namespace

Tokens::Digest Tokens::DigestOf(absl::string_view token) {
  Digest digest;
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), digest.data());
  return digest;
}

absl::StatusOr<Tokens> Tokens::Parse(absl::string_view text) {
  Tokens tokens;
  std::map<std::string, int> names;
  std::map<Digest, int> digests;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::string where = absl::StrCat("line ", ++number);
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty() || words[0][0] == '#') continue;
    if (words.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": has ", words.size(), " words: must be NAME TOKEN"));
    }
    absl::Status wrong = CheckName(where, words[0]);
    if (wrong.ok()) wrong = CheckToken(where, words[1]);
    if (!wrong.ok()) return wrong;
    Entry entry{std::string(words[0]), DigestOf(words[1])};
    if (const auto [it, added] = names.emplace(entry.name, number); !added) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": the name '", entry.name, "' is on line ", it->second, " already"));
    }
    if (const auto [it, added] = digests.emplace(entry.digest, number); !added) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": the token is on line ", it->second, " already"));
    }
    tokens.entries_.push_back(std::move(entry));
  }
  if (tokens.entries_.empty()) {
    return absl::InvalidArgumentError("holds no token: nobody could call; write NAME TOKEN lines");
  }
  return tokens;
}

const std::string* Tokens::NameOf(absl::string_view token) const {
  const Digest digest = DigestOf(token);
  const std::string* name = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) name = &entry.name;
  }
  return name;
}

}  // namespace ripplekv
