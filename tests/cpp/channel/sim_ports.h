// Message ports over a simulated network, driven by one thread: every run is its seed's, and a deadlock is seen as
// "nothing moves and nothing is under way".
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "channel/message_port.h"
#include "transport/sim/sim_network.h"

namespace tutti::test {

// Knows which ranks are dead or have failed, as the communicator's doorbell would; nobody sleeps.
class SimWaker final : public PortWaker {
 public:
  SimWaker(const SimNetwork& network, const std::vector<char>& failed, int rank)
      : network_(network), failed_(failed), rank_(rank) {}
  bool sleep(const std::vector<pollfd>&, std::int64_t, Sleeper&) noexcept override { return false; }
  void nudge() noexcept override {}
  void ring(int) noexcept override {}
  Outcome check(int peer) noexcept override {
    for (int other = 0; other < static_cast<int>(failed_.size()); ++other) {
      if (other == rank_ || (peer != kAnySource && other != peer)) continue;
      if (!network_.alive(other)) return {Status::kPeerLost, other};
      if (failed_[static_cast<std::size_t>(other)] != 0) return {Status::kPeerFailed, other};
    }
    return kOkOutcome;
  }

 private:
  const SimNetwork& network_;
  const std::vector<char>& failed_;
  int rank_;
};

class SimPorts {
 public:
  explicit SimPorts(int ranks, SimOptions options = {})
      : network(ranks, options), failed(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      wakers_.push_back(std::make_unique<SimWaker>(network, failed, rank));
      std::vector<Transport*> transports(static_cast<std::size_t>(ranks), &network.transport(rank));
      transports[static_cast<std::size_t>(rank)] = nullptr;
      ports_.push_back(std::make_unique<MessagePort>(rank, ranks, transports, wakers_.back().get(), 1));
    }
  }

  MessagePort& operator[](int rank) { return *ports_[static_cast<std::size_t>(rank)]; }
  int ranks() const { return static_cast<int>(ports_.size()); }

  // Drives all living ranks until `done`; false if it never will be.
  template <class Done>
  bool run_until(const Done& done) {
    constexpr int kPatience = 600;  // idle rounds: enough for a port to ask after dead peers
    for (int idle = 0; !done();) {
      if (step())
        idle = 0;
      else if (++idle > kPatience)
        return false;
    }
    return true;
  }

  // Until nothing moves any more.
  void settle() {
    while (step()) {
    }
  }

  bool step() {
    bool moved = false;
    for (int rank = 0; rank < ranks(); ++rank)
      if (network.alive(rank)) moved |= (*this)[rank].progress();
    return moved || network.advance();
  }

  SimNetwork network;
  std::vector<char> failed;  // ranks that have told the others of a failure

 private:
  std::vector<std::unique_ptr<SimWaker>> wakers_;
  std::vector<std::unique_ptr<MessagePort>> ports_;
};

inline CallRecord record_of(std::uint8_t call, std::size_t bytes, std::uint64_t tag = 0,
                            DataType dtype = DataType::kByte) {
  CallRecord record;
  record.call = call;
  record.dtype = static_cast<std::uint8_t>(dtype);
  record.count = bytes / size_of(dtype);
  record.tag = tag;
  return record;
}

inline std::vector<std::byte> pattern(std::uint64_t seed, std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  std::uint64_t x = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (std::byte& b : data) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    b = static_cast<std::byte>(x);
  }
  return data;
}

// One message end with its memory.
struct Parcel {
  explicit Parcel(std::size_t bytes) : data(bytes) {}
  explicit Parcel(std::vector<std::byte> bytes) : data(std::move(bytes)) {}

  void send(MessagePort& port, int peer, std::uint64_t tag, DataType dtype = DataType::kByte) {
    port.post_send(op, peer, tag, data.data(), data.size(), record_of(kCallSend, data.size(), tag, dtype));
  }
  void recv(MessagePort& port, int peer, std::uint64_t tag, DataType dtype = DataType::kByte) {
    port.post_recv(op, peer, tag, data.data(), data.size(), record_of(kCallRecv, data.size(), tag, dtype));
  }
  bool ok() const { return op.done() && op.outcome.ok(); }
  bool ended(Status status, int peer) const {
    return op.done() && op.outcome.status == status && op.outcome.peer == peer;
  }

  std::vector<std::byte> data;
  MessageOp op;
};

}  // namespace tutti::test
