#include "client/input_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/utf8.h"

namespace ripplekv {
namespace {

constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string NameOf(const std::string& path) { return path == "-" ? "standard input" : path; }

}  // namespace

absl::StatusOr<std::string> ReadBytes(const std::string& path) {
  const int file = path == "-" ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    const std::string message = absl::StrCat("cannot open ", path, ": ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(message) : absl::FailedPreconditionError(message);
  }
  std::string bytes;
  char buffer[1 << 16];
  ssize_t count = 0;
  while ((count = read(file, buffer, sizeof(buffer))) != 0) {
    if (count > 0) {
      bytes.append(buffer, static_cast<size_t>(count));
    } else if (errno != EINTR) {
      break;
    }
  }
  const int error = count < 0 ? errno : 0;
  if (path != "-") close(file);
  if (error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot read ", NameOf(path), ": ", std::strerror(error)));
  }
  return bytes;
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  absl::StatusOr<std::string> text = ReadBytes(path);
  if (!text.ok()) return text;
  if (absl::StartsWith(*text, kByteOrderMark)) text->erase(0, kByteOrderMark.size());
  if (text->empty()) return absl::InvalidArgumentError(absl::StrCat(NameOf(path), " is empty"));
  const size_t invalid = FirstInvalidUtf8(*text);
  if (invalid != text->size()) {
    return absl::InvalidArgumentError(absl::StrCat(NameOf(path),
                                                   " is not UTF-8 text: see its byte ", invalid,
                                                   "; convert it, e.g. with iconv"));
  }
  return text;
}

}  // namespace ripplekv
