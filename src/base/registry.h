// The one process registry: what belongs to the process and not to a communicator.
//
// It holds (1) the exit hooks of live communicators, (2) the handlers that layers run around fork(), (3) the flag
// that this process is a forked child, and (4) objects that must live as long as the process: a layer above's (the
// arena and the table of peers' arenas; the network's endpoints; what threads sleep on), and the table of peer
// processes.
//
// Ownership: made at first use and never destroyed, since tensors are freed and communicators die during static
// destruction too. Thread rule: all members may be called from any thread.
// Lock order: the registry's mutex comes before every lock that a fork handler or an exit hook takes. It is held while
// they run, so neither may register or unregister anything.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

namespace tutti {

// Runs `callback` once when the process exits cleanly (return from main, exit(); not _exit, a signal or abort), and
// never in a forked child. The destructor unregisters (an owner that is destroyed first speaks for itself) and waits
// while the callbacks run.
class ExitHook {
 public:
  explicit ExitHook(std::function<void()> callback);
  ~ExitHook();
  ExitHook(const ExitHook&) = delete;
  ExitHook& operator=(const ExitHook&) = delete;

 private:
  friend class ProcessRegistry;
  std::function<void()> callback_;
};

// What a layer does around fork(): take its locks before, release them after, and in the child also turn what is
// shared with other processes private. The child may only do what is async-signal safe.
class ForkHandler {
 public:
  virtual ~ForkHandler() = default;
  virtual void before_fork() noexcept = 0;
  virtual void after_fork_in_parent() noexcept = 0;
  virtual void after_fork_in_child() noexcept = 0;
};

// Registers a handler as long as it lives. Handlers run in the order of registration before the fork, in the
// opposite order after it.
class ForkHook {
 public:
  explicit ForkHook(ForkHandler& handler);
  ~ForkHook();
  ForkHook(const ForkHook&) = delete;
  ForkHook& operator=(const ForkHook&) = delete;

 private:
  ForkHandler& handler_;
};

// True in a child that forked after Tutti was used there: everything refuses to work in it, before it takes a lock, and
// what is the parent's is not destroyed (base/release.h).
bool forked_child() noexcept;

enum class RegistryMember { kMappedMemory, kPeerProcesses, kEndpoints, kBerths };
inline constexpr int kRegistryMemberCount = 4;

class ProcessRegistry {
 public:
  static ProcessRegistry& instance();

  // The object of a layer above, made by `make` at the first call.
  void* member(RegistryMember which, void* (*make)());

 private:
  friend class ExitHook;
  friend class ForkHook;
  friend bool forked_child() noexcept;

  ProcessRegistry();
  void run_exit_hooks() noexcept;
  void before_fork() noexcept;
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;

  std::mutex mutex_;  // guards the two lists
  std::vector<ExitHook*> exit_hooks_;
  std::vector<ForkHandler*> fork_handlers_;

  // Serializes making members. Apart from mutex_, because making one registers hooks; taken before it.
  std::mutex members_mutex_;
  // No function-local statics: a fork while another thread makes one would leave it locked in the child.
  std::array<std::atomic<void*>, kRegistryMemberCount> members_{};

  // Written once, by the only thread of a forked child before fork() returns there: relaxed loses nothing.
  std::atomic<bool> forked_child_{false};
};

}  // namespace tutti
