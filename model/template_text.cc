#include "model/template_text.h"

#include "absl/strings/str_format.h"
#include "model/unicode.h"

namespace ripplekv {
namespace {

bool Contains(const std::optional<std::string>& characters, char32_t code_point) {
  if (!characters) return IsPythonSpace(code_point);
  for (size_t at = 0; at < characters->size();) {
    const Utf8Step step = NextUtf8(std::string_view(*characters).substr(at));
    if (step.code_point == code_point) return true;
    at += step.size;
  }
  return false;
}

std::vector<AuthoredText> SplitAtSpace(const AuthoredText& text, int64_t limit) {
  std::vector<AuthoredText> parts;
  const std::string_view all = text.str();
  size_t at = 0;
  const auto skip = [&](bool space) {
    while (at < all.size()) {
      const Utf8Step step = NextUtf8(all.substr(at));
      if (IsPythonSpace(step.code_point) != space) break;
      at += step.size;
    }
  };
  for (skip(true); at < all.size(); skip(true)) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(text.Slice(at, all.size()));
      break;
    }
    const size_t begin = at;
    skip(false);
    parts.push_back(text.Slice(begin, at));
  }
  return parts;
}

}  // namespace

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

std::vector<size_t> CodePointOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (size_t at = 0; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) offsets.push_back(at);
  }
  offsets.push_back(text.size());
  return offsets;
}

AuthoredText StripText(const AuthoredText& text, StripSides sides,
                       const std::optional<std::string>& characters) {
  const std::string_view all = text.str();
  size_t begin = 0, end = all.size();
  while (sides.left && begin < end) {
    const Utf8Step step = NextUtf8(all.substr(begin));
    if (!Contains(characters, step.code_point)) break;
    begin += step.size;
  }
  while (sides.right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(all[last]) & 0xC0) == 0x80) --last;
    if (!Contains(characters, NextUtf8(all.substr(last)).code_point)) break;
    end = last;
  }
  return text.Slice(begin, end);
}

std::vector<AuthoredText> SplitText(const AuthoredText& text,
                                    const std::optional<std::string>& separator, int64_t limit) {
  if (!separator) return SplitAtSpace(text, limit);
  std::vector<AuthoredText> parts;
  size_t begin = 0;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t found = text.str().find(*separator, begin);
    if (found == std::string::npos) break;
    parts.push_back(text.Slice(begin, found));
    begin = found + separator->size();
  }
  parts.push_back(text.Slice(begin, text.size()));
  return parts;
}

AuthoredText ReplaceText(const AuthoredText& text, std::string_view from, const AuthoredText& to) {
  AuthoredText out;
  size_t begin = 0;
  for (size_t found; (found = text.str().find(from, begin)) != std::string::npos;
       begin = found + from.size()) {
    out.Append(text.Slice(begin, found));
    out.Append(to);
  }
  out.Append(text.Slice(begin, text.size()));
  return out;
}

void AppendJsonString(const AuthoredText& text, AuthoredText& out) {
  out.Append("\"", false);
  for (const TextSegment& segment : text.Segments()) {
    std::string escaped;
    for (const char c : segment.text) {
      switch (c) {
        case '"':
          escaped += "\\\"";
          break;
        case '\\':
          escaped += "\\\\";
          break;
        case '\n':
          escaped += "\\n";
          break;
        case '\r':
          escaped += "\\r";
          break;
        case '\t':
          escaped += "\\t";
          break;
        case '\f':
          escaped += "\\f";
          break;
        case '\b':
          escaped += "\\b";
          break;
        default:
          if (static_cast<unsigned char>(c) < 0x20) {
            escaped += absl::StrFormat("\\u%04x", c);
          } else {
            escaped.push_back(c);
          }
      }
    }
    out.Append(escaped, segment.from_user);
  }
  out.Append("\"", false);
}

}  // namespace ripplekv
