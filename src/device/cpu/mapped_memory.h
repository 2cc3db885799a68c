// The process's table of memory shared with other processes: its arenas, the mappings of peers' arenas, and the
// forked children that may still read the former. It makes all of it private in a forked child.
//
// Ownership: a member of the process registry, never destroyed. Thread rule: all members may be called from any
// thread. Lock order: process registry, then mutex_, then each arena's lock, then ForkedChildren's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/registry.h"
#include "device/cpu/arena.h"
#include "device/cpu/forked_children.h"

namespace tutti {

class MappedMemory final : private ForkHandler {
 public:
  static MappedMemory& instance();

  // Arenas, as long as they live. Their fork handlers run with the table's lock held.
  void add_arena(ForkHandler& arena);
  void remove_arena(ForkHandler& arena) noexcept;

  Arena* process_arena(std::size_t bytes_if_new) noexcept;
  std::shared_ptr<PeerArena> open_peer(int fd, std::uint64_t id, std::size_t bytes);
  ForkedChildren& children() noexcept { return children_; }

 private:
  MappedMemory() : fork_hook_(*this) {}
  void before_fork() noexcept override;
  void after_fork_in_parent() noexcept override;
  void after_fork_in_child() noexcept override;

  std::mutex making_;   // serializes making the process arena; taken before all others, never in a forked child
  bool tried_ = false;  // guarded by making_
  std::atomic<Arena*> process_arena_{nullptr};  // release in the maker pairs with the acquire in process_arena()

  std::mutex mutex_;  // guards the two tables
  std::vector<ForkHandler*> arenas_;
  std::unordered_map<std::uint64_t, std::weak_ptr<PeerArena>> peers_;
  ForkedChildren children_;
  ForkHook fork_hook_;  // last: from here on the handlers may run
};

}  // namespace tutti
