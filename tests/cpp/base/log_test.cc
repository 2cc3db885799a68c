// What is logged, at which level, and that a line is one write.
#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace tutti {
namespace {

// Standard error's writes while `body` runs, each apart: a pipe in packet mode keeps them so.
std::vector<std::string> writes_of(const std::function<void()>& body) {
  std::array<int, 2> ends{-1, -1};
  EXPECT_EQ(::pipe2(ends.data(), O_DIRECT | O_NONBLOCK), 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const UniqueFd saved(::dup(STDERR_FILENO));
  ::dup2(write_end.get(), STDERR_FILENO);
  body();
  ::dup2(saved.get(), STDERR_FILENO);
  write_end.reset();
  std::vector<std::string> writes;
  std::array<char, 4096> packet{};
  for (ssize_t n = 0; (n = ::read(read_end.get(), packet.data(), packet.size())) > 0;) {
    writes.emplace_back(packet.data(), static_cast<std::size_t>(n));
  }
  return writes;
}

TEST(Log, ALineIsOneWrite) {
  const auto writes = writes_of([] {
    const Logger logger(LogLevel::kDebug, 2);
    logger.warning("slow peer");
    logger.debug("two\nlines");
  });
  ASSERT_EQ(writes.size(), 2u);
  EXPECT_EQ(writes[0], "tutti[rank 2] warning: slow peer\n");
  EXPECT_EQ(writes[1], "tutti[rank 2] debug: two lines\n");
}

TEST(Log, TheLevelChoosesAndNoRankIsNotNamed) {
  const auto writes = writes_of([] {
    const Logger logger(LogLevel::kWarning, -1);
    logger.info("not this");
    logger.error("this");
  });
  ASSERT_EQ(writes.size(), 1u);
  EXPECT_EQ(writes[0], "tutti error: this\n");
}

TEST(Log, ParsesLevels) {
  EXPECT_EQ(parse_log_level("error"), LogLevel::kError);
  EXPECT_EQ(parse_log_level("INFO"), LogLevel::kInfo);
  EXPECT_EQ(parse_log_level("3"), LogLevel::kDebug);
  EXPECT_EQ(parse_log_level("nonsense"), LogLevel::kWarning);
  EXPECT_EQ(parse_log_level(""), LogLevel::kWarning);
}

}  // namespace
}  // namespace tutti
