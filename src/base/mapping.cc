// Anonymous shared files and their mappings on Linux (memfd) and macOS (an unlinked POSIX shared memory object).
#include "base/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <random>
#include <string>

#include "tutti/error.h"

// Newer than Debian 12's headers.
#if defined(__linux__) && !defined(MFD_NOEXEC_SEAL)
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#if defined(__linux__) && !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

#if defined(__SANITIZE_THREAD__)
// What its runtime offers; there is no header of it.
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

namespace tutti {
namespace {

#if defined(__linux__)
int open_anonymous(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Kernels before 6.3 do not know MFD_NOEXEC_SEAL; later ones log a warning without it.
  int fd = ::memfd_create(name, kFlags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create(name, kFlags);
  if (fd < 0) throw_system_error(ErrorKind::kExhausted, "memfd_create", errno);
  return fd;
}
#else
int open_anonymous(const char*) {
  std::random_device random;
  for (int attempt = 0; attempt < 16; ++attempt) {
    const std::string path = "/tutti." + std::to_string(random());
    const int fd = ::shm_open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd >= 0) {
      ::shm_unlink(path.c_str());
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
      return fd;
    }
    if (errno != EEXIST) break;
  }
  throw_system_error(ErrorKind::kExhausted, "shm_open", errno);
}
#endif

// It takes every mmap() for a write to all of the range.
struct NoWriteForTheThreadSanitizer {
#if defined(__SANITIZE_THREAD__)
  NoWriteForTheThreadSanitizer() noexcept { AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
  ~NoWriteForTheThreadSanitizer() { AnnotateIgnoreWritesEnd(__FILE__, __LINE__); }
#else
  NoWriteForTheThreadSanitizer() noexcept {}
#endif
};

bool fixed_map(std::byte* data, std::size_t bytes, int protection, int flags, int fd, std::size_t offset) noexcept {
  return bytes == 0 || ::mmap(data, bytes, protection, flags | MAP_FIXED | MAP_NORESERVE, fd,
                              static_cast<off_t>(offset)) != MAP_FAILED;
}

}  // namespace

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Mapping::reset() noexcept {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

Mapping Mapping::shared(int fd, std::size_t bytes) {
  if (bytes == 0) throw_error(ErrorKind::kInvalidArgument, "cannot map 0 bytes");
  // Reserve with slack, map the file at the aligned address inside, and give the slack back.
  const std::size_t slack = bytes >= kHugePageBytes ? kHugePageBytes : 0;
  if (bytes > SIZE_MAX - slack) throw_system_error(ErrorKind::kExhausted, "mmap", ENOMEM);
  void* reserved = ::mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    const int error_number = errno;
    throw_system_error(ErrorKind::kExhausted, "mmap of " + std::to_string(bytes) + " bytes", error_number);
  }
  auto* const begin = static_cast<std::byte*>(reserved);
  const std::size_t misalignment = slack == 0 ? 0 : reinterpret_cast<std::uintptr_t>(begin) % kHugePageBytes;
  const std::size_t before = misalignment == 0 ? 0 : kHugePageBytes - misalignment;
  std::byte* const data = begin + before;
  if (!fixed_map(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) {
    const int error_number = errno;
    ::munmap(begin, bytes + slack);
    throw_system_error(ErrorKind::kExhausted, "mmap of " + std::to_string(bytes) + " bytes", error_number);
  }
  if (before != 0) ::munmap(begin, before);
  // The tail starts at a page boundary: munmap rejects anything else.
  const std::size_t mapped = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  if (before + mapped < bytes + slack) ::munmap(data + mapped, bytes + slack - before - mapped);
  Mapping mapping;
  mapping.data_ = data;
  mapping.bytes_ = bytes;
  return mapping;
}

UniqueFd create_memfd(const char* name, std::size_t bytes) {
  // Past RLIMIT_FSIZE ftruncate would not fail but kill the process with SIGXFSZ.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
    throw_system_error(ErrorKind::kExhausted, "shared memory of " + std::to_string(bytes) + " bytes (ulimit -f)",
                       EFBIG);
  }
  UniqueFd fd(open_anonymous(name));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    const int error_number = errno;
    throw_system_error(ErrorKind::kExhausted, "ftruncate to " + std::to_string(bytes) + " bytes", error_number);
  }
#if defined(__linux__)
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL);
#endif
  return fd;
}

