// The layout of the memory segment that the ranks of one communicator on one host share.
//
// Every word has one writer, named here, with one exception: doorbells are incremented by whoever wakes a sleeper. An
// increment cannot be left half done, and a lost or spurious one costs time only. Nothing in the segment is a lock, an
// allocator or a pointer that a peer would follow (addresses are for the kernel to read at, in their own process), so a
// rank that dies at any instruction leaves nothing that misleads the others.
//
//   header          which ranks sleep, and on what: two lanes of two bytes a rank; a publisher reads a line for 32
//   control[rank]   announcements, step counters, state, call records, doorbells; zero-filled by the kernel
//   sizes[rank]     block sizes of uneven calls, or addresses of blocks, one row for each of the last kWindow calls
//   slots[rank]     payloads of small calls, one slot for each of the last kWindow calls
//   stage[rank]     the staging area of large calls
//   rings[src][dst] byte rings of the message port
//
// Pages are touched first by the rank that writes them, so each lies on its writer's NUMA node.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "channel/call_record.h"

namespace tutti {

// How many calls an announcement stays readable. A rank announces call s only after it has verified every peer's
// announcements up to s - kLag; so no rank is ever more than kLag calls ahead of what a peer has verified, and what
// belongs to a call (cell, record, sizes, slot) is overwritten, kWindow calls later, only after every peer has verified
// the call and has returned from it. docs/architecture.md has the proof: whatever is kept by call is kept kWindow deep.
inline constexpr int kWindow = 8;
inline constexpr int kLag = 4;
static_assert(kWindow >= 2 * kLag, "a peer that lags kLag calls may still verify kLag calls back");

inline constexpr std::size_t kInlineBytes = 120;

// A rank's announcement of one call: the word says which call, the payload rides along when it is small.
struct alignas(128) AnnounceCell {
  std::atomic<std::uint64_t> word;  // hash << 32 | low half of the sequence number
  std::byte payload[kInlineBytes];
};
static_assert(sizeof(AnnounceCell) == 128);

// Doorbells and sleeping flags exist once for collectives and once for point-to-point, because different threads of a
// rank may sleep in each.
enum class WaitLane : int { kCollective = 0, kMessage = 1 };
inline constexpr int kWaitLanes = 2;

// What a rank's sleeping flag says of a lane: it is awake; it sleeps until anybody publishes, on its doorbell or at its
// Bell; or, from kAwaits on, until the rank flag - kAwaits does, on its doorbell. So one that waits for all others, one
// after the other, is not woken by each.
inline constexpr std::uint16_t kAwake = 0, kOnDoorbell = 1, kAtBell = 2, kAwaits = 3;

// Monotonic counters of progress within large calls.
enum class StepLane : int { kFilled = 0, kDrained = 1 };
inline constexpr int kStepLanes = 2;

// One word a line: a publisher's line is not disturbed by readers of another. 128 bytes because processors prefetch
// lines in pairs.
struct alignas(128) LineWord {
  std::atomic<std::uint64_t> value;
};
struct alignas(128) Doorbell {
  std::atomic<std::uint32_t> value;
};

// What a rank says when it has mapped everything. A capability counts only when all ranks of the host have it.
inline constexpr std::uint32_t kJoinedBit = 1;
inline constexpr std::uint32_t kLightBarrierBit = 2;  // registered for heavy_barrier()
inline constexpr std::uint32_t kArenasBit = 4;        // has mapped every rank's arena
inline constexpr std::uint32_t kRoomyBit = 8;         // sees a core for every rank of the host

// Whether a rank can read the memory of all others of the host by the kernel; as they know it when all have joined.
inline constexpr std::uint32_t kReadsNot = 1, kReads = 2;

enum class RankState : std::uint32_t { kJoined = 0, kLeft = 1, kFailed = 2 };

inline constexpr std::size_t kReasonBytes = 88;

struct alignas(128) RankControl {
  AnnounceCell cells[kWindow];
  LineWord steps[kStepLanes];
  Doorbell doorbells[kWaitLanes];
  LineWord publishing[kWaitLanes];  // odd while this rank stores what others wait for, and wakes them; then one more
  alignas(128) std::atomic<std::uint32_t> joined;  // kJoinedBit and capability bits, written once
  std::atomic<std::uint32_t> state;                // RankState; release: publishes the note below
  std::int32_t failed_status;                      // Status
  std::int32_t failed_peer;
  std::atomic<std::uint64_t> given_up;       // the first call that this rank has failed in; 0: none
  std::atomic<std::uint64_t> bell;           // name of the Bell where it sleeps or last slept; 0: none
  char failed_reason[kReasonBytes];          // of an abort, in words; ends with a zero or the array
  alignas(128) std::uint64_t probe_address;  // of a word in this rank's process, by which it is known ...
  std::uint64_t probe_word;                  // ... and what stands there; published by `joined`
  std::atomic<std::uint32_t> reads;          // kReadsNot or kReads; 0: it has not looked yet
  alignas(128) CallRecord records[kWindow];  // published by the word of the cell of the same index
};

inline constexpr int kMaxHostRanks = 1024;

struct SegmentHeader {
  alignas(128) std::atomic<std::uint16_t> sleeping[kWaitLanes][kMaxHostRanks];
};

struct SegmentShape {
  int ranks = 1;
  std::size_t slot_bytes = 32768;
  std::size_t stage_bytes = 4 << 20;
  std::size_t ring_capacity = 65536;
};

// Offsets of everything in a segment of one shape. A value; cheap to copy.
class SegmentLayout {
 public:
  explicit SegmentLayout(const SegmentShape& shape) noexcept;

  const SegmentShape& shape() const noexcept { return shape_; }
  std::size_t total_bytes() const noexcept { return total_; }

  SegmentHeader& header(std::byte* base) const noexcept { return *reinterpret_cast<SegmentHeader*>(base); }
  RankControl& control(std::byte* base, int rank) const noexcept {
    return *reinterpret_cast<RankControl*>(base + control_ + rank * control_stride_);
  }
  // sizes or addresses of the call with this sequence number: one word a destination rank.
  std::uint64_t* sizes(std::byte* base, int rank, std::uint64_t sequence) const noexcept {
    return reinterpret_cast<std::uint64_t*>(base + control_ + rank * control_stride_ + sizes_) +
           sequence % kWindow * static_cast<std::size_t>(shape_.ranks);
  }
  std::byte* slot(std::byte* base, int rank, std::uint64_t sequence) const noexcept {
    return base + slots_ + (static_cast<std::size_t>(rank) * kWindow + sequence % kWindow) * shape_.slot_bytes;
  }
  std::byte* stage(std::byte* base, int rank) const noexcept {
    return base + stages_ + static_cast<std::size_t>(rank) * shape_.stage_bytes;
  }
  std::byte* ring(std::byte* base, int src, int dst) const noexcept {
    return base + rings_ + (static_cast<std::size_t>(src) * shape_.ranks + dst) * ring_stride_;
  }

 private:
  SegmentShape shape_;
  std::size_t control_, control_stride_, sizes_, slots_, stages_, rings_, ring_stride_, total_;
};

}  // namespace tutti
