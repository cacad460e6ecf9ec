#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace ripplekv {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// A key, [a-z0-9_]+, and its value.
struct LogField {
  using Value = std::variant<bool, int64_t, uint64_t, double, std::string>;

  template <typename T>
  LogField(absl::string_view k, const T& v) : key(k), value(ToValue(v)) {}

  std::string key;
  Value value;

 private:
  template <typename T>
  static Value ToValue(const T& v) {
    if constexpr (std::is_same_v<T, bool>) {
      return v;
    } else if constexpr (std::is_floating_point_v<T>) {
      return static_cast<double>(v);
    } else if constexpr (std::is_unsigned_v<T>) {
      return static_cast<uint64_t>(v);
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<int64_t>(v);
    } else {
      return std::string(absl::string_view(v));
    }
  }
};

// Writes one line an event to standard error. Text:
//   2026-01-31T12:00:00.000Z info server_started listen=127.0.0.1:50051 threads=2
// (values with spaces, quotes or control characters are quoted as JSON strings), or one JSON object
// with "time", "level", "event" and the fields. Events never hold a prompt's or an answer's text.
// Thread-safe.
class Log {
 public:
  Log(LogLevel level, LogFormat format);
  // Lines go to `lines` instead (tests), without the time.
  Log(LogLevel level, LogFormat format, std::vector<std::string>* lines);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  using Fields = std::vector<LogField>;
  void Debug(absl::string_view event, Fields fields = {}) {
    Write(LogLevel::kDebug, event, fields);
  }
  void Info(absl::string_view event, Fields fields = {}) { Write(LogLevel::kInfo, event, fields); }
  void Warning(absl::string_view event, Fields fields = {}) {
    Write(LogLevel::kWarning, event, fields);
  }
  void Error(absl::string_view event, Fields fields = {}) {
    Write(LogLevel::kError, event, fields);
  }

 private:
  void Write(LogLevel level, absl::string_view event, const Fields& fields);

  class Sink;
  LogLevel level_;
  LogFormat format_;
  std::unique_ptr<Sink> sink_;
};

}  // namespace ripplekv
