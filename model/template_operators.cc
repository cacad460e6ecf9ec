#include "model/template_operators.h"

#include <algorithm>
#include <optional>

#include "model/template_builtins.h"

namespace ripplekv {
namespace {

[[noreturn]] void ThrowOperands(const std::string& op, const Value& left, const Value& right,
                                int line) {
  const auto name = [](const Value& value) {
    return value.undefined() ? Concat("'", value.AsUndefined()->name, "', which is undefined,")
                             : value.KindName();
  };
  ThrowInvalid(line, Concat("cannot use ", op, " on ", name(left), " and ", name(right)));
}

std::optional<int64_t> Number(const Value& value) {
  if (const bool* flag = value.AsBool()) return *flag ? 1 : 0;
  if (const int64_t* integer = value.AsInt()) return *integer;
  return std::nullopt;
}

// Values share their parts, so the work is not bounded by memory: every step is paid for.
bool Equal(const Value& left, const Value& right, TemplateBudget& budget, int line) {
  budget.Spend(1, line);
  if (const auto a = Number(left), b = Number(right); a || b) return a && b && *a == *b;
  if (left.undefined() || left.none()) {
    return left.undefined() == right.undefined() && left.none() == right.none();
  }
  if (left.AsText() && right.AsText()) {
    budget.SpendText(std::min(left.AsText()->size(), right.AsText()->size()), line);
    return left.AsText()->str() == right.AsText()->str();
  }
  if (left.AsList() && right.AsList()) {
    return std::equal(left.AsList()->begin(), left.AsList()->end(), right.AsList()->begin(),
                      right.AsList()->end(),
                      [&](const Value& a, const Value& b) { return Equal(a, b, budget, line); });
  }
  if (left.AsMapping() && right.AsMapping()) {
    const Value::Entries& ours = left.AsMapping()->entries;
    const Value::Entries& theirs = right.AsMapping()->entries;
    return ours.size() == theirs.size() &&
           std::all_of(ours.begin(), ours.end(), [&](const auto& our) {
             return std::any_of(theirs.begin(), theirs.end(), [&](const auto& their) {
               return our.first == their.first && Equal(our.second, their.second, budget, line);
             });
           });
  }
  return (left.AsNamespace() && left.AsNamespace() == right.AsNamespace()) ||
         (left.AsLoop() && left.AsLoop() == right.AsLoop());
}

Value Add(const Value& left, const Value& right, TemplateBudget& budget, int line) {
  if (left.AsText() && right.AsText()) {
    budget.SpendText(left.AsText()->size() + right.AsText()->size(), line);
    AuthoredText joined = *left.AsText();
    joined.Append(*right.AsText());
    return Value(std::move(joined));
  }
  if (left.AsInt() && right.AsInt()) {
    int64_t sum = 0;
    if (__builtin_add_overflow(*left.AsInt(), *right.AsInt(), &sum))
      ThrowInvalid(line, "an integer overflows");
    return Value(sum);
  }
  if (left.AsList() && right.AsList()) {
    // A list's item takes about 40 bytes.
    budget.SpendText(40 * (left.AsList()->size() + right.AsList()->size()), line);
    Value::List joined = *left.AsList();
    joined.insert(joined.end(), right.AsList()->begin(), right.AsList()->end());
    return Value(std::move(joined));
  }
  ThrowOperands("+", left, right, line);
}

bool Contains(const Value& container, const Value& item, TemplateBudget& budget, int line) {
  if (container.undefined()) return false;
  if (const Value::List* list = container.AsList()) {
    budget.Spend(static_cast<int64_t>(list->size()), line);
    return std::any_of(list->begin(), list->end(),
                       [&](const Value& each) { return Equal(each, item, budget, line); });
  }
  if (const AuthoredText* text = container.AsText(); text && item.AsText()) {
    budget.SpendText(text->size(), line);
    return text->str().find(item.AsText()->str()) != std::string::npos;
  }
  if (const Value::Mapping* mapping = container.AsMapping()) {
    return item.AsText() &&
           std::any_of(mapping->entries.begin(), mapping->entries.end(),
                       [&](const auto& entry) { return entry.first == item.AsText()->str(); });
  }
  ThrowOperands("in", item, container, line);
}

bool Less(const Value& left, const Value& right, int line) {
  // UTF-8 sorts as its code points do.
  if (left.AsText() && right.AsText()) return left.AsText()->str() < right.AsText()->str();
  if (left.AsInt() && right.AsInt()) return *left.AsInt() < *right.AsInt();
  ThrowOperands("< or >", left, right, line);
}

}  // namespace

Value CombineTemplateValues(const std::string& op, const Value& left, const Value& right,
                            TemplateBudget& budget, int line) {
  if (op == "~") {
    AuthoredText joined = TemplateText(left, line);
    joined.Append(TemplateText(right, line));
    return budget.Text(std::move(joined), line);
  }
  if (op == "+") return Add(left, right, budget, line);
  if (op == "/" || op == "**") ThrowUnsupported(line, Concat("the operator ", op));
  const int64_t* a = left.AsInt();
  const int64_t* b = right.AsInt();
  if (!a || !b) ThrowOperands(op, left, right, line);
  int64_t result = 0;
  if (op == "-" || op == "*") {
    const bool overflow = op == "-" ? __builtin_sub_overflow(*a, *b, &result)
                                    : __builtin_mul_overflow(*a, *b, &result);
    if (overflow) ThrowInvalid(line, "an integer overflows");
    return Value(result);
  }
  if (*b == 0) ThrowInvalid(line, "division by zero");
  if (*b == -1) {
    if (op == "%") return Value(int64_t{0});
    if (__builtin_sub_overflow(int64_t{0}, *a, &result)) ThrowInvalid(line, "an integer overflows");
    return Value(result);
  }
  // Python rounds towards minus infinity.
  const int64_t remainder = *a % *b;
  const bool adjust = remainder != 0 && (remainder < 0) != (*b < 0);
  if (op == "%") return Value(adjust ? remainder + *b : remainder);
  return Value(*a / *b - (adjust ? 1 : 0));
}

bool CompareTemplateValues(const std::string& op, const Value& left, const Value& right,
                           TemplateBudget& budget, int line) {
  if (op == "==" || op == "!=") return Equal(left, right, budget, line) == (op == "==");
  if (op == "in" || op == "not in") return Contains(right, left, budget, line) == (op == "in");
  if (op == "<" || op == ">=") return Less(left, right, line) == (op == "<");
  return Less(right, left, line) == (op == ">");
}

}  // namespace ripplekv
