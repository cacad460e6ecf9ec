#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "model/text_segment.h"

namespace ripplekv {

// Any failure inside of the template interpreter. ChatTemplate turns it into its status.
struct TemplateError {
  absl::Status status;
};

[[noreturn]] void ThrowInvalid(int line, const std::string& what);
// `construct` is what the interpreter does not know.
[[noreturn]] void ThrowUnsupported(int line, const std::string& construct);

// Text of which each byte knows whether a user wrote it.
class AuthoredText {
 public:
  AuthoredText() = default;
  explicit AuthoredText(std::string text, bool from_user = false);

  const std::string& str() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }

  void Append(std::string_view text, bool from_user);
  void Append(const AuthoredText& text);
  // Bytes [begin, end).
  AuthoredText Slice(size_t begin, size_t end) const;
  // The maximal parts of one author, in order.
  std::vector<TextSegment> Segments() const;

 private:
  struct Run {
    size_t end;
    bool from_user;
  };
  std::string text_;
  std::vector<Run> runs_;  // ends ascending, authors alternating; the last end is the size
};

// A value of the template language. Copies are cheap: what is large is shared and never changed,
// except namespaces.
class Value {
 public:
  struct Undefined {
    std::string name;  // what was looked up
  };
  struct None {};
  using List = std::vector<Value>;
  using Entries = std::vector<std::pair<std::string, Value>>;  // in insertion order
  struct Mapping {
    Entries entries;
  };
  struct Namespace {
    std::map<std::string, Value> attributes;
  };
  struct Loop {
    size_t index0 = 0;
    std::shared_ptr<const List> items;
  };

  Value() : value_(Undefined{}) {}
  explicit Value(Undefined undefined) : value_(std::move(undefined)) {}
  explicit Value(None none) : value_(none) {}
  explicit Value(bool value) : value_(value) {}
  explicit Value(int64_t value) : value_(value) {}
  explicit Value(AuthoredText text)
      : value_(std::make_shared<const AuthoredText>(std::move(text))) {}
  explicit Value(List list);
  explicit Value(Mapping mapping);
  explicit Value(std::shared_ptr<Namespace> space) : value_(std::move(space)) {}
  explicit Value(std::shared_ptr<const Loop> loop) : value_(std::move(loop)) {}

  bool undefined() const { return std::holds_alternative<Undefined>(value_); }
  bool none() const { return std::holds_alternative<None>(value_); }
  // nullptr unless the value is of that kind.
  const Undefined* AsUndefined() const { return std::get_if<Undefined>(&value_); }
  const bool* AsBool() const { return std::get_if<bool>(&value_); }
  const int64_t* AsInt() const { return std::get_if<int64_t>(&value_); }
  const AuthoredText* AsText() const { return Shared<const AuthoredText>(); }
  const List* AsList() const { return Shared<const List>(); }
  const Mapping* AsMapping() const { return Shared<const Mapping>(); }
  Namespace* AsNamespace() const { return Shared<Namespace>(); }
  const Loop* AsLoop() const { return Shared<const Loop>(); }
  std::shared_ptr<const List> SharedList() const {
    return std::get<std::shared_ptr<const List>>(value_);
  }

  // "a string", "an integer", ... for messages.
  std::string KindName() const;
  bool Truthy() const;
  // Levels of lists and mappings within each other; 0 for what is neither.
  int nesting() const { return nesting_; }

 private:
  template <typename T>
  T* Shared() const {
    const auto* held = std::get_if<std::shared_ptr<T>>(&value_);
    return held == nullptr ? nullptr : held->get();
  }

  std::variant<Undefined, None, bool, int64_t, std::shared_ptr<const AuthoredText>,
               std::shared_ptr<const List>, std::shared_ptr<const Mapping>,
               std::shared_ptr<Namespace>, std::shared_ptr<const Loop>>
      value_;
  int nesting_ = 0;
};

}  // namespace ripplekv
