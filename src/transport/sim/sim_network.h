// N ranks of one process whose links run on a virtual clock: the transport of tests.
//
// A seed decides everything: how much of each write is taken, when it is delivered, how much a read gives. Bytes of one
// link keep their order; links are delayed against each other at will. Links can be cut and ranks killed at their n-th
// operation (a write or read that would have moved bytes). What had been delivered by then can still be read.
//
// Time passes only in advance(), so a test that calls it when no rank moves sees every deadlock at once: nothing moves
// and nothing is under way.
//
// Ownership: owns its transports and links; outlives whoever uses them. Thread rule: any thread may call any member,
// one mutex guards all; with one thread the run is the same for the same seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/link.h"

namespace tutti {

struct SimOptions {
  std::uint64_t seed = 0;
  std::int64_t max_delay_ns = 20'000;  // from a write to its delivery
  std::size_t capacity = 16384;        // bytes under way a direction of a link; at least kLinkSlack
};

class SimNetwork {
 public:
  // Throws Error(kInvalidArgument) for a capacity below kLinkSlack.
  SimNetwork(int ranks, const SimOptions& options);
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;

  Transport& transport(int rank) noexcept;

  // Faults. `operation` counts from 1; the operation itself moves nothing any more.
  void kill_at(int rank, std::uint64_t operation) noexcept;
  void cut_at(int a, int b, std::uint64_t operation) noexcept;
  void kill(int rank) noexcept;
  bool alive(int rank) const noexcept;

  // The virtual time, and moving it to the next delivery. False if nothing is under way.
  std::int64_t time_ns() const noexcept;
  bool advance() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
