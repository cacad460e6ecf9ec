#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ripplekv {

struct TemplateToken {
  enum class Kind {
    kData,           // text between tags
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kName,
    kString,   // `text` is the string's value
    kInteger,  // `integer`
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  int line = 0;
  std::string text;
  int64_t integer = 0;
};

// Cuts a Jinja template into tokens, with trim_blocks and lstrip_blocks on and the file's last
// newline taken off. Ends with a kEnd token. Throws TemplateError.
std::vector<TemplateToken> LexTemplate(std::string_view source);

}  // namespace ripplekv
