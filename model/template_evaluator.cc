#include "model/template_evaluator.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "model/template_builtins.h"
#include "model/template_operators.h"
#include "model/template_text.h"

namespace ripplekv {
namespace {

using Kind = TemplateExpression::Kind;

// Bounds the recursion over values.
constexpr int kMaxNesting = 64;

Value FindEntry(const Value::Mapping& mapping, const std::string& name) {
  for (const auto& [key, value] : mapping.entries) {
    if (key == name) return value;
  }
  return Value(Value::Undefined{name});
}

Value LoopAttribute(const Value::Loop& loop, const std::string& name, int line) {
  const int64_t index = static_cast<int64_t>(loop.index0);
  const int64_t length = static_cast<int64_t>(loop.items->size());
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(length - index);
  if (name == "revindex0") return Value(length - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "length") return Value(length);
  if (name == "previtem")
    return index > 0 ? (*loop.items)[index - 1] : Value(Value::Undefined{"loop.previtem"});
  if (name == "nextitem")
    return index + 1 < length ? (*loop.items)[index + 1] : Value(Value::Undefined{"loop.nextitem"});
  ThrowUnsupported(line, Concat("loop.", name));
}

// Python's rule for list[start:stop:step], as the list of positions.
std::vector<int64_t> SlicePositions(int64_t length, std::optional<int64_t> start,
                                    std::optional<int64_t> stop, int64_t step) {
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? length : length - 1;
  const auto bound = [&](std::optional<int64_t> at, int64_t absent) {
    if (!at) return absent;
    return std::clamp(*at < 0 ? *at + length : *at, low, high);
  };
  const int64_t begin = bound(start, step > 0 ? low : high);
  const int64_t end = bound(stop, step > 0 ? high : low);
  // A step beyond the length in either direction takes one item, like the length itself.
  step = std::clamp(step, -length - 1, length + 1);
  std::vector<int64_t> positions;
  for (int64_t at = begin; step > 0 ? at < end : at > end; at += step) positions.push_back(at);
  return positions;
}

}  // namespace

Value Holdable(Value value, int line) {
  if (value.AsNamespace() || value.AsLoop()) {
    ThrowUnsupported(line, Concat(value.KindName(), " in a list or namespace"));
  }
  return value;
}

Value TemplateScopes::Get(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->find(name); found != scope->end()) return found->second;
  }
  return Value(Value::Undefined{name});
}

Value TemplateEvaluator::Evaluate(const TemplateExpression& e) {
  budget_->Spend(1, e.line);
  switch (e.kind) {
    case Kind::kLiteral:
      return e.value;
    case Kind::kName:
      return scopes_->Get(e.name);
    case Kind::kList: {
      Value::List list;
      for (const auto& child : e.children) list.push_back(Holdable(Evaluate(*child), e.line));
      Value made(std::move(list));
      if (made.nesting() > kMaxNesting) {
        ThrowInvalid(e.line, Concat("lists nested more than ", kMaxNesting, " levels deep"));
      }
      return made;
    }
    case Kind::kAttribute:
      return Attribute(e);
    case Kind::kItem:
      return Item(e);
    case Kind::kSlice:
      return Slice(e);
    case Kind::kCall:
      return Call(e);
    case Kind::kFilter:
    case Kind::kTest: {
      TemplateCall call{e.line, e.name, Evaluate(*e.children[0]), {}, {}};
      for (size_t i = 1; i < e.children.size(); ++i)
        call.positional.push_back(Evaluate(*e.children[i]));
      for (const auto& [name, value] : e.keywords)
        call.keywords.emplace_back(name, Evaluate(*value));
      return e.kind == Kind::kTest ? Value(CallTemplateTest(call))
                                   : CallTemplateFilter(call, *budget_);
    }
    case Kind::kNot:
      return Value(!Evaluate(*e.children[0]).Truthy());
    case Kind::kNegate: {
      const Value operand = Evaluate(*e.children[0]);
      if (!operand.AsInt() || *operand.AsInt() == std::numeric_limits<int64_t>::min()) {
        ThrowInvalid(e.line, Concat("cannot negate ", operand.KindName()));
      }
      return Value(-*operand.AsInt());
    }
    case Kind::kAnd: {
      Value left = Evaluate(*e.children[0]);
      return left.Truthy() ? Evaluate(*e.children[1]) : left;
    }
    case Kind::kOr: {
      Value left = Evaluate(*e.children[0]);
      return left.Truthy() ? left : Evaluate(*e.children[1]);
    }
    case Kind::kArithmetic: {
      const Value left = Evaluate(*e.children[0]);
      return CombineTemplateValues(e.name, left, Evaluate(*e.children[1]), *budget_, e.line);
    }
    case Kind::kComparison:
      return Value(Comparison(e));
    case Kind::kConditional:
      if (Evaluate(*e.children[1]).Truthy()) return Evaluate(*e.children[0]);
      return e.children[2] ? Evaluate(*e.children[2]) : Value(Value::Undefined{"the missing else"});
  }
  return Value();
}

Value TemplateEvaluator::Attribute(const TemplateExpression& e) {
  const Value object = Evaluate(*e.children[0]);
  if (const auto* undefined = object.AsUndefined()) {
    ThrowInvalid(e.line, Concat("'", undefined->name, "' is undefined"));
  }
  if (const Value::Mapping* mapping = object.AsMapping()) return FindEntry(*mapping, e.name);
  if (const Value::Namespace* space = object.AsNamespace()) {
    const auto found = space->attributes.find(e.name);
    return found == space->attributes.end() ? Value(Value::Undefined{e.name}) : found->second;
  }
  if (const Value::Loop* loop = object.AsLoop()) return LoopAttribute(*loop, e.name, e.line);
  return Value(Value::Undefined{e.name});
}

