#include "model/template_expression_parser.h"

#include <algorithm>

#include "model/concat.h"

namespace ripplekv {
namespace {

using Kind = TemplateExpression::Kind;
using Token = TemplateToken::Kind;

// True for the words of the language that are constants; `value` becomes what they stand for.
bool ReadConstant(std::string_view name, Value& value) {
  if (name == "true" || name == "True") {
    value = Value(true);
  } else if (name == "false" || name == "False") {
    value = Value(false);
  } else if (name == "none" || name == "None") {
    value = Value(Value::None{});
  } else {
    return false;
  }
  return true;
}

}  // namespace

TemplateExpressionParser::Level::Level(TemplateExpressionParser* parser) : parser_(parser) {
  if (++parser_->depth_ > parser_->max_depth_) {
    ThrowInvalid(parser_->Peek().line,
                 Concat("nested more than ", parser_->max_depth_, " levels deep"));
  }
}

const TemplateToken& TemplateExpressionParser::Peek(size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

TemplateToken TemplateExpressionParser::Next() {
  TemplateToken token = Peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TemplateExpressionParser::IsOperator(std::string_view op) const {
  return Peek().kind == Token::kOperator && Peek().text == op;
}

bool TemplateExpressionParser::IsName(std::string_view name) const {
  return Peek().kind == Token::kName && Peek().text == name;
}

bool TemplateExpressionParser::SkipOperator(std::string_view op) {
  const bool is = IsOperator(op);
  if (is) Next();
  return is;
}

bool TemplateExpressionParser::SkipName(std::string_view name) {
  const bool is = IsName(name);
  if (is) Next();
  return is;
}

void TemplateExpressionParser::ExpectOperator(std::string_view op) {
  if (!SkipOperator(op)) ThrowUnexpected();
}

std::string TemplateExpressionParser::ExpectName() {
  if (Peek().kind != Token::kName) ThrowUnexpected();
  return Next().text;
}

void TemplateExpressionParser::ThrowUnexpected() const {
  const TemplateToken& token = Peek();
  switch (token.kind) {
    case Token::kEnd:
      ThrowInvalid(token.line, "the template ends too early");
    case Token::kVariableEnd:
    case Token::kBlockEnd:
      ThrowInvalid(token.line, "the tag ends too early");
    default:
      ThrowInvalid(token.line, Concat("unexpected '", token.text, "'"));
  }
}

template <typename... Children>
TemplateExpression::Pointer TemplateExpressionParser::Make(Kind kind, int line, std::string name,
                                                           Children... children) {
  auto made = std::make_unique<TemplateExpression>();
  made->kind = kind;
  made->line = line;
  made->name = std::move(name);
  (Adopt(*made, std::move(children)), ...);
  return made;
}

// Chains like a + b + c nest without recursion of the parser, so the depth is counted on the tree
// too.
void TemplateExpressionParser::Adopt(TemplateExpression& parent, Pointer child) {
  if (child) parent.depth = std::max(parent.depth, child->depth + 1);
  parent.children.push_back(std::move(child));
  CheckDepth(parent);
}

void TemplateExpressionParser::CheckDepth(const TemplateExpression& expression) const {
  if (expression.depth > max_depth_) {
    ThrowInvalid(expression.line, Concat("an expression of more than ", max_depth_, " levels"));
  }
}

TemplateExpression::Pointer TemplateExpressionParser::ParseExpression(bool conditional) {
  const Level level(this);
  Pointer left = ParseOr();
  while (conditional && IsName("if")) {
    const int line = Next().line;
    Pointer condition = ParseOr();
    Pointer otherwise = SkipName("else") ? ParseExpression() : nullptr;
    left = Make(Kind::kConditional, line, "", std::move(left), std::move(condition),
                std::move(otherwise));
  }
  return left;
}

TemplateExpression::Pointer TemplateExpressionParser::ParseOr() {
  Pointer left = ParseAnd();
  while (IsName("or")) {
    const int line = Next().line;
    left = Make(Kind::kOr, line, "", std::move(left), ParseAnd());
  }
  return left;
}

TemplateExpression::Pointer TemplateExpressionParser::ParseAnd() {
  Pointer left = ParseNot();
  while (IsName("and")) {
    const int line = Next().line;
    left = Make(Kind::kAnd, line, "", std::move(left), ParseNot());
  }
  return left;
}

TemplateExpression::Pointer TemplateExpressionParser::ParseNot() {
  if (!IsName("not")) return ParseComparison();
  const Level level(this);
  const int line = Next().line;
  return Make(Kind::kNot, line, "", ParseNot());
}

TemplateExpression::Pointer TemplateExpressionParser::ParseComparison() {
  Pointer left = ParseSum();
  Pointer comparison;
  for (;;) {
    std::string op;
    const TemplateToken& token = Peek();
    static constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
    if (token.kind == Token::kOperator && std::find(std::begin(kOperators), std::end(kOperators),
                                                    token.text) != std::end(kOperators)) {
      op = token.text;
    } else if (IsName("in")) {
      op = "in";
    } else if (IsName("not") && Peek(1).kind == Token::kName && Peek(1).text == "in") {
      Next();
      op = "not in";
    } else {
      return comparison ? std::move(comparison) : std::move(left);
    }
    const int line = Next().line;
    if (!comparison) comparison = Make(Kind::kComparison, line, "", std::move(left));
    comparison->operators.push_back(op);
    Adopt(*comparison, ParseSum());
  }
}

TemplateExpression::Pointer TemplateExpressionParser::ParseSum() {
  Pointer left = ParseConcatenation();
  while (IsOperator("+") || IsOperator("-")) {
    const TemplateToken op = Next();
    left = Make(Kind::kArithmetic, op.line, op.text, std::move(left), ParseConcatenation());
  }
  return left;
}

TemplateExpression::Pointer TemplateExpressionParser::ParseConcatenation() {
  Pointer left = ParseProduct();
  while (IsOperator("~")) {
    const TemplateToken op = Next();
    left = Make(Kind::kArithmetic, op.line, op.text, std::move(left), ParseProduct());
  }
  return left;
}

TemplateExpression::Pointer TemplateExpressionParser::ParseProduct() {
  Pointer left = ParsePower();
  while (IsOperator("*") || IsOperator("/") || IsOperator("//") || IsOperator("%")) {
    const TemplateToken op = Next();
    left = Make(Kind::kArithmetic, op.line, op.text, std::move(left), ParsePower());
  }
  return left;
}

TemplateExpression::Pointer TemplateExpressionParser::ParsePower() {
  Pointer left = ParseUnary(true);
  while (IsOperator("**")) {
    const TemplateToken op = Next();
    left = Make(Kind::kArithmetic, op.line, op.text, std::move(left), ParseUnary(true));
  }
  return left;
}

TemplateExpression::Pointer TemplateExpressionParser::ParseUnary(bool with_filters) {
  Pointer operand;
  if (IsOperator("-")) {
    const Level level(this);
    const int line = Next().line;
    operand = Make(Kind::kNegate, line, "", ParseUnary(false));
  } else if (IsOperator("+")) {
    ThrowUnsupported(Peek().line, "a plus sign before an expression");
  } else {
    operand = ParsePrimary();
  }
  operand = ParsePostfix(std::move(operand));
  return with_filters ? ParseFiltersAndTests(std::move(operand)) : std::move(operand);
}

TemplateExpression::Pointer TemplateExpressionParser::ParsePrimary() {
  const TemplateToken token = Peek();
  switch (token.kind) {
    case Token::kName: {
      Next();
      if (token.text == "if" || token.text == "else" || token.text == "and" || token.text == "or" ||
          token.text == "in" || token.text == "is" || token.text == "elif") {
        ThrowInvalid(token.line, Concat("unexpected '", token.text, "'"));
      }
      Pointer made = Make(Kind::kName, token.line, token.text);
      if (ReadConstant(token.text, made->value)) made->kind = Kind::kLiteral;
      return made;
    }
    case Token::kString: {
      std::string text = Next().text;
      while (Peek().kind == Token::kString) text += Next().text;  // adjacent strings are one
      Pointer made = Make(Kind::kLiteral, token.line, "");
      made->value = Value(AuthoredText(std::move(text)));
      return made;
    }
    case Token::kInteger: {
      Next();
      Pointer made = Make(Kind::kLiteral, token.line, "");
      made->value = Value(token.integer);
      return made;
    }
    default:
      if (IsOperator("(") || IsOperator("[")) return ParseParenthesized();
      ThrowUnexpected();
  }
}

// A list, a tuple (taken as a list) or an expression in parentheses.
TemplateExpression::Pointer TemplateExpressionParser::ParseParenthesized() {
  const TemplateToken open = Next();
  const std::string_view close = open.text == "(" ? ")" : "]";
  Pointer list = Make(Kind::kList, open.line, "");
  bool comma = open.text == "[";
  while (!IsOperator(close)) {
    Adopt(*list, ParseExpression());
    if (!SkipOperator(",")) break;
    comma = true;
  }
  ExpectOperator(close);
  if (comma || list->children.empty()) return list;
  return std::move(list->children[0]);
}

TemplateExpression::Pointer TemplateExpressionParser::ParsePostfix(Pointer operand) {
  for (;;) {
    if (IsOperator(".")) {
      const int line = Next().line;
      if (Peek().kind == Token::kInteger) ThrowUnsupported(line, "an attribute that is a number");
      operand = Make(Kind::kAttribute, line, ExpectName(), std::move(operand));
    } else if (IsOperator("[")) {
      operand = ParseSubscript(std::move(operand));
    } else if (IsOperator("(")) {
      operand = Make(Kind::kCall, Peek().line, "", std::move(operand));
      ParseArguments(*operand);
    } else {
      return operand;
    }
  }
}

TemplateExpression::Pointer TemplateExpressionParser::ParseFiltersAndTests(Pointer operand) {
  for (;;) {
    if (IsOperator("|")) {
      const int line = Next().line;
      operand = Make(Kind::kFilter, line, ExpectName(), std::move(operand));
      if (IsOperator("(")) ParseArguments(*operand);
    } else if (IsName("is")) {
      operand = ParseTest(std::move(operand));
    } else if (IsOperator("(")) {
      operand = Make(Kind::kCall, Peek().line, "", std::move(operand));
      ParseArguments(*operand);
    } else {
      return operand;
    }
  }
}

TemplateExpression::Pointer TemplateExpressionParser::ParseSubscript(Pointer operand) {
  const int line = Next().line;
  Pointer bounds[3];
  size_t colons = 0;
  while (!IsOperator("]")) {
    if (SkipOperator(":")) {
      if (++colons > 2) ThrowInvalid(line, "a slice of more than three parts");
    } else if (IsOperator(",")) {
      ThrowUnsupported(line, "a subscript with a comma");
    } else if (bounds[colons]) {
      ThrowUnexpected();
    } else {
      bounds[colons] = ParseExpression();
    }
  }
  Next();
  if (colons > 0) {
    return Make(Kind::kSlice, line, "", std::move(operand), std::move(bounds[0]),
                std::move(bounds[1]), std::move(bounds[2]));
  }
  if (!bounds[0]) ThrowInvalid(line, "an empty subscript");
  return Make(Kind::kItem, line, "", std::move(operand), std::move(bounds[0]));
}

TemplateExpression::Pointer TemplateExpressionParser::ParseTest(Pointer operand) {
  const int line = Next().line;
  const bool negated = SkipName("not");
  Pointer test = Make(Kind::kTest, line, ExpectName(), std::move(operand));
  if (IsOperator("(")) {
    ParseArguments(*test);
  } else {
    // An argument without parentheses.
    const TemplateToken& token = Peek();
    const bool word = token.kind == Token::kName && token.text != "else" && token.text != "or" &&
                      token.text != "and" && token.text != "is" && token.text != "if" &&
                      token.text != "in" && token.text != "not";
    if (word || token.kind == Token::kString || token.kind == Token::kInteger || IsOperator("[")) {
      Adopt(*test, ParsePostfix(ParsePrimary()));
    }
  }
  return negated ? Make(Kind::kNot, line, "", std::move(test)) : std::move(test);
}

void TemplateExpressionParser::ParseArguments(TemplateExpression& call) {
  ExpectOperator("(");
  while (!IsOperator(")")) {
    if (IsOperator("*") || IsOperator("**")) ThrowUnsupported(Peek().line, "unpacked arguments");
    if (Peek().kind == Token::kName && Peek(1).kind == Token::kOperator && Peek(1).text == "=") {
      std::string keyword = Next().text;
      Next();
      Pointer value = ParseExpression();
      call.depth = std::max(call.depth, value->depth + 1);
      CheckDepth(call);
      call.keywords.emplace_back(std::move(keyword), std::move(value));
    } else {
      if (!call.keywords.empty())
        ThrowInvalid(Peek().line, "a positional argument after a named one");
      Adopt(call, ParseExpression());
    }
    if (!SkipOperator(",")) break;
  }
  ExpectOperator(")");
}

}  // namespace ripplekv
