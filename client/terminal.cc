#include "client/terminal.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

absl::string_view Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string Terminal::Bold(absl::string_view text) const {
  return color ? absl::StrCat("\033[1m", text, "\033[0m") : std::string(text);
}

std::string Terminal::Dim(absl::string_view text) const {
  return color ? absl::StrCat("\033[2m", text, "\033[0m") : std::string(text);
}

Terminal DetectTerminal(int file_descriptor) {
  Terminal terminal;
  const bool dumb = Environment("TERM") == "dumb";
  terminal.interactive = isatty(file_descriptor) == 1 && !dumb;
  terminal.utf8 = absl::string_view(nl_langinfo(CODESET)) == "UTF-8";
  terminal.color = terminal.interactive && Environment("NO_COLOR").empty();
  winsize size{};
  int width = 0;
  if (ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    width = size.ws_col;
  } else if (!absl::SimpleAtoi(Environment("COLUMNS"), &width) || width <= 0) {
    width = 80;
  }
  terminal.width = std::max(width, Terminal::kMinWidth);
  return terminal;
}

}  // namespace ripplekv
