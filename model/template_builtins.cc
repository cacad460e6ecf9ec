#include "model/template_builtins.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "model/template_text.h"

namespace ripplekv {
namespace {

[[noreturn]] void ThrowArguments(const TemplateCall& call, const std::string& expected) {
  ThrowInvalid(call.line,
               Concat("'", call.name, "' on ", call.subject.KindName(), " expects ", expected));
}

// The arguments of a call by place or by name; each is taken once, and Done finds those left over.
class Arguments {
 public:
  explicit Arguments(const TemplateCall& call) : call_(call) {}

  const Value* Take(std::string_view keyword) {
    ++taken_;
    if (place_ < call_.positional.size()) return &call_.positional[place_++];
    for (const auto& [name, value] : call_.keywords) {
      if (name == keyword) return &value;
    }
    --taken_;
    return nullptr;
  }

  std::optional<std::string> TakeString(std::string_view keyword) {
    const Value* value = Take(keyword);
    if (value == nullptr || value->none()) return std::nullopt;
    if (!value->AsText()) ThrowArguments(call_, Concat("a string for ", keyword));
    return value->AsText()->str();
  }

  void Done() const {
    if (taken_ == call_.positional.size() + call_.keywords.size()) return;
    for (const auto& [name, value] : call_.keywords) {
      ThrowUnsupported(call_.line, Concat("the argument '", name, "' of '", call_.name, "'"));
    }
    ThrowArguments(call_, "fewer arguments");
  }

