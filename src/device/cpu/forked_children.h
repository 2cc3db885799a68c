// Which forked children of this process may still read memory that it shared with them.
//
// A child's private view of the arena shows what the parent's file holds in every page the child has not written. If
// the parent frees a block and reuses it, the child would read foreign data in a tensor it still owns (Python's
// multiprocessing drops the parent's reference to a process's arguments right after the fork). So blocks that a living
// child may own are held back. Each fork makes a pipe whose write end only the child keeps: end of file tells that the
// child, and all that it forked, have exited or replaced their program. A child that closes every descriptor gives
// this protection up.
//
// Thread rule: all members may be called from any thread. Lock order: its mutex is a leaf.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/unique_fd.h"

namespace tutti {

class ForkedChildren {
 public:
  // Forks so far. Changes only inside before_fork .. after_fork, where the arenas' locks are held: relaxed.
  std::uint32_t forks() const noexcept { return forks_.load(std::memory_order_relaxed); }

  // True if a child of a fork numbered in (after, up_to] was alive at the last refresh.
  bool may_live(std::uint32_t after, std::uint32_t up_to) noexcept;

  // Looks which children have ended: one system call a child.
  void refresh() noexcept;

  // Around fork(); the lock is held in between.
  void before_fork() noexcept;
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;

 private:
  struct Child {
    std::uint32_t number;
    UniqueFd end_of_life;  // empty if there was no descriptor left: the child counts as alive for ever
  };

  void forget_ended_locked() noexcept;

  std::mutex mutex_;  // guards what follows
  std::vector<Child> children_;
  UniqueFd new_write_end_;   // from before_fork to after_fork
  bool lost_child_ = false;  // a fork found no memory to note its child: every child counts as alive for ever
  UniqueFd own_life_;        // in a child: the write end that its parent watches
  std::atomic<std::uint32_t> forks_{0};
};

}  // namespace tutti
