// One line a message on standard error: "tutti[rank 2] warning: ...". TUTTI_LOG_LEVEL chooses how much.
#pragma once

#include <string>
#include <string_view>

namespace tutti {

enum class LogLevel : int { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

// From "error", "warning", "info", "debug" (any case, or 0 to 3); kWarning for anything else.
LogLevel parse_log_level(std::string_view text) noexcept;

// A value that its owner passes down; holds no global state. Thread rule: log() may be called from any thread.
class Logger {
 public:
  Logger() = default;
  Logger(LogLevel level, int rank) : level_(level), rank_(rank) {}

  bool enabled(LogLevel level) const noexcept { return static_cast<int>(level) <= static_cast<int>(level_); }
  void log(LogLevel level, std::string_view message) const noexcept;
  void error(std::string_view m) const noexcept { log(LogLevel::kError, m); }
  void warning(std::string_view m) const noexcept { log(LogLevel::kWarning, m); }
  void info(std::string_view m) const noexcept { log(LogLevel::kInfo, m); }
  void debug(std::string_view m) const noexcept { log(LogLevel::kDebug, m); }

 private:
  LogLevel level_ = LogLevel::kWarning;
  int rank_ = -1;
};

}  // namespace tutti
