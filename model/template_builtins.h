#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/template_budget.h"
#include "model/template_value.h"

namespace ripplekv {

// A call of a filter, test or method: `subject | name(positional, keywords)` and so on.
struct TemplateCall {
  int line = 0;
  std::string name;
  Value subject;
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

// Each throws TemplateError for a name that is not known or arguments that do not fit.
Value CallTemplateFilter(const TemplateCall& call, TemplateBudget& budget);
bool CallTemplateTest(const TemplateCall& call);
Value CallTemplateMethod(const TemplateCall& call, TemplateBudget& budget);

// As {{ value }} prints it.
AuthoredText TemplateText(const Value& value, int line);

}  // namespace ripplekv
