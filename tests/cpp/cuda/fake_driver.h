// A driver whose device memory is anonymous files: what MemorySharing promises, without a GPU. Each object plays the
// driver of one process; processes are rank threads that say that they are strangers.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/mapping.h"
#include "device/cuda/memory_sharing.h"
#include "tutti/error.h"

namespace tutti::cuda::test {

inline constexpr std::size_t kPage = 4096;

class FakeDriver final : public MemorySharing {
 public:
  // `count` allocations of one page each, mapped one after another, of this kind.
  std::byte* allocate(std::size_t count, ShareKind kind) {
    std::byte* base = reserve(count * kPage);
    for (std::size_t i = 0; i < count; ++i) place(base + i * kPage, kind);
    return base;
  }
  // Another allocation in the place of the first page at `base`.
  void replace(std::byte* base, ShareKind kind) { place(base, kind); }
  // The page at `base` is no longer device memory.
  void forget(std::byte* base) {
    const std::lock_guard lock(mutex_);
    pages_.erase(address_of(base));
  }

  Allocation find(int /*device*/, std::uintptr_t address) const override {
    const std::lock_guard lock(mutex_);
    const auto page = pages_.find(address / kPage * kPage);
    if (page == pages_.end()) throw_error(ErrorKind::kInvalidArgument, "no device memory");
    return {page->first, kPage, numbered ? page->second.id : 0};
  }
  SharedAllocation share(const Allocation& allocation) const override {
    if (!refuses_to_share.empty()) throw_error(ErrorKind::kUnsupported, refuses_to_share);
    const std::lock_guard lock(mutex_);
    const Page& page = pages_.at(allocation.base);
    SharedAllocation shared;
    shared.kind = page.kind;
    if (page.kind == ShareKind::kDescriptor) {
      shared.fd = UniqueFd(::fcntl(page.file.get(), F_DUPFD_CLOEXEC, 0));
    } else {
      shared.handle = std::to_string(page.file.get());
    }
    return shared;
  }
  std::shared_ptr<std::byte> open(int /*device*/, std::span<const ForeignAllocation> pages) const override {
    if (!refuses_to_open.empty()) throw_error(ErrorKind::kUnsupported, refuses_to_open);
    std::byte* base = reserve(pages.size() * kPage);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const ForeignAllocation& page = pages[i];
      map(base + i * kPage, page.kind == ShareKind::kDescriptor ? page.fd : std::stoi(page.handle));
    }
    ++opened;
    const std::size_t bytes = pages.size() * kPage;
    return {base, [this, bytes](std::byte* p) {
              ::munmap(p, bytes);
              ++closed;
            }};
  }
  void allow(int /*device*/, int /*owner*/, const Allocation& /*allocation*/) const override { ++allowed; }

  bool numbered = true;
  std::string refuses_to_share, refuses_to_open;
  mutable std::atomic<int> opened{0}, closed{0}, allowed{0};

 private:
  struct Page {
    UniqueFd file;
    ShareKind kind = ShareKind::kIpc;
    std::uint64_t id = 0;
  };
  static std::uintptr_t address_of(const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p); }
  static std::byte* reserve(std::size_t bytes) {
    void* p = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::runtime_error("mmap");
    return static_cast<std::byte*>(p);
  }
  static void map(std::byte* at, int file) {
    if (::mmap(at, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
      throw_error(ErrorKind::kInternal, std::string("mmap: ") + std::strerror(errno));
    }
  }
  void place(std::byte* at, ShareKind kind) {
    Page page{create_memfd("device", kPage), kind, ++last_id_};
    map(at, page.file.get());
    const std::lock_guard lock(mutex_);
    pages_.insert_or_assign(address_of(at), std::move(page));
  }

  mutable std::mutex mutex_;  // guards pages_
  std::map<std::uintptr_t, Page> pages_;
  std::uint64_t last_id_ = 0;
};

}  // namespace tutti::cuda::test
