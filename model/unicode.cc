#include "model/unicode.h"

namespace ripplekv {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  using Kind = Utf8Step::Kind;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Kind::kCharacter, 1, lead};
  size_t size;
  unsigned low = 0x80, high = 0xBF;  // bounds of the second byte
  char32_t value;
  if (lead >= 0xC2 && lead <= 0xDF) {
    size = 2;
    value = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    size = 3;
    value = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    size = 4;
    value = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Kind::kInvalid, 1, 0};
  }
  for (size_t i = 1; i < size; ++i) {
    if (i == text.size()) return {Kind::kIncomplete, i, 0};
    if (byte(i) < low || byte(i) > high) return {Kind::kInvalid, i, 0};
    value = (value << 6) | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Kind::kCharacter, size, value};
}

size_t FindInvalidUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = NextUtf8(text.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) return at;
    at += step.size;
  }
  return std::string_view::npos;
}

void AppendUtf8(char32_t c, std::string& out) {
  const auto tail = [&](int shift) {
    out.push_back(static_cast<char>(0x80 | ((c >> shift) & 0x3F)));
  };
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (c >> 6)));
    tail(0);
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (c >> 12)));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xF0 | (c >> 18)));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool IsPythonSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::string Utf8Stream::Push(std::string_view bytes) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_;
    joined.append(bytes);
    bytes = joined;
    pending_.clear();
  }
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    if (step.kind == Utf8Step::Kind::kIncomplete) {
      pending_.assign(bytes);
      break;
    }
    if (step.kind == Utf8Step::Kind::kCharacter) {
      out.append(bytes.substr(0, step.size));
    } else {
      out.append(kReplacement);
    }
    bytes.remove_prefix(step.size);
  }
  return out;
}

std::string Excerpt(std::string_view text) {
  constexpr size_t kBytes = 80;
  Utf8Stream stream;
  const std::string whole = stream.Push(text.substr(0, kBytes));
  return whole + (text.size() > kBytes ? "..." : stream.Flush());
}

std::string Utf8Stream::Flush() {
  if (pending_.empty()) return "";
  pending_.clear();
  return std::string(kReplacement);
}

}  // namespace ripplekv
