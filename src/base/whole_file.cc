#include "base/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>

#include "base/unique_fd.h"
#include "tutti/error.h"

namespace tutti {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw_error(ErrorKind::kInvalidArgument, why); }

}  // namespace

std::string whole_file(const std::string& path) {
  // Not blocking: the other end of a pipe may never come.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) refuse("cannot be read: " + describe_errno(errno));
  if (!S_ISREG(status.st_mode)) refuse("is no regular file");
  // The size is a hint only: files of /proc have none, and others grow meanwhile.
  std::string text;
  for (std::size_t got = 0;;) {
    if (got > kMostFileBytes) refuse("has more than the " + std::to_string(kMostFileBytes >> 20) + " MB that are read");
    const auto size = static_cast<std::size_t>(std::max<off_t>(0, status.st_size));
    text.resize(got < size ? std::min(size, kMostFileBytes) + 1 : got + 65'536);
    const ssize_t n = ::read(file.get(), text.data() + got, text.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse("cannot be read: " + describe_errno(errno));
    got += static_cast<std::size_t>(n);
    if (n > 0) continue;
    text.resize(got);
    return text;
  }
}

std::optional<std::string> system_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace tutti
