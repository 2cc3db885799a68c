// Whether a file is still the one that was read, told without reading it.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

struct FileStamp {
  std::uint64_t device = 0, inode = 0, bytes = 0;
  std::int64_t modified_ns = 0, changed_ns = 0;

  // All zero where there is no such file.
  static FileStamp of(const std::string& path) noexcept;

  // True if the file has stood still for long enough that a change from now on shows in its stamp. A second change
  // within one tick of the file system's clock would not. To be asked with a stamp taken before reading.
  bool settled() const noexcept;

  bool operator==(const FileStamp&) const = default;
};

}  // namespace tutti
