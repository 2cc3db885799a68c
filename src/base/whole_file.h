// Files read whole.
//
// Thread rule: functions of their arguments; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace tutti {

// Plans and tables are far smaller; what a reader makes of more would fill the memory.
inline constexpr std::size_t kMostFileBytes = std::size_t{64} << 20;

// The text of a file that a user names: never more than there is room for, and never a wait for one who writes. Throws
// Error(kInvalidArgument), without the path, if it is no regular file (a pipe and /dev/zero are none), if it
// cannot be read, or if it has more than kMostFileBytes.
std::string whole_file(const std::string& path);

// The text of a file of the system's, such as those of /proc; nothing where it cannot be read.
std::optional<std::string> system_file(const std::string& path);

}  // namespace tutti
