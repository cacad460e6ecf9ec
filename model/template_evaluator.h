#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "model/template_ast.h"
#include "model/template_budget.h"

namespace ripplekv {

// Variables by name, innermost scope last.
class TemplateScopes {
 public:
  TemplateScopes() : scopes_(1) {}

  void Push() { scopes_.emplace_back(); }
  void Pop() { scopes_.pop_back(); }
  void Set(const std::string& name, Value value) { scopes_.back()[name] = std::move(value); }
  // Undefined where no scope has it.
  Value Get(const std::string& name) const;

 private:
  std::vector<absl::flat_hash_map<std::string, Value>> scopes_;
};

// `value`, unless it is a namespace or a loop, which nothing may hold: they would make cycles and
// towers of values.
Value Holdable(Value value, int line);

// Values of expressions. Throws TemplateError.
class TemplateEvaluator {
 public:
  // Both must outlive the evaluator.
  TemplateEvaluator(TemplateScopes* scopes, TemplateBudget* budget)
      : scopes_(scopes), budget_(budget) {}

  Value Evaluate(const TemplateExpression& expression);

 private:
  Value Attribute(const TemplateExpression& expression);
  Value Item(const TemplateExpression& expression);
  Value Slice(const TemplateExpression& expression);
  Value Call(const TemplateExpression& expression);
  Value Function(const TemplateExpression& expression, const std::string& name);
  bool Comparison(const TemplateExpression& expression);

  TemplateScopes* scopes_;
  TemplateBudget* budget_;
};

}  // namespace ripplekv
