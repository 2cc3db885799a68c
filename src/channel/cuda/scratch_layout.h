// How the scratch memory of one rank is divided. Every rank's has the same shape, so a rank that knows the layout and
// where a peer's scratch is mapped knows where to write.
//
// Each block of a kernel owns its slots: what block 3 writes at its sixth call is only ever read by block 3 at its
// sixth call, whichever calls block 0 took part in. The protocols share no memory: a payload of one can never be taken
// for a flag of another.
//
// Plain C++, offsets only. Fresh scratch is all zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/device/memory.cuh"

namespace tutti::cuda {

inline constexpr int kMaxBlocks = 64;
inline constexpr int kParities = 2;  // double buffering, by the block's sequence number
inline constexpr int kPhases = 2;    // of two-shot algorithms; one-shot ones use the first

// LL: 16-byte items of a block for one peer, in two planes of packets.
inline constexpr std::size_t kLLItems = 512;
inline constexpr std::size_t kLLSlotBytes = kLLItems * 32;
// LL128: lines of a block for one peer.
inline constexpr std::size_t kLL128Lines = 256;
inline constexpr std::size_t kLL128SlotBytes = kLL128Lines * 128;
// Bulk: a ring of pieces of a block for one peer.
inline constexpr std::size_t kBulkDepth = 4;
inline constexpr std::size_t kBulkPieceBytes = 64 * 1024;
// Messages: a ring for each ordered pair and channel; a message uses all channels.
inline constexpr int kMessageChannels = 4;
inline constexpr std::size_t kMessageDepth = 4;
inline constexpr std::size_t kMessagePieceBytes = 64 * 1024;
inline constexpr std::size_t kProbeBytes = 64 * 1024;

// What scratch is for: everything, or messages and nothing else, which take a twentieth.
enum class ScratchUse { kAll, kMessages };

class ScratchLayout {
 public:
  explicit constexpr ScratchLayout(int ranks, ScratchUse use = ScratchUse::kAll)
      : ranks_(static_cast<std::size_t>(ranks)) {
    const std::size_t blocks = use == ScratchUse::kAll ? kMaxBlocks : 0;  // of collectives
    std::size_t at = 256;                                                 // the poison word has a line of its own
    header_ = take(at, 8 * blocks * kParities * ranks_);
    bulk_signal_ = take(at, 8 * kPhases * blocks * ranks_);
    message_filled_ = take(at, 8ULL * kMessageChannels * ranks_);
    message_drained_ = take(at, 8ULL * kMessageChannels * ranks_);
    message_header_ = take(at, 16ULL * kMessageDepth * kMessageChannels * ranks_);
    probe_signal_ = take(at, 8ULL * 2 * ranks_);
    probe_ = take(at, kProbeBytes * ranks_);
    ll_ = take(at, kLLSlotBytes * blocks * kParities * kPhases * ranks_);
    ll128_ = take(at, kLL128SlotBytes * blocks * kParities * kPhases * ranks_);
    bulk_ = take(at, kBulkPieceBytes * kBulkDepth * kPhases * blocks * ranks_);
    messages_ = take(at, kMessagePieceBytes * kMessageDepth * kMessageChannels * ranks_);
    total_ = at;
  }

  constexpr std::size_t total_bytes() const noexcept { return total_; }
  TUTTI_DEVICE constexpr std::size_t poison() const noexcept { return 0; }

  // A word (low half of the block's sequence number, fingerprint) that `src` writes.
  TUTTI_DEVICE constexpr std::size_t header(int block, int parity, int src) const noexcept {
    return header_ + 8 * index(block, kParities, parity, src);
  }
  TUTTI_DEVICE constexpr std::size_t ll(int block, int parity, int phase, int src) const noexcept {
    return ll_ + kLLSlotBytes * index(block * kParities + parity, kPhases, phase, src);
  }
  TUTTI_DEVICE constexpr std::size_t ll128(int block, int parity, int phase, int src) const noexcept {
    return ll128_ + kLL128SlotBytes * index(block * kParities + parity, kPhases, phase, src);
  }
  // Pieces of `src` in this phase that have arrived, counted since the start.
  TUTTI_DEVICE constexpr std::size_t bulk_signal(int block, int phase, int src) const noexcept {
    return bulk_signal_ + 8 * index(block, kPhases, phase, src);
  }
  TUTTI_DEVICE constexpr std::size_t bulk(int block, int phase, std::uint64_t piece, int src) const noexcept {
    return bulk_ +
           kBulkPieceBytes * index(block * kPhases + phase, kBulkDepth, static_cast<int>(piece % kBulkDepth), src);
  }
  // Messages from `src` to the owner of the scratch: pieces written, pieces ...
  TUTTI_DEVICE constexpr std::size_t message_filled(int channel, int src) const noexcept {
    return message_filled_ + 8 * index(0, 1, channel, src);
  }
  // ... of the owner that `dst` has read.
  TUTTI_DEVICE constexpr std::size_t message_drained(int channel, int dst) const noexcept {
    return message_drained_ + 8 * index(0, 1, channel, dst);
  }
  TUTTI_DEVICE constexpr std::size_t message_header(int channel, std::uint64_t piece, int src) const noexcept {
    return message_header_ + 16 * index(channel, kMessageDepth, static_cast<int>(piece % kMessageDepth), src);
  }
  TUTTI_DEVICE constexpr std::size_t message(int channel, std::uint64_t piece, int src) const noexcept {
    return messages_ + kMessagePieceBytes * index(channel, kMessageDepth, static_cast<int>(piece % kMessageDepth), src);
  }
  TUTTI_DEVICE constexpr std::size_t probe_signal(int which, int src) const noexcept {
    return probe_signal_ + 8 * index(0, 1, which, src);
  }
  TUTTI_DEVICE constexpr std::size_t probe(int src) const noexcept {
    return probe_ + kProbeBytes * static_cast<std::size_t>(src);
  }

 private:
  // Every area starts on a line of 256 bytes.
  static constexpr std::size_t take(std::size_t& at, std::size_t bytes) {
    const std::size_t start = at;
    at += (bytes + 255) / 256 * 256;
    return start;
  }
  TUTTI_DEVICE constexpr std::size_t index(int outer, std::size_t inner_count, int inner, int src) const noexcept {
    return (static_cast<std::size_t>(outer) * inner_count + static_cast<std::size_t>(inner)) * ranks_ +
           static_cast<std::size_t>(src);
  }

  std::size_t ranks_;
  std::size_t header_ = 0, ll_ = 0, ll128_ = 0, bulk_ = 0, bulk_signal_ = 0;
  std::size_t message_filled_ = 0, message_drained_ = 0, message_header_ = 0, messages_ = 0;
  std::size_t probe_signal_ = 0, probe_ = 0, total_ = 0;
};

}  // namespace tutti::cuda
