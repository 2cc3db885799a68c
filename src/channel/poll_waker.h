// A PortWaker over poll(): for ports whose links all have descriptors, and for tests.
//
// Of several sleepers one polls, the others wait for it or for a nudge: so a nudge wakes each of them once, and nobody
// spins while another is slow to leave. Who polled wakes the rest when it leaves, because it has taken the wake-up that
// may have been meant for them.
//
// Thread rule: any thread may call any member. nudge() may also be called in another process that has inherited this
// object by fork, and wakes the sleepers of the process that sleeps.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

#include "base/unique_fd.h"
#include "channel/message_port.h"

namespace tutti {

class PollWaker : public PortWaker {
 public:
  // `check` may be empty: then waiting is hopeless only when the link says so. `ring` may be empty when all links
  // have descriptors. Throws Error(kExhausted).
  explicit PollWaker(std::function<Outcome(int peer)> check = {}, std::function<void(int peer)> ring = {});

  // Tells of no lost wake-up: who rings says nowhere that he is about to.
  bool sleep(const std::vector<pollfd>& fds, std::int64_t timeout_ns, Sleeper& sleeper) noexcept override;
  void nudge() noexcept override;
  void ring(int peer) noexcept override;
  Outcome check(int peer) noexcept override;

 private:
  std::function<Outcome(int)> check_;
  std::function<void(int)> ring_;
  UniqueFd event_;    // eventfd: readable while a nudge is on for the one that polls
  std::mutex mutex_;  // guards the two below; a leaf
  std::condition_variable changed_;
  std::uint64_t wakes_ = 0;  // nudges, and sleepers that have polled
  bool polling_ = false;
};

}  // namespace tutti
