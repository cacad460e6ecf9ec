#include "model/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <type_traits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "model/gguf_parser.h"

namespace ripplekv {

// A read-only view of a file's bytes, unmapped at destruction. Empty files are never mapped.
class GgufFile::Mapping {
 public:
  static absl::StatusOr<std::unique_ptr<Mapping>> Map(const std::string& path) {
    // Non-blocking, so that a FIFO is refused instead of waited for.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the model file ", path));
    absl::StatusOr<std::unique_ptr<Mapping>> mapping = MapDescriptor(fd, path);
    close(fd);
    return mapping;
  }

  Mapping(void* address, size_t size) : address_(address), size_(size) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(address_, size_); }

  absl::Span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(address_), size_};
  }

 private:
  static absl::StatusOr<std::unique_ptr<Mapping>> MapDescriptor(int fd, const std::string& path) {
    struct stat info;
    if (fstat(fd, &info) != 0)
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path));
    if (S_ISDIR(info.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is a directory: give the .gguf file in it"));
    }
    if (!S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is not a regular file: give a .gguf file"));
    }
    if (info.st_size == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is empty (0 bytes): a GGUF file has at least 24"));
    }
    const size_t size = static_cast<size_t>(info.st_size);
    void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) {
      return absl::ErrnoToStatus(errno,
                                 absl::StrFormat("cannot map the %d bytes of %s", size, path));
    }
    return std::make_unique<Mapping>(address, size);
  }

  void* address_;
  size_t size_;
};

GgufFile::GgufFile() = default;
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  absl::StatusOr<std::unique_ptr<Mapping>> mapping = Mapping::Map(path);
  if (!mapping.ok()) return mapping.status();
  absl::StatusOr<GgufFile> file = Parse((*mapping)->bytes());
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat(path, ": ", file.status().message()));
  }
  file->mapping_ = *std::move(mapping);
  return file;
}

absl::StatusOr<GgufFile> GgufFile::Parse(absl::Span<const std::byte> bytes) {
  absl::StatusOr<GgufContents> contents = ParseGguf(bytes);
  if (!contents.ok()) return contents.status();
  GgufFile file;
  file.bytes_ = bytes;
  file.version_ = contents->version;
  file.metadata_ = std::move(contents->metadata);
  file.tensors_ = std::move(contents->tensors);
  file.tensor_index_ = std::move(contents->tensor_index);
  return file;
}

namespace {

// Debian's absl has a string_view of its own.
absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// "a string", "an array of 3 integers" ...: what a value is, for error messages.
std::string Describe(const GgufValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>) {
          return "a bool";
        } else if constexpr (std::is_integral_v<T>) {
          return absl::StrCat("the integer ", v);
        } else if constexpr (std::is_same_v<T, double>) {
          return absl::StrCat("the float ", v);
        } else if constexpr (std::is_same_v<T, std::string>) {
          return "a string";
        } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          return absl::StrFormat("an array of %d integers", v.size());
        } else if constexpr (std::is_same_v<T, std::vector<double>>) {
          return absl::StrFormat("an array of %d floats", v.size());
        } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
          return absl::StrFormat("an array of %d bools", v.size());
        } else {
          return absl::StrFormat("an array of %d strings", v.size());
        }
      },
      value);
}

absl::Status WrongType(std::string_view key, const GgufValue& value, std::string_view expected) {
  return absl::InvalidArgumentError(absl::StrFormat("metadata key '%s' is %s, expected %s",
                                                    absl::CHexEscape(View(key)), Describe(value),
                                                    expected));
}

absl::Status Absent(std::string_view key) {
  return absl::NotFoundError(
      absl::StrFormat("the file has no metadata key '%s'", absl::CHexEscape(View(key))));
}

template <typename T>
absl::StatusOr<T> Get(const GgufValue* value, std::string_view key, std::string_view expected) {
  if (value == nullptr) return Absent(key);
  if (const T* typed = std::get_if<T>(value)) return *typed;
  return WrongType(key, *value, expected);
}

}  // namespace

bool GgufFile::Has(std::string_view key) const { return metadata_.contains(View(key)); }

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto found = metadata_.find(View(key));
  return found == metadata_.end() ? nullptr : &found->second;
}

absl::StatusOr<std::string> GgufFile::GetString(std::string_view key) const {
  return Get<std::string>(Find(key), key, "a string");
}

absl::StatusOr<uint64_t> GgufFile::GetUint(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (const uint64_t* number = std::get_if<uint64_t>(value)) return *number;
  const int64_t* number = std::get_if<int64_t>(value);
  if (number != nullptr && *number >= 0) return static_cast<uint64_t>(*number);
  return WrongType(key, *value, "an integer of at least 0");
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  return Get<double>(Find(key), key, "a float");
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  return Get<bool>(Find(key), key, "a bool");
}

absl::StatusOr<std::vector<std::string>> GgufFile::GetStringArray(std::string_view key) const {
  return Get<std::vector<std::string>>(Find(key), key, "an array of strings");
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetIntArray(std::string_view key) const {
  return Get<std::vector<int64_t>>(Find(key), key, "an array of integers");
}

absl::StatusOr<std::vector<double>> GgufFile::GetFloatArray(std::string_view key) const {
  return Get<std::vector<double>>(Find(key), key, "an array of floats");
}

absl::StatusOr<std::string> GgufFile::GetStringOr(std::string_view key,
                                                  std::string fallback) const {
  if (!Has(key)) return fallback;
  return GetString(key);
}

absl::StatusOr<uint64_t> GgufFile::GetUintOr(std::string_view key, uint64_t fallback) const {
  if (!Has(key)) return fallback;
  return GetUint(key);
}

absl::StatusOr<double> GgufFile::GetFloatOr(std::string_view key, double fallback) const {
  if (!Has(key)) return fallback;
  return GetFloat(key);
}

absl::StatusOr<bool> GgufFile::GetBoolOr(std::string_view key, bool fallback) const {
  if (!Has(key)) return fallback;
  return GetBool(key);
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(View(name));
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace ripplekv
