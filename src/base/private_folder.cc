#include "base/private_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "base/secret.h"

namespace tutti {
namespace {

// Makes `path` and every folder above it. What is there already is left as it is.
void make_folders(const std::string& path) {
  for (std::size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    ::mkdir(path.substr(0, end).c_str(), 0700);
  }
  ::mkdir(path.c_str(), 0700);
}

// Whether only this user may look into the folder or change it.
bool is_private(int folder) {
  struct stat st {};
  return ::fstat(folder, &st) == 0 && st.st_uid == ::geteuid() && (st.st_mode & 0077) == 0;
}

bool write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t done = ::write(fd, content.data(), content.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    content.remove_prefix(static_cast<std::size_t>(done));
  }
  return true;
}

std::optional<std::string> read_all(int fd, std::size_t most) {
  struct stat st {};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != ::geteuid()) return std::nullopt;
  if (static_cast<std::size_t>(st.st_size) > most) return std::nullopt;
  std::string content(static_cast<std::size_t>(st.st_size), '\0');
  std::size_t filled = 0;
  while (filled < content.size()) {
    const ssize_t done = ::read(fd, content.data() + filled, content.size() - filled);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return std::nullopt;
    filled += static_cast<std::size_t>(done);
  }
  return content;
}

}  // namespace

PrivateFolder PrivateFolder::open(const std::string& path) noexcept {
  PrivateFolder folder;
  try {
    make_folders(path);
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd && is_private(fd.get())) folder.folder_ = std::move(fd);
  } catch (...) {
    folder.folder_ = UniqueFd();  // without memory for a path: as if there were no folder
  }
  return folder;
}

std::optional<std::string> PrivateFolder::read(const std::string& name, std::size_t most) const noexcept {
  if (!folder_) return std::nullopt;
  try {
    // O_NONBLOCK: a pipe of that name must not hold us up.
    const UniqueFd file(::openat(folder_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file) return std::nullopt;
    return read_all(file.get(), most);
  } catch (...) {
    return std::nullopt;
  }
}

bool PrivateFolder::write(const std::string& name, std::string_view content) const noexcept {
  if (!folder_) return false;
  try {
    const Nonce nonce = random_nonce();
    const std::string temporary = name + "." + hexadecimal(std::span(nonce).first(8)) + ".new";
    const UniqueFd file(
        ::openat(folder_.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file) return false;
    if (write_all(file.get(), content) &&
        ::renameat(folder_.get(), temporary.c_str(), folder_.get(), name.c_str()) == 0) {
      return true;
    }
    ::unlinkat(folder_.get(), temporary.c_str(), 0);
    return false;
  } catch (...) {
    return false;
  }
}

}  // namespace tutti
