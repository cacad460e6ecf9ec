#include "model/template_lexer.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "model/concat.h"
#include "model/template_value.h"
#include "model/unicode.h"

namespace ripplekv {
namespace {

using TokenKind = TemplateToken::Kind;

// Jinja reads \r\n and \r as \n and ignores one newline at the end.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
    } else {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool IsNameStart(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNamePart(char c) { return IsNameStart(c) || IsDigit(c); }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<TemplateToken> Run() {
    while (at_ < source_.size()) Data();
    Add(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  bool StartsWith(std::string_view text) const {
    return source_.compare(at_, text.size(), text) == 0;
  }

  void Advance(size_t bytes) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + at_, source_.begin() + at_ + bytes, '\n'));
    at_ += bytes;
  }

  TemplateToken& Add(TokenKind kind, std::string text = "") {
    tokens_.push_back({kind, line_, std::move(text), 0});
    return tokens_.back();
  }

  void SkipSpace() {
    while (at_ < source_.size()) {
      const Utf8Step step = NextUtf8(std::string_view(source_).substr(at_));
      if (!IsPythonSpace(step.code_point)) return;
      Advance(step.size);
    }
  }

  // Text up to the next tag, then the tag.
  void Data() {
    const size_t begin = at_;
    const int begin_line = line_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 == source_.size()) {
        tag = source_.size();
        break;
      }
      const char second = source_[tag + 1];
      if (second == '{' || second == '%' || second == '#') break;
    }
    std::string_view text = std::string_view(source_).substr(begin, tag - begin);
    Advance(tag - begin);
    if (at_ == source_.size()) {
      if (!text.empty()) tokens_.push_back({TokenKind::kData, begin_line, std::string(text), 0});
      return;
    }
    const char type = source_[at_ + 1];
    const char sign = at_ + 2 < source_.size() ? source_[at_ + 2] : '\0';
    if (sign == '-') {
      text = StripRight(text);
    } else if (sign != '+' && type != '{') {
      text = StripLineStart(text, begin == 0 || source_[begin - 1] == '\n');
    }
    if (!text.empty()) tokens_.push_back({TokenKind::kData, begin_line, std::string(text), 0});
    const size_t opening = sign == '-' || sign == '+' ? 3 : 2;
    if (type == '#') {
      Comment(opening);
    } else {
      Add(type == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin);
      Advance(opening);
      Tag(type == '{');
    }
  }

  static std::string_view StripRight(std::string_view text) {
    size_t keep = 0;
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = NextUtf8(text.substr(at));
      at += step.size;
      if (!IsPythonSpace(step.code_point)) keep = at;
    }
    return text.substr(0, keep);
  }

  // lstrip_blocks: a block's or comment's own indentation goes.
  static std::string_view StripLineStart(std::string_view text, bool at_line_start) {
    const size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !at_line_start) return text;
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    return StripRight(text.substr(line)).empty() ? text.substr(0, line) : text;
  }

  void Comment(size_t opening) {
    const int begin_line = line_;
    Advance(opening);
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) ThrowInvalid(begin_line, "a comment that does not end");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    Advance(end + 2 - at_);
    AfterTag(sign);
  }

  // `sign` stands before the closing bracket of a block or comment.
  void AfterTag(char sign) {
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      Advance(1);  // trim_blocks
    }
  }

  void Tag(bool variable) {
    const int begin_line = line_;
    for (;;) {
      SkipSpace();
      if (at_ == source_.size()) ThrowInvalid(begin_line, "a tag that does not end");
      if (variable && (StartsWith("}}") || StartsWith("-}}"))) {
        const bool strip = source_[at_] == '-';
        Add(TokenKind::kVariableEnd);
        Advance(strip ? 3 : 2);
        if (strip) SkipSpace();
        return;
      }
      if (!variable && (StartsWith("%}") || StartsWith("-%}") || StartsWith("+%}"))) {
        const char sign = source_[at_];
        Add(TokenKind::kBlockEnd);
        Advance(sign == '%' ? 2 : 3);
        AfterTag(sign);
        return;
      }
      TokenInTag();
    }
  }

  void TokenInTag() {
    const char c = source_[at_];
    if (IsNameStart(c)) {
      size_t end = at_ + 1;
      while (end < source_.size() && IsNamePart(source_[end])) ++end;
      const std::string name = source_.substr(at_, end - at_);
      if (name == "raw" && tokens_.back().kind == TokenKind::kBlockBegin)
        ThrowUnsupported(line_, "the statement 'raw'");
      Add(TokenKind::kName, name);
      Advance(end - at_);
    } else if (IsDigit(c)) {
      Integer();
    } else if (c == '\'' || c == '"') {
      String();
    } else {
      Operator();
    }
  }

  void Integer() {
    size_t end = at_;
    while (end < source_.size() && (IsNamePart(source_[end]))) ++end;
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      ThrowUnsupported(line_, "a number that is not an integer");
    }
    const std::string number = source_.substr(at_, end - at_);
    std::string digits = number;
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    TemplateToken& token = Add(TokenKind::kInteger, number);
    if (!absl::SimpleAtoi(digits, &token.integer)) {
      ThrowUnsupported(line_, Concat("the number ", number));
    }
    Advance(end - at_);
  }

  void Operator() {
    static constexpr std::string_view kOperators[] = {"==", "!=", "<=", ">=", "//", "**", "+", "-",
                                                      "/",  "*",  "%",  "~",  "[",  "]",  "(", ")",
                                                      "<",  ">",  "=",  ".",  ":",  "|",  ","};
    for (std::string_view op : kOperators) {
      if (!StartsWith(op)) continue;
      Add(TokenKind::kOperator, std::string(op));
      Advance(op.size());
      return;
    }
    if (source_[at_] == '{') ThrowUnsupported(line_, "a dictionary literal");
    ThrowInvalid(line_, Concat("unexpected character '", NextCharacter(), "'"));
  }

  std::string NextCharacter() const {
    return source_.substr(at_, NextUtf8(std::string_view(source_).substr(at_)).size);
  }

  void String() {
    const int begin_line = line_;
    const char quote = source_[at_];
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) ThrowInvalid(begin_line, "a string that does not end");
    std::string value = Unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1));
    Add(TokenKind::kString, std::move(value));
    Advance(end + 1 - at_);
  }

  // Python's escapes. An unknown one stands for itself, backslash included.
  std::string Unescape(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out.push_back(text[i]);
        continue;
      }
      static constexpr std::string_view kLetters = "abfnrtv\\'\"";
      static constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
      const char c = text[++i];  // String() never ends on a backslash
      if (const size_t simple = kLetters.find(c); simple != std::string_view::npos) {
        out.push_back(kValues[simple]);
      } else if (c == '\n') {
        // A backslash before a line's end joins the lines.
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        AppendEscaped(text.substr(i + 1, digits), digits, 16, out);
        i += digits;
      } else if (c >= '0' && c <= '7') {
        size_t digits = 1;
        while (digits < 3 && i + digits < text.size() && text[i + digits] >= '0' &&
               text[i + digits] <= '7')
          ++digits;
        AppendEscaped(text.substr(i, digits), digits, 8, out);
        i += digits - 1;
      } else if (c == 'N') {
        ThrowUnsupported(line_, "the escape \\N");
      } else {
        out.push_back('\\');
        out.push_back(c);
      }
    }
    return out;
  }

  void AppendEscaped(std::string_view digits, size_t count, int base, std::string& out) const {
    char32_t value = 0;
    for (char c : digits) {
      const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
      const int digit = IsDigit(c)                     ? c - '0'
                        : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                       : base;
      if (digit >= base) ThrowInvalid(line_, "a string with a broken escape");
      value = value * base + digit;
    }
    if (digits.size() != count || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      ThrowInvalid(line_, "a string with a broken escape");
    }
    AppendUtf8(value, out);
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<TemplateToken> tokens_;
};

}  // namespace

std::vector<TemplateToken> LexTemplate(std::string_view source) {
  return Lexer(NormalizeNewlines(source)).Run();
}

}  // namespace ripplekv
