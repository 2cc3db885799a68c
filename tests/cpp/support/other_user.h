// A process of another user ("nobody") that attacks: it runs a function and exchanges short messages with the test.
//
// It forks where it is made, so make it before any thread. Ownership: ends the process when destroyed. Thread rule: one
// thread at a time. Only root can make another user's process: skip the test where may_be_another_user() is false.
#pragma once

#include <grp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "support/child_process.h"

namespace tutti::test {

inline bool become_nobody() {
  constexpr id_t kNobody = 65534;
  return ::setgroups(0, nullptr) == 0 && ::setegid(kNobody) == 0 && ::seteuid(kNobody) == 0;
}

inline bool may_be_another_user() {
  return run_in_child([] { return become_nobody() && ::geteuid() == 65534 ? 0 : 1; }) == 0 && ::geteuid() != 65534;
}

// One end of the talk between the test and the other user's process.
class Talk {
 public:
  explicit Talk(UniqueFd end) : end_(std::move(end)) {}

  void say(std::string_view what) const { ::send(end_.get(), what.data(), what.size(), MSG_NOSIGNAL); }
  // What the other side says; nothing when it is gone, or says nothing for a long time.
  std::string hear(int most_ms = 30'000) const {
    std::array<char, 4096> bytes;
    pollfd fd{end_.get(), POLLIN, 0};
    if (::poll(&fd, 1, most_ms) != 1) return {};
    const ssize_t got = ::recv(end_.get(), bytes.data(), bytes.size(), 0);
    return got > 0 ? std::string(bytes.data(), static_cast<std::size_t>(got)) : std::string();
  }
  // True once the other side has said something or is gone.
  bool something() const {
    pollfd fd{end_.get(), POLLIN, 0};
    return ::poll(&fd, 1, 0) != 0;
  }
  void close() { end_.reset(); }

 private:
  UniqueFd end_;
};

class OtherUser {
 public:
  // `body` must not use GoogleTest.
  explicit OtherUser(const std::function<void(const Talk&)>& body) {
    std::array<int, 2> ends{-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
    talk_.emplace(UniqueFd(ends[0]));
    Talk theirs{UniqueFd(ends[1])};
    process_.emplace([&] {
      talk_->close();
      if (!become_nobody()) return 1;
      body(theirs);
      return 0;
    });
  }

  const Talk& talk() const { return *talk_; }
  pid_t pid() const { return process_->pid(); }

 private:
  std::optional<Talk> talk_;
  std::optional<ChildProcess> process_;
};

}  // namespace tutti::test
