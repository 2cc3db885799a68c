// The software pipeline that every staged algorithm runs in.
//
// A call moves in rounds of at most one chunk. In a round a filler copies its chunk into its staging area and publishes
// the round in lane kFilled; a drainer takes what it needs from the fillers' areas and publishes the round in lane
// kDrained. Areas hold several rounds, so a filler runs ahead of the drainers; before it overwrites a round it awaits
// that all drainers have published it. Every rank drains the round before the one it fills, so while it works on one,
// its peers' counters arrive: with balanced ranks no wait ever blocks.
//
// On entry all ranks' announcements have been verified, so nobody still reads the areas of an earlier call.
#pragma once

#include "algorithm/shm/shm_algorithm.h"

namespace tutti {

// Places that the pipelines need at least.
inline constexpr std::uint64_t kLeastDepth = 4;

// `bytes` of every rank's staging area, from `offset`, as a ring of places for one chunk each.
//
// Rounds take all places in turn and a call goes on where the last one ended: by the time a place is filled again the
// peers' caches have lost it, so the stores need not wait for them (see SharedWriter). Ranks agree on the places,
// because they agree on the channel's steps.
class StageRing {
 public:
  StageRing(HostChannel& host, std::size_t chunk, std::size_t offset, std::size_t bytes) noexcept
      : host_(&host), chunk_(chunk), offset_(offset), depth_(bytes / chunk), start_(host.step_base() % depth_) {}
  std::uint64_t depth() const noexcept { return depth_; }
  std::byte* at(int rank, std::uint64_t round) const noexcept { return host_->stage(rank) + place(round); }
  // Where this rank fills.
  std::byte* own(std::uint64_t round) const noexcept {
    host_->make_stage(place(round), chunk_);
    return at(host_->index(), round);
  }

 private:
  std::size_t place(std::uint64_t round) const noexcept { return offset_ + (start_ + round) % depth_ * chunk_; }

  HostChannel* host_;
  std::size_t chunk_, offset_;
  std::uint64_t depth_, start_;
};

// Bytes of one chunk of a rank's staging area, for a message of `bytes`. Small enough for several rounds, so that
// filling and draining overlap, unless ranks share cores and cannot overlap anyway; never more than the area holds.
inline std::size_t chunk_bytes(const HostChannel& host, std::size_t bytes) noexcept {
  constexpr std::size_t kLeast = 8192;
  const std::size_t rounds = host.crowded() ? 1 : 4;
  const std::size_t most = host.stage_bytes() / kLeastDepth;
  const std::size_t wanted = (bytes / rounds + 4095) / 4096 * 4096;
  return std::min(most, std::max(kLeast, wanted));
}

inline std::uint64_t rounds_of(std::size_t bytes, std::size_t chunk) noexcept { return (bytes + chunk - 1) / chunk; }

// Which ranks take part on one side of the exchange.
struct Side {
  int only = -1;              // one rank, or -1
  int except = -1;            // all but one, or -1
  int first = kMaxHostRanks;  // of the others: the first so many
  bool has(int rank) const noexcept { return only >= 0 ? rank == only : rank != except && rank < first; }
  static Side all() noexcept { return {}; }
  static Side root(int r) noexcept { return {.only = r}; }
  static Side others(int r) noexcept { return {.except = r}; }
  static Side lowest(int n) noexcept { return {.first = n}; }
};

// fill(round, area): copies this rank's chunk of `round` into `area`.
// drain(round, area_of): takes the chunk of `round`; area_of(peer) is the peer's area of that round. All fillers'
// chunks are there when it is called.
template <class Fill, class Drain>
Outcome exchange(CallContext& c, std::size_t chunk, std::uint64_t rounds, Side fillers, Side drainers, const Fill& fill,
                 const Drain& drain) noexcept {
  HostChannel& host = *c.host;
  const std::uint64_t base = host.step_base();
  const StageRing ring(host, chunk, 0, host.stage_bytes());
  const bool fills = fillers.has(c.rank);
  const bool drains = drainers.has(c.rank);
  const auto await_side = [&](Side side, StepLane lane, std::uint64_t value) noexcept {
    for (int i = 1; i < c.size; ++i) {
      const int peer = (c.rank + i) % c.size;
      if (!side.has(peer)) continue;
      if (Outcome outcome = host.await_step(peer, lane, value, c.deadline); !outcome.ok()) return outcome;
    }
    return kOkOutcome;
  };
  for (std::uint64_t t = 0; t <= rounds; ++t) {
    if (fills && t < rounds) {
      if (t >= ring.depth()) {
        const std::uint64_t before = t - ring.depth();
        if (Outcome outcome = await_side(drainers, StepLane::kDrained, base + before + 1); !outcome.ok()) {
          return outcome;
        }
      }
      fill(t, ring.own(t));
      host.publish(StepLane::kFilled, base + t + 1);
    }
    if (drains && t > 0) {
      const std::uint64_t u = t - 1;
      if (Outcome outcome = await_side(fillers, StepLane::kFilled, base + u + 1); !outcome.ok()) return outcome;
      drain(u, [&](int peer) noexcept -> const std::byte* { return ring.at(peer, u); });
      host.publish(StepLane::kDrained, base + u + 1);
    }
  }
  host.advance_steps(rounds);
  return kOkOutcome;
}

// How a drainer writes what it takes into an output of `bytes` in all: past the caches when they cannot hold it, which
// saves reading every line before it is overwritten.
using Delivery = void (*)(void* dst, const void* src, std::size_t bytes) noexcept;
inline Delivery delivery_of(const HostChannel& host, std::size_t bytes) noexcept {
  return bytes > host.cache_share() ? cpu::copy_streaming : cpu::copy_from_peer;
}

// The part of a block of `bytes` that round `t` of `chunk` moves.
struct Window {
  std::size_t begin;
  std::size_t size;
  Window(std::size_t bytes, std::size_t chunk, std::uint64_t t) noexcept
      : begin(std::min(bytes, static_cast<std::size_t>(t) * chunk)), size(std::min(bytes - begin, chunk)) {}
};

}  // namespace tutti