Value TemplateEvaluator::Item(const TemplateExpression& e) {
  const Value object = Evaluate(*e.children[0]);
  const Value key = Evaluate(*e.children[1]);
  if (const auto* undefined = object.AsUndefined()) {
    ThrowInvalid(e.line, Concat("'", undefined->name, "' is undefined"));
  }
  if (const AuthoredText* name = key.AsText()) {
    if (const Value::Mapping* mapping = object.AsMapping()) return FindEntry(*mapping, name->str());
    return Value(Value::Undefined{name->str()});
  }
  const int64_t* position = key.AsInt();
  if (!position) return Value(Value::Undefined{"an item"});
  const auto place = [&](size_t length) -> std::optional<size_t> {
    const int64_t at = *position < 0 ? *position + static_cast<int64_t>(length) : *position;
    if (at < 0 || at >= static_cast<int64_t>(length)) return std::nullopt;
    return static_cast<size_t>(at);
  };
  if (const Value::List* list = object.AsList()) {
    if (const auto at = place(list->size())) return (*list)[*at];
  } else if (const AuthoredText* text = object.AsText()) {
    budget_->SpendText(text->size(), e.line);
    const std::vector<size_t> offsets = CodePointOffsets(text->str());
    if (const auto at = place(offsets.size() - 1))
      return Value(text->Slice(offsets[*at], offsets[*at + 1]));
  }
  return Value(Value::Undefined{Concat("item ", *position)});
}

Value TemplateEvaluator::Slice(const TemplateExpression& e) {
  const Value object = Evaluate(*e.children[0]);
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!e.children[i + 1]) continue;
    const Value bound = Evaluate(*e.children[i + 1]);
    if (bound.none()) continue;
    if (!bound.AsInt()) ThrowInvalid(e.line, Concat("a slice with ", bound.KindName()));
    bounds[i] = *bound.AsInt();
  }
  const int64_t step = bounds[2].value_or(1);
  if (step == 0) ThrowInvalid(e.line, "a slice with step 0");
  if (const Value::List* list = object.AsList()) {
    Value::List slice;
    for (int64_t at :
         SlicePositions(static_cast<int64_t>(list->size()), bounds[0], bounds[1], step)) {
      slice.push_back((*list)[at]);
    }
    budget_->Spend(static_cast<int64_t>(slice.size()), e.line);
    return Value(std::move(slice));
  }
  if (const AuthoredText* text = object.AsText()) {
    budget_->SpendText(text->size(), e.line);
    const std::vector<size_t> offsets = CodePointOffsets(text->str());
    AuthoredText slice;
    const auto positions =
        SlicePositions(static_cast<int64_t>(offsets.size()) - 1, bounds[0], bounds[1], step);
    if (step == 1 && !positions.empty()) {
      slice = text->Slice(offsets[positions.front()], offsets[positions.back() + 1]);
    } else {
      for (int64_t at : positions) slice.Append(text->Slice(offsets[at], offsets[at + 1]));
    }
    return budget_->Text(std::move(slice), e.line);
  }
  ThrowInvalid(e.line, Concat("a slice of ", object.KindName()));
}

Value TemplateEvaluator::Call(const TemplateExpression& e) {
  const TemplateExpression& callee = *e.children[0];
  if (callee.kind == Kind::kName) return Function(e, callee.name);
  if (callee.kind != Kind::kAttribute)
    ThrowUnsupported(e.line, "a call of something other than a name");
  TemplateCall call{e.line, callee.name, Evaluate(*callee.children[0]), {}, {}};
  for (size_t i = 1; i < e.children.size(); ++i)
    call.positional.push_back(Evaluate(*e.children[i]));
  for (const auto& [name, value] : e.keywords) call.keywords.emplace_back(name, Evaluate(*value));
  return CallTemplateMethod(call, *budget_);
}

Value TemplateEvaluator::Function(const TemplateExpression& e, const std::string& name) {
  if (name == "raise_exception") {
    if (e.children.size() != 2 || !e.keywords.empty())
      ThrowInvalid(e.line, "raise_exception expects one message");
    const AuthoredText message = TemplateText(Evaluate(*e.children[1]), e.line);
    throw TemplateError{absl::InvalidArgumentError(
        Concat("the chat template refuses these messages: ", message.str()))};
  }
  if (name == "namespace") {
    if (e.children.size() != 1) ThrowUnsupported(e.line, "namespace with unnamed arguments");
    auto made = std::make_shared<Value::Namespace>();
    for (const auto& [attribute, value] : e.keywords) {
      made->attributes[attribute] = Holdable(Evaluate(*value), e.line);
    }
    return Value(std::move(made));
  }
  ThrowUnsupported(e.line, Concat("the function '", name, "'"));
}

bool TemplateEvaluator::Comparison(const TemplateExpression& e) {
  Value left = Evaluate(*e.children[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = Evaluate(*e.children[i + 1]);
    if (!CompareTemplateValues(e.operators[i], left, right, *budget_, e.line)) return false;
    left = std::move(right);
  }
  return true;
}

}  // namespace ripplekv
