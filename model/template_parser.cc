#include "model/template_parser.h"

#include <algorithm>
#include <initializer_list>

#include "model/concat.h"
#include "model/template_expression_parser.h"
#include "model/template_lexer.h"

namespace ripplekv {
namespace {

using Kind = TemplateStatement::Kind;
using Token = TemplateToken::Kind;

class Parser {
 public:
  Parser(std::vector<TemplateToken> tokens, int max_depth)
      : tokens_(std::move(tokens), max_depth) {}

  TemplateStatement::List Run() {
    TemplateStatement::List all = ParseBody({});
    if (tokens_.Peek().kind != Token::kEnd) tokens_.ThrowUnexpected();
    return all;
  }

 private:
  // Statements up to a block whose name is one of `ends`; stands on that name afterwards.
  TemplateStatement::List ParseBody(std::initializer_list<std::string_view> ends) {
    const TemplateExpressionParser::Level level(&tokens_);
    TemplateStatement::List body;
    for (;;) {
      const TemplateToken token = tokens_.Next();
      TemplateStatement statement;
      statement.line = token.line;
      switch (token.kind) {
        case Token::kData:
          statement.kind = Kind::kText;
          statement.text = token.text;
          break;
        case Token::kVariableBegin:
          statement.kind = Kind::kOutput;
          statement.expression = tokens_.ParseExpression();
          Expect(Token::kVariableEnd);
          break;
        case Token::kBlockBegin: {
          const TemplateToken& name = tokens_.Peek();
          if (name.kind != Token::kName) tokens_.ThrowUnexpected();
          if (std::find(ends.begin(), ends.end(), name.text) != ends.end()) return body;
          ParseBlock(statement);
          break;
        }
        default:
          if (ends.size() == 0) return body;
          ThrowInvalid(token.line,
                       Concat("the template ends without a block '", *(ends.end() - 1), "'"));
      }
      body.push_back(std::move(statement));
    }
  }

  void ParseBlock(TemplateStatement& statement) {
    const TemplateToken name = tokens_.Next();
    if (name.text == "for") {
      ParseFor(statement);
    } else if (name.text == "if") {
      ParseIf(statement);
    } else if (name.text == "set") {
      ParseSet(statement);
    } else if (name.text == "break" || name.text == "continue") {
      if (loops_ == 0) ThrowInvalid(name.line, Concat("'", name.text, "' outside of a loop"));
      statement.kind = name.text == "break" ? Kind::kBreak : Kind::kContinue;
    } else if (name.text == "elif" || name.text == "else" || name.text.compare(0, 3, "end") == 0) {
      ThrowInvalid(name.line, Concat("'", name.text, "' without its beginning"));
    } else {
      ThrowUnsupported(name.line, Concat("the statement '", name.text, "'"));
    }
    Expect(Token::kBlockEnd);
  }

  void ParseFor(TemplateStatement& statement) {
    statement.kind = Kind::kFor;
    statement.name = tokens_.ExpectName();
    if (tokens_.IsOperator(","))
      ThrowUnsupported(statement.line, "a for loop over several variables");
    if (!tokens_.SkipName("in")) tokens_.ThrowUnexpected();
    statement.expression = tokens_.ParseExpression(/*conditional=*/false);
    if (tokens_.SkipName("if")) statement.condition = tokens_.ParseExpression();
    if (tokens_.IsName("recursive")) ThrowUnsupported(statement.line, "a recursive for loop");
    Expect(Token::kBlockEnd);
    ++loops_;
    statement.body = ParseBody({"else", "endfor"});
    --loops_;
    if (tokens_.SkipName("else")) {
      Expect(Token::kBlockEnd);
      statement.otherwise = ParseBody({"endfor"});
    }
    tokens_.Next();
  }

  void ParseIf(TemplateStatement& statement) {
    statement.kind = Kind::kIf;
    do {
      TemplateStatement::Branch branch;
      branch.condition = tokens_.ParseExpression();
      Expect(Token::kBlockEnd);
      branch.body = ParseBody({"elif", "else", "endif"});
      statement.branches.push_back(std::move(branch));
    } while (tokens_.SkipName("elif"));
    if (tokens_.SkipName("else")) {
      Expect(Token::kBlockEnd);
      statement.otherwise = ParseBody({"endif"});
    }
    tokens_.Next();
  }

  void ParseSet(TemplateStatement& statement) {
    statement.kind = Kind::kSet;
    statement.name = tokens_.ExpectName();
    if (tokens_.SkipOperator(".")) statement.attribute = tokens_.ExpectName();
    if (tokens_.IsOperator(",")) ThrowUnsupported(statement.line, "set with several variables");
    if (tokens_.Peek().kind == Token::kBlockEnd || tokens_.IsOperator("|")) {
      ThrowUnsupported(statement.line, "set as a block");
    }
    tokens_.ExpectOperator("=");
    statement.expression = tokens_.ParseExpression();
    if (tokens_.IsOperator(",")) ThrowUnsupported(statement.line, "a tuple without parentheses");
  }

  void Expect(Token kind) {
    if (tokens_.Peek().kind != kind) tokens_.ThrowUnexpected();
    tokens_.Next();
  }

  TemplateExpressionParser tokens_;
  int loops_ = 0;
};

}  // namespace

TemplateStatement::List ParseTemplate(std::string_view source, int max_depth) {
  return Parser(LexTemplate(source), max_depth).Run();
}

}  // namespace ripplekv
