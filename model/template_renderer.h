#pragma once

#include "model/template_ast.h"
#include "model/template_budget.h"
#include "model/template_evaluator.h"

namespace ripplekv {

// Runs a template once. Throws TemplateError.
class TemplateRenderer {
 public:
  explicit TemplateRenderer(const TemplateLimits& limits)
      : budget_(limits), evaluator_(&scopes_, &budget_) {}
  TemplateRenderer(const TemplateRenderer&) = delete;
  TemplateRenderer& operator=(const TemplateRenderer&) = delete;

  void Set(const std::string& name, Value value) { scopes_.Set(name, std::move(value)); }
  AuthoredText Render(const TemplateStatement::List& statements);

 private:
  enum class Flow { kOn, kBreak, kContinue };

  Flow RunAll(const TemplateStatement::List& statements);
  Flow Run(const TemplateStatement& statement);
  Flow RunIf(const TemplateStatement& statement);
  Flow RunFor(const TemplateStatement& statement);
  void RunSet(const TemplateStatement& statement);
  Value::List Items(const TemplateStatement& statement);
  void Write(const AuthoredText& text, int line);

  TemplateBudget budget_;
  TemplateScopes scopes_;
  TemplateEvaluator evaluator_;
  AuthoredText out_;
};

}  // namespace ripplekv
