#include "server/observe/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ripplekv {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// In ASCII: what else there is becomes \uXXXX, since some characters steer terminals, turn the
// direction of what follows or end a line for some readers. Bytes that are not UTF-8 become U+FFFD.
std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true,
                                   nlohmann::json::error_handler_t::replace);
}

bool IsPlain(const std::string& text) {
  if (text.empty()) return false;
  for (const unsigned char c : text) {
    if (c <= ' ' || c == '"' || c == '=' || c >= 0x7f) return false;
  }
  return true;
}

std::string Number(double value) { return absl::StrFormat("%.9g", value); }

std::string Text(const LogField::Value& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return IsPlain(v) ? v : Quoted(v);
        } else if constexpr (std::is_same_v<T, bool>) {
          return v ? "true" : "false";
        } else if constexpr (std::is_same_v<T, double>) {
          return Number(v);
        } else {
          return absl::StrCat(v);
        }
      },
      value);
}

std::string Json(const LogField::Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return Quoted(*text);
  if (const auto* number = std::get_if<double>(&value)) return nlohmann::json(*number).dump();
  return Text(value);
}

class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LineSink(std::vector<std::string>* lines) : lines_(lines) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    lines_->emplace_back(line.data(), line.size());
    if (!lines_->back().empty() && lines_->back().back() == '\n') lines_->back().pop_back();
  }
  void flush_() override {}

  std::vector<std::string>* lines_;
};

}  // namespace

class Log::Sink {
 public:
  explicit Sink(std::shared_ptr<spdlog::logger> logger) : logger_(std::move(logger)) {}
  spdlog::logger& logger() { return *logger_; }

 private:
  std::shared_ptr<spdlog::logger> logger_;
};

Log::Log(LogLevel level, LogFormat format) : level_(level), format_(format) {
  auto logger = std::make_shared<spdlog::logger>("ripplekv",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::trace);
  logger->flush_on(spdlog::level::trace);
  logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      format == LogFormat::kJson ? "{\"time\":\"%Y-%m-%dT%H:%M:%S.%eZ\",%v}"
                                 : "%Y-%m-%dT%H:%M:%S.%eZ %v",
      spdlog::pattern_time_type::utc));
  sink_ = std::make_unique<Sink>(std::move(logger));
}

Log::Log(LogLevel level, LogFormat format, std::vector<std::string>* lines)
    : level_(level), format_(format) {
  auto logger = std::make_shared<spdlog::logger>("ripplekv", std::make_shared<LineSink>(lines));
  logger->set_level(spdlog::level::trace);
  logger->set_formatter(
      std::make_unique<spdlog::pattern_formatter>(format == LogFormat::kJson ? "{%v}" : "%v"));
  sink_ = std::make_unique<Sink>(std::move(logger));
}

Log::~Log() = default;

void Log::Write(LogLevel level, absl::string_view event, const Fields& fields) {
  if (level < level_) return;
  constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error"};
  const absl::string_view name = kNames[static_cast<int>(level)];
  std::string line;
  if (format_ == LogFormat::kJson) {
    line = absl::StrCat("\"level\":\"", name, "\",\"event\":", Quoted(std::string(event)));
    for (const LogField& field : fields) {
      absl::StrAppend(&line, ",", Quoted(field.key), ":", Json(field.value));
    }
  } else {
    line = absl::StrCat(name, " ", event);
    for (const LogField& field : fields)
      absl::StrAppend(&line, " ", field.key, "=", Text(field.value));
  }
  sink_->logger().log(ToSpdlog(level), "{}", line);
}

}  // namespace ripplekv
