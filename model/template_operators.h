#pragma once

#include <string>

#include "model/template_budget.h"
#include "model/template_value.h"

namespace ripplekv {

// left op right for + - * // % ~, with Python's rules. Throws TemplateError.
Value CombineTemplateValues(const std::string& op, const Value& left, const Value& right,
                            TemplateBudget& budget, int line);

// left op right for == != < <= > >= in, not in, with Python's rules: values of different kinds are
// not equal, booleans count as 0 and 1. Throws TemplateError.
bool CompareTemplateValues(const std::string& op, const Value& left, const Value& right,
                           TemplateBudget& budget, int line);

}  // namespace ripplekv
