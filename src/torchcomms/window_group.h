// The group whose messages are those of a communicator's windows (inbox.h), and its end.
//
// Threads of the library use it to receive what peers put. end() waits for those that are about to, so that the last
// reference to the group is its own: when it returns, the group's threads are gone and no receive writes any more.
//
// Ownership: shared by the communicator and its inboxes. Thread rule: any thread; end() not below a Use.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "torchcomms/group.h"

namespace tutti::torchcomms {

class Inbox;

class WindowGroup final {
 public:
  // The group for as long as this lives, which is a call that does not wait for peers. Null when the group has ended.
  class Use final {
   public:
    explicit Use(WindowGroup& of) : of_(of), group_(of.enter()) {}
    ~Use() {
      if (group_ != nullptr) of_.leave();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    explicit operator bool() const noexcept { return group_ != nullptr; }
    c10d::Backend* operator->() const noexcept { return group_; }
    c10d::Backend& operator*() const noexcept { return *group_; }

   private:
    WindowGroup& of_;
    c10d::Backend* group_;
  };

  WindowGroup(Group group, std::string name) : group_(std::move(group)), name_(std::move(name)) {}

  // Of the communicator, for messages.
  const std::string& name() const noexcept { return name_; }
  Group group() const;   // null when it has ended
  Group in_use() const;  // throws when it has
  // Ends what waits for signals, too, of which the group knows nothing. An abort() of the communicator may come while
  // this is made, and does not see it.
  void abort_if(const std::atomic<bool>& aborted);
  // What its inboxes tell their peers before this rank's communicator ends. Gives up after a second. Gives what a
  // handler of a signal has raised meanwhile.
  std::exception_ptr leave_inboxes();
  void end();  // without Python's global lock

  // That fails with the group, also if that has been before.
  void add(const std::shared_ptr<Inbox>& inbox);

 private:
  c10d::Backend* enter();
  void leave() noexcept;
  std::vector<std::shared_ptr<Inbox>> inboxes() const;
  void fail_inboxes(const char* reason);

  mutable std::mutex mutex_;  // guards the members below; a leaf
  std::condition_variable unused_;
  Group group_;
  int uses_ = 0;
  std::vector<std::weak_ptr<Inbox>> inboxes_;
  std::exception_ptr failure_;  // of them
  const std::string name_;
};

// Collective over `group`: the words of all its ranks, one rank's behind another's. Each gives as many.
std::vector<std::int64_t> gathered_words(c10d::Backend& group, const std::vector<std::int64_t>& mine,
                                         std::chrono::milliseconds timeout);

}  // namespace tutti::torchcomms
