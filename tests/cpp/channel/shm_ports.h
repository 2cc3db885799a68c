// Message ports over shared rings for ranks that really wait: threads, or processes forked after this was made.
#pragma once

#include <memory>
#include <vector>

#include "channel/message_port.h"
#include "channel/poll_waker.h"
#include "transport/shm_world.h"

namespace tutti::test {

// The memory, and for each rank a waker whose event the others ring. Each rank makes its own port.
class ShmPorts {
 public:
  explicit ShmPorts(int ranks, std::size_t capacity = 65536) : ranks_(ranks), rings_(ranks, capacity) {
    for (int rank = 0; rank < ranks; ++rank)
      wakers_.push_back(
          std::make_unique<PollWaker>([this](int peer) { return check(peer); },
                                      [this](int peer) { wakers_[static_cast<std::size_t>(peer)]->nudge(); }));
  }

  struct Rank {
    Rank(ShmPorts& all, int rank, std::uint32_t spins)
        : transport(all.rings_.options(rank)),
          port(rank, all.ranks_, links(rank, all.ranks_), &all.waker(rank), spins) {}
    std::vector<Transport*> links(int rank, int ranks) {
      std::vector<Transport*> of_peer(static_cast<std::size_t>(ranks), &transport);
      of_peer[static_cast<std::size_t>(rank)] = nullptr;
      return of_peer;
    }
    ShmTransport transport;
    MessagePort port;
  };

  PollWaker& waker(int rank) { return *wakers_[static_cast<std::size_t>(rank)]; }
  SharedRings& rings() { return rings_; }

 private:
  Outcome check(int peer) {
    if (peer == kAnySource) return kOkOutcome;
    return {rings_.liveness(peer), peer};
  }

  int ranks_;
  SharedRings rings_;
  std::vector<std::unique_ptr<PollWaker>> wakers_;
};

}  // namespace tutti::test
