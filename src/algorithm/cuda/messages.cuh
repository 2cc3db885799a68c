// Point-to-point messages: a ring of pieces for each ordered pair and channel, in the receiver's scratch, with a count
// of written pieces there and a count of read pieces (the credit) at the sender.
//
// A batch is one kernel. Blocks are (lane, channel): a lane is all messages to one peer, or all from one peer, in
// order; so no message waits for another of a different lane, and each block only waits for the same channel of its
// peer. Each channel carries its share of every message, cut alike on both sides, and at least one piece of it (an
// empty one included), whose header both sides compare.
//
// Messages use no sequence number of the collectives and may run beside them.
//
// A batch of up to kManyMessages is one kernel. A larger one is cut, each lane after so many of its own messages
// (kMessagesOfALane), which is the same number on all ranks: the k-th kernels of the ranks then hold the two ends of
// the same messages, so none of them waits for a later one. Cut by the place in the batch instead, a rank's first
// kernel could hold sends whose receives are in the peer's second, behind sends whose receives are in this rank's
// second.
#pragma once

#include "algorithm/cuda/bulk.cuh"

namespace tutti::cuda {

// Messages of one kernel: the arguments of a few fit the first lines of a kernel's parameters, those of many take 24
// KB.
inline constexpr int kFewMessages = 64;
inline constexpr int kManyMessages = 1008;
inline constexpr int kMessagesOfALane = kManyMessages / (2 * (device::kMaxRanks - 1));  // where a batch is cut
inline constexpr int kMessageWorkers = 256;  // threads of a block that move data

struct Message {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t fingerprint = 0;
  std::uint32_t padding = 0;
};
struct MessageLane {
  int peer = 0;
  int send = 0;
  int first = 0;  // of `messages`
  int count = 0;
};
template <int kMessages>
struct MessageArgs {
  int lanes = 0;
  int channels = 1;
  std::size_t piece_bytes = kMessagePieceBytes;
  std::uint32_t ticket = 0;  // device::Awaited
  MessageLane lane[2 * device::kMaxRanks];
  Message message[kMessages];
};
using FewMessages = MessageArgs<kFewMessages>;
using ManyMessages = MessageArgs<kManyMessages>;

// (size, fingerprint) of a message, beside each of its pieces.
TUTTI_DEVICE device::Pair64 message_header(const Message& m) { return {m.bytes, m.fingerprint}; }

// One message over one channel. All threads of the block; false on all or none.
template <class Team, class Args>
TUTTI_DEVICE bool send_message(const Team& team, const DeviceWorld& world, const Args& args, const MessageLane& lane,
                               int channel, const Message& m, std::uint64_t& piece_number) {
  const ScratchLayout& layout = world.layout;
  std::byte* there = world.scratch[lane.peer];
  const std::size_t share = (m.bytes + 16 * static_cast<std::size_t>(args.channels) - 1) /
                            (16 * static_cast<std::size_t>(args.channels)) * 16;
  const Range mine = part(m.bytes, share, channel);
  std::size_t k = 0;
  do {
    const Range r = piece(mine, args.piece_bytes, k);
    bool ok = true;
    if (team.is_first_control() && piece_number >= kMessageDepth) {
      const auto* drained = reinterpret_cast<const std::uint64_t*>(world.scratch[world.rank] +
                                                                   layout.message_drained(channel, lane.peer));
      // acquire: the peer has read what lay in this slot.
      ok = device::wait_until(world.control, device::Awaited{lane.peer, piece_number, m.fingerprint, args.ticket},
                              [&] { return device::load_acquire(drained) + kMessageDepth > piece_number; });
    }
    if (team.any(!ok)) return false;
    team.step(2 * piece_number);
    worker_copy(team, there + layout.message(channel, piece_number, world.rank), m.data + r.begin, r.bytes());
    if (team.is_first_control()) {
      device::store_relaxed(
          reinterpret_cast<device::Pair64*>(there + layout.message_header(channel, piece_number, world.rank)),
          message_header(m));
    }
    team.sync();
    ++piece_number;
    if (team.is_first_control()) {
      // release: piece and header; pairs with the acquire in receive_message().
      device::store_release(reinterpret_cast<std::uint64_t*>(there + layout.message_filled(channel, world.rank)),
                            piece_number);
    }
    ++k;
  } while (k * args.piece_bytes < mine.bytes());
  return true;
}

template <class Team, class Args>
TUTTI_DEVICE bool receive_message(const Team& team, const DeviceWorld& world, const Args& args, const MessageLane& lane,
                                  int channel, const Message& m, std::uint64_t& piece_number) {
  const ScratchLayout& layout = world.layout;
  std::byte* here = world.scratch[world.rank];
  const std::size_t share = (m.bytes + 16 * static_cast<std::size_t>(args.channels) - 1) /
                            (16 * static_cast<std::size_t>(args.channels)) * 16;
  const Range mine = part(m.bytes, share, channel);
  std::size_t k = 0;
  do {
    const Range r = piece(mine, args.piece_bytes, k);
    bool ok = true;
    if (team.is_first_control()) {
      const auto* filled = reinterpret_cast<const std::uint64_t*>(here + layout.message_filled(channel, lane.peer));
      const device::Awaited awaited{lane.peer, piece_number, m.fingerprint, args.ticket};
      ok = device::wait_until(world.control, awaited, [&] { return device::load_acquire(filled) > piece_number; });
      if (ok) {
        const device::Pair64 header = device::load_relaxed(
            reinterpret_cast<const device::Pair64*>(here + layout.message_header(channel, piece_number, lane.peer)));
        if (header.lo != m.bytes || header.hi != m.fingerprint) {
          device::fail(world.control, device::pack_poison(device::FailureCode::kMismatch, lane.peer, world.rank),
                       awaited, header.hi);
          ok = false;
        }
      }
    }
    if (team.any(!ok)) return false;
    team.step(2 * piece_number + 1);
    worker_copy(team, m.data + r.begin, here + layout.message(channel, piece_number, lane.peer), r.bytes());
    team.sync();
    ++piece_number;
    if (team.is_first_control()) {
      // release: this rank has read the slot; pairs with the acquire in send_message().
      device::store_release(
          reinterpret_cast<std::uint64_t*>(world.scratch[lane.peer] + layout.message_drained(channel, world.rank)),
          piece_number);
    }
    ++k;
  } while (k * args.piece_bytes < mine.bytes());
  return true;
}

// Before a block's first message. All threads; false on all or none. A failure is recorded here as well: a peer may
// have failed before this kernel came, and then no wait of this rank would ever say so.
template <class Team, class Args>
TUTTI_DEVICE bool begin_messages(const Team& team, const DeviceWorld& world, const Args& args, const MessageLane& lane,
                                 MessageState& state) {
  if (team.any(device::load_relaxed(world.control.poison) != 0)) {
    if (team.is_first_control()) {
      device::fail_as_told(world.control, {lane.peer, 0, args.message[lane.first].fingerprint, args.ticket});
    }
    return false;
  }
  bool overlaps = false;
  if (team.is_first_control() && set_busy(lane.send != 0 ? &state.sending : &state.receiving) != 0) {
    overlaps = true;
    device::fail(world.control, device::pack_poison(device::FailureCode::kOverlap, world.rank, world.rank),
                 {lane.peer, 0, args.message[lane.first].fingerprint, args.ticket}, 0);
  }
  return !team.any(overlaps);
}

template <class Team, class Args>
TUTTI_DEVICE void run_messages(const Team& team, const DeviceWorld& world, const Args& args) {
  const MessageLane& lane = args.lane[team.block() / args.channels];
  const int channel = team.block() % args.channels;
  MessageState& state = world.state->messages[lane.peer][channel];
  if (!begin_messages(team, world, args, lane, state)) return;
  std::uint64_t& progress = world.state->message_progress[team.block()];
  if (args.ticket != 0 && team.is_first_control()) {
    device::store_relaxed(&progress, pack_progress(args.ticket, args.ticket - 1));
  }
  // relaxed, only so that the compiler does not read both words: the other one is another block's.
  std::uint64_t* const count = lane.send != 0 ? &state.sent : &state.received;
  std::uint64_t number = device::load_relaxed(count);
  for (int i = 0; i < lane.count; ++i) {
    const Message& m = args.message[lane.first + i];
    const bool ok = lane.send != 0 ? send_message(team, world, args, lane, channel, m, number)
                                   : receive_message(team, world, args, lane, channel, m, number);
    if (!ok) return;
  }
  team.sync();
  if (!team.is_first_control()) return;
  *count = number;
  device::store_relaxed(lane.send != 0 ? &state.sending : &state.receiving, 0);
  if (args.ticket != 0) device::store_relaxed(&progress, pack_progress(args.ticket, args.ticket));
}

}  // namespace tutti::cuda
