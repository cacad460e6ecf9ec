#include "model/template_renderer.h"

#include <memory>
#include <utility>

#include "model/template_builtins.h"
#include "model/template_text.h"

namespace ripplekv {

using Kind = TemplateStatement::Kind;

AuthoredText TemplateRenderer::Render(const TemplateStatement::List& statements) {
  RunAll(statements);
  return std::move(out_);
}

TemplateRenderer::Flow TemplateRenderer::RunAll(const TemplateStatement::List& statements) {
  for (const TemplateStatement& statement : statements) {
    if (const Flow flow = Run(statement); flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

TemplateRenderer::Flow TemplateRenderer::Run(const TemplateStatement& statement) {
  budget_.Spend(1, statement.line);
  switch (statement.kind) {
    case Kind::kText:
      Write(AuthoredText(statement.text), statement.line);
      return Flow::kOn;
    case Kind::kOutput:
      Write(TemplateText(evaluator_.Evaluate(*statement.expression), statement.line),
            statement.line);
      return Flow::kOn;
    case Kind::kFor:
      return RunFor(statement);
    case Kind::kIf:
      return RunIf(statement);
    case Kind::kSet:
      RunSet(statement);
      return Flow::kOn;
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

TemplateRenderer::Flow TemplateRenderer::RunIf(const TemplateStatement& statement) {
  for (const TemplateStatement::Branch& branch : statement.branches) {
    if (evaluator_.Evaluate(*branch.condition).Truthy()) return RunAll(branch.body);
  }
  return RunAll(statement.otherwise);
}

TemplateRenderer::Flow TemplateRenderer::RunFor(const TemplateStatement& statement) {
  auto items = std::make_shared<const Value::List>(Items(statement));
  Flow flow = Flow::kOn;
  for (size_t i = 0; i < items->size() && flow != Flow::kBreak; ++i) {
    budget_.Spend(1, statement.line);
    // Each round has its own variables, as in Jinja: what it sets is gone after it.
    scopes_.Push();
    scopes_.Set(statement.name, (*items)[i]);
    scopes_.Set("loop", Value(std::make_shared<const Value::Loop>(Value::Loop{i, items})));
    flow = RunAll(statement.body);
    scopes_.Pop();
  }
  if (!items->empty()) return Flow::kOn;
  scopes_.Push();
  flow = RunAll(statement.otherwise);
  scopes_.Pop();
  return flow;
}

Value::List TemplateRenderer::Items(const TemplateStatement& statement) {
  const Value iterable = evaluator_.Evaluate(*statement.expression);
  Value::List items;
  if (const Value::List* list = iterable.AsList()) {
    items = *list;
  } else if (const AuthoredText* text = iterable.AsText()) {
    const std::vector<size_t> offsets = CodePointOffsets(text->str());
    budget_.Spend(static_cast<int64_t>(40 * offsets.size()), statement.line);
    for (size_t i = 0; i + 1 < offsets.size(); ++i)
      items.push_back(Value(text->Slice(offsets[i], offsets[i + 1])));
  } else if (const Value::Mapping* mapping = iterable.AsMapping()) {
    for (const auto& [key, value] : mapping->entries) items.push_back(Value(AuthoredText(key)));
  } else if (!iterable.undefined()) {
    ThrowInvalid(statement.line, Concat("cannot loop over ", iterable.KindName()));
  }
  budget_.Spend(static_cast<int64_t>(items.size()), statement.line);
  if (!statement.condition) return items;
  Value::List kept;
  for (Value& item : items) {
    scopes_.Push();
    scopes_.Set(statement.name, item);
    if (evaluator_.Evaluate(*statement.condition).Truthy()) kept.push_back(std::move(item));
    scopes_.Pop();
  }
  return kept;
}

void TemplateRenderer::RunSet(const TemplateStatement& statement) {
  Value value = evaluator_.Evaluate(*statement.expression);
  if (statement.attribute.empty()) {
    scopes_.Set(statement.name, std::move(value));
    return;
  }
  const Value target = scopes_.Get(statement.name);
  Value::Namespace* space = target.AsNamespace();
  if (space == nullptr)
    ThrowInvalid(statement.line, Concat("'", statement.name, "' is not a namespace"));
  space->attributes[statement.attribute] = Holdable(std::move(value), statement.line);
}

void TemplateRenderer::Write(const AuthoredText& text, int line) {
  budget_.SpendText(text.size(), line);
  budget_.CheckText(out_.size() + text.size(), line);
  out_.Append(text);
}

}  // namespace ripplekv
