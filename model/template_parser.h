#pragma once

#include <string_view>

#include "model/template_ast.h"

namespace ripplekv {

// The template's statements. Blocks and expressions nest at most `max_depth` levels. Throws
// TemplateError.
TemplateStatement::List ParseTemplate(std::string_view source, int max_depth);

}  // namespace ripplekv
