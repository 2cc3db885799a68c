// Formats a message and hands it to the kernel in one write, so that lines of several ranks never mix.
#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <new>

namespace tutti {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames{"error", "warning", "info", "debug"};

std::string format_line(LogLevel level, int rank, std::string_view message) {
  std::string line = "tutti";
  if (rank >= 0) line += "[rank " + std::to_string(rank) + "]";
  line += ' ';
  line += kLevelNames[static_cast<std::size_t>(level)];
  line += ": ";
  line += message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  return line;
}

}  // namespace

LogLevel parse_log_level(std::string_view text) noexcept {
  for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
    const bool is_number = text.size() == 1 && text[0] == static_cast<char>('0' + i);
    const bool is_name = std::equal(text.begin(), text.end(), kLevelNames[i].begin(), kLevelNames[i].end(),
                                    [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; });
    if (is_number || is_name) return static_cast<LogLevel>(i);
  }
  return LogLevel::kWarning;
}

void Logger::log(LogLevel level, std::string_view message) const noexcept {
  if (!enabled(level)) return;
  const int saved_errno = errno;
  try {
    const std::string line = format_line(level, rank_, message);
    std::string_view rest = line;
    while (!rest.empty()) {
      const ssize_t written = ::write(STDERR_FILENO, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) break;  // nowhere to report that standard error is gone
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
  } catch (const std::bad_alloc&) {
    // Without memory for the line there is nothing to say it with.
  }
  errno = saved_errno;
}

}  // namespace tutti
