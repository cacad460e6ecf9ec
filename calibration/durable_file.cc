#include "calibration/durable_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

constexpr char kTemporaryPrefix[] = ".ripplekv-tmp-";
constexpr int kLockAttempts = 3;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::Status ErrnoStatus(absl::string_view doing, const std::string& path) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", doing, " ", path));
}

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus("write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// A locked, empty file of a fresh temporary name; the name is stored in `path`.
absl::StatusOr<FileDescriptor> MakeTemporary(const std::string& directory, std::string& path) {
  for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
    path = absl::StrCat(directory, "/", kTemporaryPrefix, "XXXXXX");
    FileDescriptor file(mkostemp(path.data(), O_CLOEXEC));
    if (file.get() < 0) return ErrnoStatus("create a file in", directory);
    // Somebody who cleans up may have seen the file before it was locked, and removed it.
    struct stat by_name{}, by_fd{};
    if (flock(file.get(), LOCK_EX | LOCK_NB) == 0 && fstat(file.get(), &by_fd) == 0 &&
        lstat(path.c_str(), &by_name) == 0 && by_name.st_ino == by_fd.st_ino) {
      return file;
    }
    unlink(path.c_str());
  }
  return absl::UnavailableError(absl::StrCat("cannot lock a temporary file in ", directory,
                                             ": file locks do not work there"));
}

absl::Status WriteTemporary(const FileDescriptor& file, absl::string_view bytes,
                            const std::string& path) {
  if (absl::Status status = WriteAll(file.get(), bytes, path); !status.ok()) return status;
  if (fchmod(file.get(), 0644) != 0) return ErrnoStatus("set the mode of", path);
  if (fsync(file.get()) != 0) return ErrnoStatus("sync", path);
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteFileDurably(const std::string& directory, const std::string& name,
                              absl::string_view bytes) {
  std::string temporary;
  absl::StatusOr<FileDescriptor> file = MakeTemporary(directory, temporary);
  if (!file.ok()) return file.status();
  absl::Status status = WriteTemporary(*file, bytes, temporary);
  const std::string target = absl::StrCat(directory, "/", name);
  if (status.ok() && rename(temporary.c_str(), target.c_str()) != 0) {
    status = ErrnoStatus("rename a file to", target);
  }
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return SyncDirectory(directory);
}

absl::Status CheckWritable(const std::string& directory) {
  std::string temporary;
  absl::StatusOr<FileDescriptor> file = MakeTemporary(directory, temporary);
  if (!file.ok()) return file.status();
  absl::Status status = WriteTemporary(*file, "ripplekv\n", temporary);
  unlink(temporary.c_str());
  return status;
}

bool IsTemporaryName(absl::string_view name) { return absl::StartsWith(name, kTemporaryPrefix); }

void RemoveIfAbandoned(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() >= 0 && flock(file.get(), LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
}

absl::Status SyncDirectory(const std::string& directory) {
  const FileDescriptor file(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() < 0 || fsync(file.get()) != 0) return ErrnoStatus("sync", directory);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, int64_t max_bytes) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) {
    if (errno == ELOOP) return absl::DataLossError("a symbolic link, not a file");
    return ErrnoStatus("open", path);
  }
  struct stat info{};
  if (fstat(file.get(), &info) != 0) return ErrnoStatus("look at", path);
  if (!S_ISREG(info.st_mode)) return absl::DataLossError("not a regular file");
  if (info.st_size > max_bytes) {
    return absl::DataLossError(absl::StrCat(info.st_size, " bytes long: at most ", max_bytes));
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus("read", path);
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

}  // namespace ripplekv
