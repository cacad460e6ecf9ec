#pragma once

#include <cstdint>
#include <string>

#include "model/chat_template.h"
#include "model/concat.h"
#include "model/template_value.h"

namespace ripplekv {

// What is left of a rendering's limits. Throws TemplateError when one is passed.
class TemplateBudget {
 public:
  explicit TemplateBudget(const TemplateLimits& limits)
      : limits_(limits), steps_left_(limits.steps) {}

  void Spend(int64_t steps, int line) {
    steps_left_ -= steps;
    if (steps_left_ < 0)
      ThrowInvalid(line, Concat("rendering takes more than ", limits_.steps, " steps"));
  }

  void CheckText(size_t bytes, int line) const {
    if (bytes > limits_.output_bytes) {
      ThrowInvalid(line, Concat("a text of ", bytes, " bytes; at most ", limits_.output_bytes));
    }
  }

  void SpendText(size_t bytes, int line) {
    CheckText(bytes, line);
    Spend(static_cast<int64_t>(bytes / 4), line);
  }

  // Pays for a text that is about to be kept.
  Value Text(AuthoredText text, int line) {
    SpendText(text.size(), line);
    return Value(std::move(text));
  }

 private:
  TemplateLimits limits_;
  int64_t steps_left_;
};

}  // namespace ripplekv
