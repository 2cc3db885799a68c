// Chunks on their way around the ring of ranks: the loop that reduce-scatter, all-gather and all-reduce share.
//
// In step t (of n - 1) rank r sends chunk `first - t` to its right neighbour and receives chunk `first - 1 - t` from
// its left one, so what it receives in a step is what it sends in the next. Chunks are cut into segments, and a segment
// is sent on as soon as it has been taken, while the next ones come in. Large chunks go around in several laps of at
// most kLapSegments segments, so that a rank holds few of them at a time.
//
// Why it cannot deadlock. A rank that has taken i segments of a lap waits either for segment i, which its left
// neighbour sends once it has taken i - k, or for its segment i - 1 to be taken by its right neighbour, which has it as
// number i - 1 + k and posts receives up to kRingWindow - 1 ahead; k is the number of segments of one chunk. With 1 <=
// k < kRingWindow either wait is for a rank that has taken fewer segments, so no circle of waits can close.
#pragma once

#include <cstddef>

#include "algorithm/net/net_algorithm.h"

namespace tutti {

inline constexpr std::size_t kLapSegments = 4;
inline constexpr std::size_t kRingWindow = kLapSegments + 2;

// Ops that a lap needs: receives, what is sent on, and this rank's own chunk.
inline constexpr std::size_t kRingOps = 2 * kRingWindow + kLapSegments;

// Bytes of a segment when the largest chunk has `largest`. A multiple of 64: no element is cut.
inline std::size_t ring_segment(std::size_t largest) noexcept {
  constexpr std::size_t kLeast = 32 * 1024;
  constexpr std::size_t kMost = 1024 * 1024;
  return std::clamp((largest / kLapSegments + 63) / 64 * 64, kLeast, kMost);
}

// One segment that arrives in a lap.
struct RingItem {
  int step = 0;
  int chunk = 0;
  std::size_t offset = 0;  // in the chunk
  std::size_t bytes = 0;
  std::size_t slot = 0;  // below kRingWindow; free again when the item has been sent on
};

// What all ranks know of the chunks, and where a lap is.
template <class SizeOf>
class RingLap {
 public:
  RingLap(int ranks, const SizeOf& size_of_chunk) noexcept : ranks_(ranks), size_of_(size_of_chunk) {
    for (int c = 0; c < ranks; ++c) largest_ = std::max<std::size_t>(largest_, size_of_(c));
    segment_ = ring_segment(largest_);
  }

  bool next() noexcept { return (begin_ += kLapSegments * segment_) < largest_; }
  int ranks() const noexcept { return ranks_; }
  std::size_t segment_bytes() const noexcept { return std::min(segment_, (largest_ + 63) / 64 * 64); }
  // Of chunk c in this lap: at least one, which may be empty. That is how ranks meet and compare.
  std::size_t segments(int c) const noexcept {
    const std::size_t left = size_of_(c) - std::min<std::size_t>(begin_, size_of_(c));
    return std::clamp<std::size_t>((left + segment_ - 1) / segment_, 1, kLapSegments);
  }
  std::size_t offset(int c, std::size_t k) const noexcept {
    return std::min<std::size_t>(size_of_(c), begin_ + k * segment_);
  }
  std::size_t bytes(int c, std::size_t k) const noexcept { return offset(c, k + 1) - offset(c, k); }

 private:
  int ranks_;
  const SizeOf& size_of_;
  std::size_t largest_ = 0;
  std::size_t segment_ = 0;
  std::size_t begin_ = 0;  // of this lap, in every chunk
};

// The items that arrive in a lap, in order.
template <class SizeOf>
class RingItems {
 public:
  RingItems(const RingLap<SizeOf>& lap, int first) noexcept : lap_(lap), first_(first) {}

  // False when there are no more.
  bool next(RingItem& item) noexcept {
    if (step_ >= lap_.ranks() - 1) return false;
    const int chunk = (first_ - 1 - step_ + 2 * lap_.ranks()) % lap_.ranks();
    item = {step_, chunk, lap_.offset(chunk, k_), lap_.bytes(chunk, k_), count_++ % kRingWindow};
    if (++k_ == lap_.segments(chunk)) {
      k_ = 0;
      ++step_;
    }
    return true;
  }

 private:
  const RingLap<SizeOf>& lap_;
  int first_;
  int step_ = 0;
  std::size_t k_ = 0;
  std::size_t count_ = 0;
};

template <class SizeOf, class Land, class Take>
Outcome run_lap(NetCall& net, const RingLap<SizeOf>& lap, int first, const std::byte* own, const Land& land,
                const Take& take) noexcept {
  const auto forward_op = [](const RingItem& item) { return kRingWindow + item.slot; };
  RingItems<SizeOf> ahead(lap, first);
  RingItems<SizeOf> items(lap, first);
  RingItem item;
  for (std::size_t i = 0; i < kRingWindow && ahead.next(item); ++i) {
    net.recv(item.slot, net.left(), land(item), item.bytes);
  }
  for (std::size_t k = 0; k < lap.segments(first); ++k) {
    net.send(2 * kRingWindow + k, net.right(), own + lap.offset(first, k), lap.bytes(first, k));
  }
  for (bool before = false; items.next(item); before = true) {
    if (Outcome outcome = net.wait(item.slot); !outcome.ok()) return outcome;
    std::byte* data = land(item);
    take(item, data);
    if (item.step + 1 < lap.ranks() - 1) net.send(forward_op(item), net.right(), data, item.bytes);
    // The slot of the item before becomes free now; that of this one is still being sent.
    RingItem later;
    if (before && ahead.next(later)) {
      if (Outcome outcome = net.wait(forward_op(later)); !outcome.ok()) return outcome;
      net.recv(later.slot, net.left(), land(later), later.bytes);
    }
  }
  return net.finish();
}

// size_of_chunk(c): bytes of chunk c, the same on all ranks.
// own: this rank's data of chunk `first`.
// land(item): where a segment is received.
// take(item, data): consumes it; `data`, where it landed, is what is sent on.
template <class SizeOf, class Land, class Take>
Outcome ring_pass(NetCall& net, int first, const SizeOf& size_of_chunk, const std::byte* own, const Land& land,
                  const Take& take) noexcept {
  if (net.size() == 1) return kOkOutcome;
  RingLap<SizeOf> lap(net.size(), size_of_chunk);
  do {
    if (Outcome outcome = run_lap(net, lap, first, own, land, take); !outcome.ok()) return outcome;
  } while (lap.next());
  return kOkOutcome;
}

// Brings block r of every rank r to all. block(c): where it lies, or is to lie.
template <class SizeOf, class Block>
Outcome ring_all_gather(NetCall& net, const SizeOf& size_of_block, const Block& block) noexcept {
  return ring_pass(
      net, net.rank(), size_of_block, block(net.rank()),
      [&](const RingItem& item) -> std::byte* { return block(item.chunk) + item.offset; },
      [](const RingItem&, std::byte*) {});
}

}  // namespace tutti
