#include "model/template_value.h"

#include <algorithm>

#include "model/concat.h"

namespace ripplekv {

void ThrowInvalid(int line, const std::string& what) {
  throw TemplateError{absl::InvalidArgumentError(Concat("chat template line ", line, ": ", what))};
}

void ThrowUnsupported(int line, const std::string& construct) {
  throw TemplateError{
      absl::UnimplementedError(Concat("chat template line ", line, ": ", construct,
                                      " is not supported; send the prompt as text or token_ids"))};
}

AuthoredText::AuthoredText(std::string text, bool from_user) : text_(std::move(text)) {
  if (!text_.empty()) runs_.push_back({text_.size(), from_user});
}

void AuthoredText::Append(std::string_view text, bool from_user) {
  if (text.empty()) return;
  text_.append(text);
  if (!runs_.empty() && runs_.back().from_user == from_user) {
    runs_.back().end = text_.size();
  } else {
    runs_.push_back({text_.size(), from_user});
  }
}

void AuthoredText::Append(const AuthoredText& other) {
  size_t begin = 0;
  for (const Run& run : other.runs_) {
    Append(std::string_view(other.text_).substr(begin, run.end - begin), run.from_user);
    begin = run.end;
  }
}

AuthoredText AuthoredText::Slice(size_t begin, size_t end) const {
  AuthoredText slice;
  auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                              [](size_t at, const Run& run) { return at < run.end; });
  while (begin < end && run != runs_.end()) {
    const size_t stop = std::min(end, run->end);
    slice.Append(std::string_view(text_).substr(begin, stop - begin), run->from_user);
    begin = stop;
    ++run;
  }
  return slice;
}

std::vector<TextSegment> AuthoredText::Segments() const {
  std::vector<TextSegment> segments;
  size_t begin = 0;
  for (const Run& run : runs_) {
    segments.push_back({text_.substr(begin, run.end - begin), run.from_user});
    begin = run.end;
  }
  return segments;
}

Value::Value(List list) : nesting_(1) {
  for (const Value& item : list) nesting_ = std::max(nesting_, item.nesting_ + 1);
  value_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Mapping mapping) : nesting_(1) {
  for (const auto& [key, value] : mapping.entries)
    nesting_ = std::max(nesting_, value.nesting_ + 1);
  value_ = std::make_shared<const Mapping>(std::move(mapping));
}

std::string Value::KindName() const {
  if (undefined()) return "undefined";
  if (none()) return "none";
  if (AsBool()) return "a boolean";
  if (AsInt()) return "an integer";
  if (AsText()) return "a string";
  if (AsList()) return "a list";
  if (AsMapping()) return "a mapping";
  return AsNamespace() ? "a namespace" : "a loop";
}

bool Value::Truthy() const {
  if (undefined() || none()) return false;
  if (const bool* value = AsBool()) return *value;
  if (const int64_t* value = AsInt()) return *value != 0;
  if (const AuthoredText* text = AsText()) return !text->empty();
  if (const List* list = AsList()) return !list->empty();
  if (const Mapping* mapping = AsMapping()) return !mapping->entries.empty();
  return true;
}

}  // namespace ripplekv