 private:
  const TemplateCall& call_;
  size_t place_ = 0;
  size_t taken_ = 0;
};

AuthoredText ChangeCase(const AuthoredText& text, const TemplateCall& call) {
  AuthoredText out;
  for (TextSegment& segment : text.Segments()) {
    for (char& c : segment.text) {
      const unsigned char byte = static_cast<unsigned char>(c);
      if (byte >= 0x80)
        ThrowUnsupported(call.line, Concat("'", call.name, "' on characters outside of ASCII"));
      c = call.name == "upper" ? absl::ascii_toupper(byte) : absl::ascii_tolower(byte);
    }
    out.Append(segment.text, segment.from_user);
  }
  return out;
}

Value Strip(const AuthoredText& text, const TemplateCall& call, TemplateBudget& budget) {
  Arguments arguments(call);
  const std::optional<std::string> characters = arguments.TakeString("chars");
  arguments.Done();
  if (characters) budget.Spend(static_cast<int64_t>(text.size()), call.line);
  const StripSides sides{call.name != "rstrip", call.name != "lstrip"};
  return budget.Text(StripText(text, sides, characters), call.line);
}

Value Replace(const AuthoredText& text, const TemplateCall& call, TemplateBudget& budget) {
  Arguments arguments(call);
  const std::optional<std::string> from = arguments.TakeString("old");
  const Value* to = arguments.Take("new");
  arguments.Done();
  if (!from || from->empty() || to == nullptr || !to->AsText())
    ThrowArguments(call, "two strings, the first not empty");
  size_t count = 0;
  for (size_t at = text.str().find(*from); at != std::string::npos;
       at = text.str().find(*from, at + from->size())) {
    ++count;
  }
  budget.SpendText(text.size() + count * to->AsText()->size(), call.line);
  return Value(ReplaceText(text, *from, *to->AsText()));
}

Value Split(const AuthoredText& text, const TemplateCall& call, TemplateBudget& budget) {
  Arguments arguments(call);
  const std::optional<std::string> separator = arguments.TakeString("sep");
  const Value* limit = arguments.Take("maxsplit");
  arguments.Done();
  if ((separator && separator->empty()) || (limit && !limit->AsInt())) {
    ThrowArguments(call, "a separator that is not empty and a whole number");
  }
  // Each part is an object: dearer than its bytes.
  budget.Spend(static_cast<int64_t>(text.size()), call.line);
  Value::List parts;
  for (AuthoredText& part : SplitText(text, separator, limit ? *limit->AsInt() : -1)) {
    parts.push_back(budget.Text(std::move(part), call.line));
  }
  return Value(std::move(parts));
}

Value Affix(const AuthoredText& text, const TemplateCall& call) {
  Arguments arguments(call);
  const std::optional<std::string> affix = arguments.TakeString("prefix");
  arguments.Done();
  if (!affix) ThrowArguments(call, "one string");
  return Value(call.name == "startswith" ? absl::StartsWith(text.str(), *affix)
                                         : absl::EndsWith(text.str(), *affix));
}

Value Length(const TemplateCall& call) {
  const Value& subject = call.subject;
  size_t length = 0;
  if (const AuthoredText* text = subject.AsText()) {
    length = CountCodePoints(text->str());
  } else if (const Value::List* list = subject.AsList()) {
    length = list->size();
  } else if (const Value::Mapping* mapping = subject.AsMapping()) {
    length = mapping->entries.size();
  } else if (!subject.undefined()) {
    ThrowInvalid(call.line, Concat(subject.KindName(), " has no length"));
  }
  return Value(static_cast<int64_t>(length));
}

void AppendJson(const Value& value, const TemplateCall& call, TemplateBudget& budget,
                AuthoredText& out) {
  budget.Spend(1, call.line);
  if (value.none()) {
    out.Append("null", false);
  } else if (const bool* flag = value.AsBool()) {
    out.Append(*flag ? "true" : "false", false);
  } else if (const int64_t* integer = value.AsInt()) {
    out.Append(Concat(*integer), false);
  } else if (const AuthoredText* text = value.AsText()) {
    AppendJsonString(*text, out);
  } else if (const Value::List* list = value.AsList()) {
    out.Append("[", false);
    for (size_t i = 0; i < list->size(); ++i) {
      if (i > 0) out.Append(", ", false);
      AppendJson((*list)[i], call, budget, out);
    }
    out.Append("]", false);
  } else if (const Value::Mapping* mapping = value.AsMapping()) {
    out.Append("{", false);
    for (size_t i = 0; i < mapping->entries.size(); ++i) {
      if (i > 0) out.Append(", ", false);
      AppendJsonString(AuthoredText(mapping->entries[i].first), out);
      out.Append(": ", false);
      AppendJson(mapping->entries[i].second, call, budget, out);
    }
    out.Append("}", false);
  } else {
    ThrowInvalid(call.line, Concat("'tojson' on ", value.KindName()));
  }
  budget.CheckText(out.size(), call.line);
}

Value Default(const TemplateCall& call) {
  Arguments arguments(call);
  const Value* fallback = arguments.Take("default_value");
  const Value* falsy_too = arguments.Take("boolean");
  arguments.Done();
  const bool missing =
      call.subject.undefined() || (falsy_too && falsy_too->Truthy() && !call.subject.Truthy());
  if (!missing) return call.subject;
  return fallback ? *fallback : Value(AuthoredText());
}

// What a for loop would go over, for filters that take any sequence.
Value::List Items(const TemplateCall& call) {
  if (const Value::List* list = call.subject.AsList()) return *list;
  if (call.subject.undefined()) return {};
  Value::List items;
  if (const AuthoredText* text = call.subject.AsText()) {
    const std::vector<size_t> offsets = CodePointOffsets(text->str());
    for (size_t i = 0; i + 1 < offsets.size(); ++i)
      items.push_back(Value(text->Slice(offsets[i], offsets[i + 1])));
    return items;
  }
  ThrowInvalid(call.line, Concat("'", call.name, "' on ", call.subject.KindName()));
}

Value Join(const TemplateCall& call, TemplateBudget& budget) {
  Arguments arguments(call);
  const Value* separator = arguments.Take("d");
  arguments.Done();
  const AuthoredText between = separator ? TemplateText(*separator, call.line) : AuthoredText();
  AuthoredText joined;
  bool first = true;
  for (const Value& item : Items(call)) {
    if (!first) joined.Append(between);
    first = false;
    joined.Append(TemplateText(item, call.line));
    budget.CheckText(joined.size(), call.line);
  }
  return budget.Text(std::move(joined), call.line);
}

}  // namespace

AuthoredText TemplateText(const Value& value, int line) {
  if (const AuthoredText* text = value.AsText()) return *text;
  if (value.undefined()) return AuthoredText();
  if (value.none()) return AuthoredText("None");
  if (const bool* flag = value.AsBool()) return AuthoredText(*flag ? "True" : "False");
  if (const int64_t* integer = value.AsInt()) return AuthoredText(Concat(*integer));
  ThrowUnsupported(line, Concat("printing ", value.KindName()));
}

Value CallTemplateFilter(const TemplateCall& call, TemplateBudget& budget) {
  const std::string& name = call.name;
  if (name == "default" || name == "d") return Default(call);
  if (name == "join") return Join(call, budget);
  if (name == "trim") return Strip(TemplateText(call.subject, call.line), call, budget);
  if (name == "replace") return Replace(TemplateText(call.subject, call.line), call, budget);
  if (name == "tojson") {
    Arguments(call).Done();
    AuthoredText json;
    AppendJson(call.subject, call, budget, json);
    return budget.Text(std::move(json), call.line);
  }
  static constexpr std::string_view kWithoutArguments[] = {
      "length", "count", "upper", "lower", "first", "last", "string", "list", "safe"};
  if (std::find(std::begin(kWithoutArguments), std::end(kWithoutArguments), name) ==
      std::end(kWithoutArguments)) {
    ThrowUnsupported(call.line, Concat("the filter '", name, "'"));
  }
  Arguments(call).Done();
  if (name == "length" || name == "count") return Length(call);
  if (name == "upper" || name == "lower") {
    return budget.Text(ChangeCase(TemplateText(call.subject, call.line), call), call.line);
  }
  if (name == "string" || name == "safe") return Value(TemplateText(call.subject, call.line));
  Value::List items = Items(call);
  budget.Spend(static_cast<int64_t>(items.size()), call.line);
  if (name == "list") return Value(std::move(items));
  if (items.empty()) return Value(Value::Undefined{Concat("the ", name, " item of an empty list")});
  return name == "first" ? items.front() : items.back();
}

bool CallTemplateTest(const TemplateCall& call) {
  const std::string& name = call.name;
  const Value& subject = call.subject;
  if (!call.positional.empty() || !call.keywords.empty()) {
    ThrowUnsupported(call.line, Concat("the test '", name, "' with arguments"));
  }
  const bool sequence =
      subject.AsText() || subject.AsList() || subject.AsMapping() || subject.undefined();
  if (name == "defined") return !subject.undefined();
  if (name == "undefined") return subject.undefined();
  if (name == "none") return subject.none();
  if (name == "string") return subject.AsText() != nullptr;
  if (name == "mapping") return subject.AsMapping() != nullptr;
  if (name == "iterable") return sequence || subject.AsLoop();
  if (name == "sequence") return sequence;
  if (name == "number") return subject.AsInt() || subject.AsBool();
  if (name == "integer") return subject.AsInt() != nullptr;
  if (name == "boolean") return subject.AsBool() != nullptr;
  if (name == "true") return subject.AsBool() && *subject.AsBool();
  if (name == "false") return subject.AsBool() && !*subject.AsBool();
  if (name == "even" || name == "odd") {
    if (!subject.AsInt()) ThrowInvalid(call.line, Concat("'", name, "' on ", subject.KindName()));
    return (*subject.AsInt() % 2 != 0) == (name == "odd");
  }
  ThrowUnsupported(call.line, Concat("the test '", name, "'"));
}

Value CallTemplateMethod(const TemplateCall& call, TemplateBudget& budget) {
  const std::string& name = call.name;
  if (call.subject.undefined()) {
    ThrowInvalid(call.line, Concat("'", call.subject.AsUndefined()->name, "' is undefined"));
  }
  if (const Value::Mapping* mapping = call.subject.AsMapping(); mapping && name == "get") {
    Arguments arguments(call);
    const std::optional<std::string> key = arguments.TakeString("key");
    const Value* fallback = arguments.Take("default");
    arguments.Done();
    if (!key) ThrowArguments(call, "a string");
    for (const auto& [entry, value] : mapping->entries) {
      if (entry == *key) return value;
    }
    return fallback ? *fallback : Value(Value::None{});
  }
  if (const AuthoredText* text = call.subject.AsText()) {
    if (name == "strip" || name == "lstrip" || name == "rstrip") return Strip(*text, call, budget);
    if (name == "split") return Split(*text, call, budget);
    if (name == "startswith" || name == "endswith") return Affix(*text, call);
    if (name == "replace") return Replace(*text, call, budget);
    if (name == "upper" || name == "lower") {
      Arguments(call).Done();
      return budget.Text(ChangeCase(*text, call), call.line);
    }
  }
  ThrowUnsupported(call.line, Concat("the method '", name, "' of ", call.subject.KindName()));
}

}  // namespace ripplekv
