#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/template_value.h"

namespace ripplekv {

struct TemplateExpression {
  enum class Kind {
    kLiteral,    // value
    kName,       // name
    kList,       // children
    kAttribute,  // children[0].name
    kItem,       // children[0][children[1]]
    kSlice,   // children[0][children[1] : children[2] : children[3]], each of the last three may be
              // null
    kCall,    // children[0](children[1...], keywords)
    kFilter,  // children[0] | name(children[1...], keywords)
    kTest,    // children[0] is name children[1...]
    kNot,     // not children[0]
    kNegate,  // -children[0]
    kAnd,
    kOr,
    kArithmetic,   // children[0] name children[1]; name is one of + - * / // % ** ~
    kComparison,   // children[0] operators[0] children[1] operators[1] children[2] ...
    kConditional,  // children[0] if children[1] else children[2] (may be null)
  };
  using Pointer = std::unique_ptr<TemplateExpression>;

  Kind kind = Kind::kLiteral;
  int line = 0;
  int depth = 1;  // levels of expressions below and including this one
  std::string name;
  Value value;
  std::vector<Pointer> children;
  std::vector<std::pair<std::string, Pointer>> keywords;
  std::vector<std::string> operators;
};

struct TemplateStatement {
  enum class Kind {
    kText,    // text
    kOutput,  // expression
    kFor,     // for name in expression [if condition]: body, else otherwise
    kIf,      // branches, else otherwise
    kSet,     // name = expression, or name.attribute = expression
    kBreak,
    kContinue,
  };
  using List = std::vector<TemplateStatement>;
  struct Branch;

  Kind kind = Kind::kText;
  int line = 0;
  std::string text;
  std::string name;
  std::string attribute;
  TemplateExpression::Pointer expression;
  TemplateExpression::Pointer condition;
  List body;
  List otherwise;
  std::vector<Branch> branches;
};

struct TemplateStatement::Branch {
  TemplateExpression::Pointer condition;
  List body;
};

}  // namespace ripplekv
