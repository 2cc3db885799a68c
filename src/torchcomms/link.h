// What works, windows and the watch reach a communicator by: it may be gone when they do.
//
// Ownership: shared by all of them. Thread rule: any thread; owner() only where the caller serializes with the
// communicator's end, as TorchComms asks of whoever uses a window.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

namespace tutti::torchcomms {

class TorchCommTutti;

class Link {
 public:
  explicit Link(TorchCommTutti& owner) : owner_(&owner) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Null when the communicator is gone.
  TorchCommTutti* owner() const;

  // Runs the communicator's abort hooks if a call of it has failed and they have not run for that yet; returns when
  // they have, unless this thread is the one that runs them. False: the communicator is gone.
  bool look_for_failure();

  // Whether what ended generation `number` of the communicator was a limit of time, as far as is known. Waits for
  // nothing.
  bool timed_out(std::uint64_t number) const;

  // " on communicator 'name'", for messages; nothing if it is gone.
  std::string on_communicator() const;

  // The communicator goes: waits for hooks that run on other threads.
  void end();

  // Held while hooks run, and while they are registered. Recursive: a hook may wait for another work, which fails too.
  // Taken before `mutex_`, and never by who holds Python's global lock: hooks take that.
  std::recursive_mutex& hooks() noexcept { return hooks_; }

 private:
  std::recursive_mutex hooks_;
  mutable std::mutex mutex_;  // guards the owner, which both locks are needed to change; before the communicator's own
  TorchCommTutti* owner_;
};

}  // namespace tutti::torchcomms
