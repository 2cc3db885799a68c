// Shared anonymous memory: files without a name (memfd), and one owner for each mapping of one.
//
// Thread rule: a Mapping belongs to one owner; the functions on raw ranges may be called from any thread.
#pragma once

#include <cstddef>
#include <utility>

#include "base/unique_fd.h"

namespace tutti {

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { reset(); }

  // Maps `bytes` of `fd` shared, readable and writable, without reserving memory. From 2 MiB up the address is a
  // multiple of 2 MiB, so that huge pages fit. Throws Error(kExhausted).
  static Mapping shared(int fd, std::size_t bytes);

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }
  void reset() noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// An anonymous file of `bytes` (sparse: no memory until touched), closed on exec. It can never be shrunk, so a
// mapping of it never faults. Throws Error(kExhausted).
UniqueFd create_memfd(const char* name, std::size_t bytes);

// Size of the file behind `fd`, 0 if it has none.
std::size_t file_bytes(int fd) noexcept;

// True if the file has so many bytes and none of its holders can make it shorter: a mapping of them never faults.
bool keeps_bytes(int fd, std::size_t bytes) noexcept;

// Asks for huge pages in [data, data + bytes); refusal is harmless.
void advise_huge_pages(std::byte* data, std::size_t bytes) noexcept;

// Keeps the range out of core dumps: a dump of a sparse file would touch, and so allocate, every page of it.
void exclude_from_core_dump(std::byte* data, std::size_t bytes) noexcept;

// Gives the memory of [offset, offset + bytes) of the file back; it reads as zeros afterwards. False if the system
// cannot do it; nothing has changed then.
bool punch_hole(int fd, std::size_t offset, std::size_t bytes) noexcept;

// Replacements of what is mapped at a page-aligned range, in place. All are async-signal safe (a fork handler calls
// them) and never fail open: where the replacement is refused the range ends up inaccessible.
// A private copy-on-write view of the file:
bool replace_by_private_copy(std::byte* data, std::size_t bytes, int fd, std::size_t offset) noexcept;
// Fresh private memory:
bool replace_by_private_memory(std::byte* data, std::size_t bytes) noexcept;
// Nothing: every access faults, the addresses stay taken.
void replace_by_nothing(std::byte* data, std::size_t bytes) noexcept;

// Two steps to make a shared view of a file the caller's own. The first: what this process writes to the range from now
// on, on any thread, goes to pages of its own, what it has written before is kept, and pages that it has not written
// still show the file. False if that is refused: nothing has changed then.
bool keep_writes_private(std::byte* data, std::size_t bytes, int fd, std::size_t offset) noexcept;
// The second: gives every page of the range a copy of its own, with what it shows. False without memory for all.
bool take_own_pages(std::byte* data, std::size_t bytes) noexcept;

// Drops the pages of private memory; it reads as zeros afterwards.
void drop_private_pages(std::byte* data, std::size_t bytes) noexcept;

std::size_t page_bytes() noexcept;
std::size_t physical_memory_bytes() noexcept;

}  // namespace tutti
