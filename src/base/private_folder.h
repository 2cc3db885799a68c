// A folder of files that only this user can have written: what is read from it may be believed as far as the user's own
// files may.
//
// The folder belongs to the effective user and nobody else may enter it (mode 0700). Files are replaced as a whole:
// written under a temporary name, then renamed, so a reader in another process sees the old one or the new one. All
// operations go through the descriptor of the folder that was checked; links are not followed.
//
// Thread rule: const members may be called from any thread, and from any number of processes at once.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace tutti {

class PrivateFolder {
 public:
  PrivateFolder() = default;
  // Makes the folder, and those above it, where they are missing. Whatever is in the way (another owner, a mode that
  // lets others in, a read-only file system) leaves a folder that has nothing and keeps nothing.
  static PrivateFolder open(const std::string& path) noexcept;

  explicit operator bool() const noexcept { return static_cast<bool>(folder_); }

  // The whole of a regular file of this user, at most `most` bytes; nothing if there is none.
  std::optional<std::string> read(const std::string& name, std::size_t most) const noexcept;
  // False if it could not be written; nothing has changed then.
  bool write(const std::string& name, std::string_view content) const noexcept;

 private:
  UniqueFd folder_;
};

}  // namespace tutti
