#include "base/file_stamp.h"

#include <sys/stat.h>
#include <time.h>

namespace tutti {
namespace {

constexpr std::int64_t kTickNs = 1'000'000'000;  // file systems whose clock is coarser are not in use any more

std::int64_t nanoseconds(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

FileStamp FileStamp::of(const std::string& path) noexcept {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return {};
#if defined(__APPLE__)
  const timespec modified = st.st_mtimespec, changed = st.st_ctimespec;
#else
  const timespec modified = st.st_mtim, changed = st.st_ctim;
#endif
  return {static_cast<std::uint64_t>(st.st_dev), static_cast<std::uint64_t>(st.st_ino),
          static_cast<std::uint64_t>(st.st_size), nanoseconds(modified), nanoseconds(changed)};
}

bool FileStamp::settled() const noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return changed_ns != 0 && changed_ns + kTickNs < nanoseconds(now);
}

}  // namespace tutti
