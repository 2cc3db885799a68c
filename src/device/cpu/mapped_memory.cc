// The table of shared memory and what fork() does to it.
#include "device/cpu/mapped_memory.h"

#include <algorithm>
#include <utility>

#include "base/mapping.h"
#include "tutti/error.h"

namespace tutti {

MappedMemory& MappedMemory::instance() {
  const auto make = []() -> void* { return new MappedMemory; };
  return *static_cast<MappedMemory*>(ProcessRegistry::instance().member(RegistryMember::kMappedMemory, make));
}

void MappedMemory::add_arena(ForkHandler& arena) {
  const std::lock_guard lock(mutex_);
  arenas_.push_back(&arena);
}

void MappedMemory::remove_arena(ForkHandler& arena) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(arenas_, &arena);
}

Arena* MappedMemory::process_arena(std::size_t bytes_if_new) noexcept {
  // Acquire: sees the arena as its maker left it.
  Arena* arena = process_arena_.load(std::memory_order_acquire);
  if (arena != nullptr || forked_child()) return arena;
  const std::lock_guard lock(making_);
  if (tried_) return process_arena_.load(std::memory_order_relaxed);  // relaxed: ordered by the lock
  tried_ = true;
  try {
    arena = Arena::create(bytes_if_new).release();  // lives as long as the process: tensors die late
  } catch (const std::exception&) {
    return nullptr;
  }
  process_arena_.store(arena, std::memory_order_release);  // release: pairs with the acquire above
  return arena;
}

std::shared_ptr<PeerArena> MappedMemory::open_peer(int fd, std::uint64_t id, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::erase_if(peers_, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = peers_.find(id); found != peers_.end()) {
    if (std::shared_ptr<PeerArena> peer = found->second.lock()) return peer->bytes() >= bytes ? peer : nullptr;
  }
  // Beyond the file every access would be a bus error, and so it would be after its owner has cut it.
  if (bytes == 0 || !keeps_bytes(fd, bytes)) return nullptr;
  Mapping mapping = Mapping::shared(fd, bytes);
  advise_huge_pages(mapping.data(), mapping.bytes());
  exclude_from_core_dump(mapping.data(), mapping.bytes());
  auto peer = std::make_shared<PeerArena>(std::move(mapping));
  peers_[id] = peer;
  return peer;
}

void MappedMemory::before_fork() noexcept {
  mutex_.lock();
  for (ForkHandler* arena : arenas_) arena->before_fork();
  children_.before_fork();
}

void MappedMemory::after_fork_in_parent() noexcept {
  children_.after_fork_in_parent();
  std::for_each(arenas_.rbegin(), arenas_.rend(), [](ForkHandler* arena) { arena->after_fork_in_parent(); });
  mutex_.unlock();
}

void MappedMemory::after_fork_in_child() noexcept {
  children_.after_fork_in_child();
  std::for_each(arenas_.rbegin(), arenas_.rend(), [](ForkHandler* arena) { arena->after_fork_in_child(); });
  for (const auto& [id, entry] : peers_) {
    if (const std::shared_ptr<PeerArena> peer = entry.lock()) replace_by_nothing(peer->data(), peer->bytes());
  }
  mutex_.unlock();
}

Arena* process_arena(std::size_t bytes_if_new) noexcept {
  try {
    return MappedMemory::instance().process_arena(bytes_if_new);
  } catch (const std::exception&) {
    return nullptr;
  }
}

std::shared_ptr<PeerArena> PeerArena::open(int fd, std::uint64_t id, std::size_t bytes) noexcept {
  if (forked_child()) return nullptr;
  try {
    return MappedMemory::instance().open_peer(fd, id, bytes);
  } catch (const std::exception&) {
    return nullptr;  // no address space or memory left
  }
}

}  // namespace tutti
