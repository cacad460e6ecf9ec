#pragma once

#include <string_view>
#include <vector>

#include "model/template_ast.h"
#include "model/template_lexer.h"

namespace ripplekv {

// Reads tokens from the front; knows Jinja's expression grammar. Throws TemplateError.
class TemplateExpressionParser {
 public:
  TemplateExpressionParser(std::vector<TemplateToken> tokens, int max_depth)
      : tokens_(std::move(tokens)), max_depth_(max_depth) {}

  using Pointer = TemplateExpression::Pointer;

  // `conditional` false leaves an `if` that follows for the caller (the filter of a for loop).
  Pointer ParseExpression(bool conditional = true);

  const TemplateToken& Peek(size_t ahead = 0) const;
  TemplateToken Next();
  bool IsOperator(std::string_view op) const;
  bool IsName(std::string_view name) const;
  bool SkipOperator(std::string_view op);
  bool SkipName(std::string_view name);
  void ExpectOperator(std::string_view op);
  std::string ExpectName();
  [[noreturn]] void ThrowUnexpected() const;

  // One level of nesting for as long as it lives; throws when it is one too many.
  class Level {
   public:
    explicit Level(TemplateExpressionParser* parser);
    ~Level() { --parser_->depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    TemplateExpressionParser* parser_;
  };

 private:
  template <typename... Children>
  Pointer Make(TemplateExpression::Kind kind, int line, std::string name, Children... children);
  void Adopt(TemplateExpression& parent, Pointer child);
  void CheckDepth(const TemplateExpression& expression) const;

  Pointer ParseOr();
  Pointer ParseAnd();
  Pointer ParseNot();
  Pointer ParseComparison();
  Pointer ParseSum();
  Pointer ParseConcatenation();
  Pointer ParseProduct();
  Pointer ParsePower();
  Pointer ParseUnary(bool with_filters);
  Pointer ParsePrimary();
  Pointer ParseParenthesized();
  Pointer ParsePostfix(Pointer operand);
  Pointer ParseFiltersAndTests(Pointer operand);
  Pointer ParseSubscript(Pointer operand);
  Pointer ParseTest(Pointer operand);
  void ParseArguments(TemplateExpression& call);

  std::vector<TemplateToken> tokens_;
  size_t at_ = 0;
  int max_depth_;
  int depth_ = 0;
};

}  // namespace ripplekv
