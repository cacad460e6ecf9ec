#include "calibration/canonical_digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "absl/strings/escaping.h"

namespace ripplekv {
namespace {

// Little-endian whatever the machine.
std::string Bytes(uint64_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return bytes;
}

uint64_t DoubleBits(double value) { return std::bit_cast<uint64_t>(value + 0.0); }

}  // namespace

// SHA-256 of OpenSSL, which fails only when memory runs out.
class CanonicalDigest::Hash {
 public:
  Hash() : context_(EVP_MD_CTX_new()) {
    Check(context_ != nullptr && EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1);
  }
  ~Hash() { EVP_MD_CTX_free(context_); }

  void Update(std::string_view bytes) {
    Check(EVP_DigestUpdate(context_, bytes.data(), bytes.size()) == 1);
  }

  std::string Finish() {
    std::string digest(32, '\0');
    Check(EVP_DigestFinal_ex(context_, reinterpret_cast<unsigned char*>(digest.data()), nullptr) ==
          1);
    return digest;
  }

 private:
  static void Check(bool ok) {
    if (!ok) std::abort();
  }

  EVP_MD_CTX* context_;
};

CanonicalDigest::CanonicalDigest(std::string_view domain) : hash_(std::make_unique<Hash>()) {
  AddText("domain", domain);
}

CanonicalDigest::~CanonicalDigest() = default;

void CanonicalDigest::AddText(std::string_view name, std::string_view value) {
  Add(name, 0, value);
}

void CanonicalDigest::AddInt(std::string_view name, int64_t value) {
  Add(name, 1, Bytes(static_cast<uint64_t>(value), 8));
}

void CanonicalDigest::AddUint(std::string_view name, uint64_t value) {
  Add(name, 2, Bytes(value, 8));
}

void CanonicalDigest::AddDouble(std::string_view name, double value) {
  Add(name, 3, Bytes(DoubleBits(value), 8));
}

void CanonicalDigest::AddDoubles(std::string_view name, absl::Span<const double> values) {
  std::string bytes;
  for (double value : values) bytes += Bytes(DoubleBits(value), 8);
  Add(name, 4, bytes);
}

std::string CanonicalDigest::Hex() { return absl::BytesToHexString(hash_->Finish()); }

void CanonicalDigest::Add(std::string_view name, uint8_t kind, std::string_view value) {
  hash_->Update(Bytes(name.size(), 4));
  hash_->Update(name);
  hash_->Update(Bytes(kind, 1));
  hash_->Update(Bytes(value.size(), 8));
  hash_->Update(value);
}

bool IsSha256Hex(const std::string& text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace ripplekv