std::size_t file_bytes(int fd) noexcept {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || status.st_size <= 0) return 0;
  return static_cast<std::size_t>(status.st_size);
}

bool keeps_bytes(int fd, std::size_t bytes) noexcept {
#if defined(__linux__)
  const int seals = ::fcntl(fd, F_GET_SEALS);  // -1 for whatever cannot be sealed
  const bool never_shrinks = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
#else
  const bool never_shrinks = true;  // no seals there: all ranks are trusted
#endif
  return never_shrinks && file_bytes(fd) >= bytes;  // in this order: the size can only grow then
}

void advise_huge_pages([[maybe_unused]] std::byte* data, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
  ::madvise(data, bytes, MADV_HUGEPAGE);
#endif
}

void exclude_from_core_dump([[maybe_unused]] std::byte* data, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(MADV_DONTDUMP)
  ::madvise(data, bytes, MADV_DONTDUMP);
#endif
}

bool punch_hole([[maybe_unused]] int fd, [[maybe_unused]] std::size_t offset,
                [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__)
  int result = 0;
  do {
    result = ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                         static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0;
#else
  return false;
#endif
}

bool replace_by_private_copy(std::byte* data, std::size_t bytes, int fd, std::size_t offset) noexcept {
  if (fixed_map(data, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, offset)) return true;
  replace_by_nothing(data, bytes);
  return false;
}

bool replace_by_private_memory(std::byte* data, std::size_t bytes) noexcept {
  if (fixed_map(data, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) return true;
  replace_by_nothing(data, bytes);
  return false;
}

void replace_by_nothing(std::byte* data, std::size_t bytes) noexcept {
  if (bytes == 0) return;
  if (!fixed_map(data, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) ::munmap(data, bytes);
}

// Other threads may write meanwhile, and lose nothing: pages of the same content come into the place of those that are
// there.
bool keep_writes_private(std::byte* data, std::size_t bytes, int fd, std::size_t offset) noexcept {
  const NoWriteForTheThreadSanitizer no_write;
  if (fixed_map(data, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, offset)) return true;
  // Limits are checked before anything is unmapped. Should that ever not hold, the old view again.
  fixed_map(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
  return false;
}

bool take_own_pages(std::byte* data, std::size_t bytes) noexcept {
#if defined(MADV_POPULATE_WRITE)
  int result = 0;
  do {
    result = ::madvise(data, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return true;
  if (errno != EINVAL) return false;  // EINVAL: Linux before 5.14
#endif
  // A write that changes nothing, also while other threads write there.
  for (std::size_t at = 0; at < bytes; at += page_bytes()) {
    const std::atomic_ref<unsigned char> byte(*reinterpret_cast<unsigned char*>(data + at));
    unsigned char value = byte.load(std::memory_order_relaxed);
    // relaxed: orders nothing; it is the page fault that counts.
    while (!byte.compare_exchange_weak(value, value, std::memory_order_relaxed, std::memory_order_relaxed)) {
    }
  }
  return true;
}

void drop_private_pages(std::byte* data, std::size_t bytes) noexcept { ::madvise(data, bytes, MADV_DONTNEED); }

std::size_t page_bytes() noexcept {
  const long bytes = ::sysconf(_SC_PAGESIZE);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : 4096;
}

std::size_t physical_memory_bytes() noexcept {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  return static_cast<std::size_t>(std::max(pages, 1L)) * page_bytes();
}

}  // namespace tutti
