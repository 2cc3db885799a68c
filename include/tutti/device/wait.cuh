// Bounded waiting inside a kernel: every wait ends, by success, by the deadline, by an abort of the host, or because a
// peer has failed.
//
// A failure is written once to pinned host memory, for the host to raise, and as poison to this rank's scratch and that
// of its peers, so that their kernels stop too. Kernels that start on a poisoned communicator return at once: graphs
// that are replayed after a failure end, with undefined outputs.
#pragma once

#include "tutti/device/memory.cuh"

#if !defined(__CUDA_ARCH__)
#include <thread>
#endif

namespace tutti::device {

enum class FailureCode : std::uint64_t {
  kNone,
  kTimeout,     // the peer did not come before the deadline
  kMismatch,    // the peer made another call
  kAborted,     // this rank's host aborted
  kOverlap,     // two kernels of one communicator ran at the same time: unordered streams or graphs
  kPeerFailed,  // (in poison only) the host of the peer failed outside of a kernel
  kGaveUp,      // a kernel of the program's own has returned false
};

// Calls with a timeout of their own that may be under way at once; of more, the oldest follow the group's.
inline constexpr std::uint32_t kTimedCalls = 256;

// In pinned host memory. The host writes the first two words and the last table, the device the rest, once; `code`
// last, with release.
struct HostControl {
  std::uint64_t abort = 0;       // not zero: give up
  std::uint64_t timeout_ns = 0;  // of every wait, read while waiting: replayed graphs follow changes
  std::uint64_t code = 0;        // FailureCode
  std::uint64_t peer = 0;        // the rank to blame
  std::uint64_t reporter = 0;    // the rank that found it
  std::uint64_t sequence = 0;    // of the block's call
  std::uint64_t mine = 0;        // fingerprint of this rank's call
  std::uint64_t theirs = 0;      // of a mismatch: fingerprint of the peer's
  std::uint64_t ticket = 0;      // of the call: see Awaited
  // Timeouts of single calls: (ticket, milliseconds), at the ticket modulo kTimedCalls.
  std::uint64_t call_timeouts[kTimedCalls] = {};
};

// What a wait looks at. A value, passed to kernels.
struct Control {
  int rank = 0;
  int size = 1;
  std::uint64_t* failed = nullptr;             // in local memory: decides who writes the host's record
  std::uint64_t* poison = nullptr;             // in this rank's scratch; any peer may set it
  std::uint64_t* peer_poison[kMaxRanks] = {};  // theirs
  HostControl* host = nullptr;
};

// `theirs`: of a mismatch, the fingerprint of the peer's call, so that ranks that only hear of it can name it.
TUTTI_DEVICE std::uint64_t pack_poison(FailureCode code, int peer, int reporter, std::uint64_t theirs = 0) {
  return static_cast<std::uint64_t>(code) | static_cast<std::uint64_t>(peer) << 8 |
         static_cast<std::uint64_t>(reporter) << 16 | theirs << 32;
}

// What a wait waits for, for the failure's record. A wait for several peers may change `peer` as it goes.
struct Awaited {
  int peer;
  std::uint64_t sequence;
  std::uint64_t fingerprint;
  // The host's number for an eager call, not 0; a replayed one has none, since all its replays are one to the host.
  std::uint32_t ticket = 0;
  // By rank, what peers announce their call with: (low half of `sequence`, fingerprint). Null: they do not.
  const std::uint64_t* headers = nullptr;
};

// Records a failure of the call that `awaited` belongs to; the first one counts. Peers are told `told`, by default the
// same.
TUTTI_DEVICE void fail(const Control& control, std::uint64_t poison, const Awaited& awaited, std::uint64_t theirs,
                       std::uint64_t told = 0) {
  if (const std::uint64_t first = compare_exchange(control.failed, 0, poison); first != 0) {
    // Whoever was first may not have come to it, and the next call goes by it. Where that one was told, it is there.
    if (load_relaxed(control.poison) == 0) store_relaxed(control.poison, first);
    return;
  }
  HostControl& host = *control.host;
  store_relaxed(&host.peer, poison >> 8 & 0xff);
  store_relaxed(&host.reporter, poison >> 16 & 0xff);
  store_relaxed(&host.sequence, awaited.sequence);
  store_relaxed(&host.mine, awaited.fingerprint);
  store_relaxed(&host.theirs, theirs);
  store_relaxed(&host.ticket, awaited.ticket);
  if (told == 0) told = poison;
  store_relaxed(control.poison, told);
  for (int p = 0; p < control.size; ++p) {
    if (p != control.rank && control.peer_poison[p] != nullptr) store_relaxed(control.peer_poison[p], told);
  }
  // release: the record is complete when the host sees its code.
  store_release(&host.code, poison & 0xff);
}

// A peer has failed and has said why. If it blames this rank, or one that makes the same call, for another call than
// its own, then its own is the other one here.
TUTTI_DEVICE void fail_as_told(const Control& control, const Awaited& awaited) {
  const std::uint64_t told = load_relaxed(control.poison);
  std::uint64_t poison = told;
  const auto blamed = static_cast<int>(poison >> 8 & 0xff), reporter = static_cast<int>(poison >> 16 & 0xff);
  const std::uint64_t theirs = poison >> 32;
  if (awaited.headers != nullptr && theirs != 0 && (blamed == control.rank || theirs == awaited.fingerprint)) {
    const std::uint64_t header = load_relaxed(awaited.headers + reporter);
    const bool come = header >> 32 == (awaited.sequence & 0xffffffffu);
    poison = pack_poison(FailureCode::kMismatch, reporter, reporter, come ? header & 0xffffffffu : 0);
  }
  fail(control, poison, awaited, poison >> 32, told);
}

// How long the call may wait: its own timeout if it has one, else the group's.
TUTTI_DEVICE std::uint64_t timeout_ns(const HostControl& host, std::uint32_t ticket) {
  const std::uint64_t own = ticket == 0 ? 0 : load_relaxed(&host.call_timeouts[ticket % kTimedCalls]);
  return ticket != 0 && own >> 32 == ticket ? (own & 0xffffffffu) * 1'000'000 : load_relaxed(&host.timeout_ns);
}

// One look at the world outside the awaited word: true if the wait must end. `started` is 0 at the first look.
TUTTI_DEVICE bool give_up(const Control& control, const Awaited& awaited, std::uint64_t& started) {
  if (load_relaxed(control.poison) != 0) {
    fail_as_told(control, awaited);
    return true;
  }
  FailureCode code = FailureCode::kNone;
  const std::uint64_t now = clock_ns();
  if (load_relaxed(&control.host->abort) != 0) code = FailureCode::kAborted;
  if (started == 0) {
    started = now;
  } else if (now - started > timeout_ns(*control.host, awaited.ticket)) {
    code = FailureCode::kTimeout;
  }
  if (code == FailureCode::kNone) return false;
  // Also behind the deadline: whoever aborted has a reason of its own. Read anew, which costs the kernels that wait no
  // register.
  if (load_relaxed(&control.host->abort) != 0) code = FailureCode::kAborted;
  const int blamed = code == FailureCode::kAborted ? control.rank : awaited.peer;
  fail(control, pack_poison(code, blamed, control.rank), awaited, 0);
  return true;
}

// Looks at the clock and the host's words cost more than the wait itself: every so many polls only.
#if defined(__CUDA_ARCH__)
inline constexpr std::uint32_t kPollsPerLook = 1024;
#else
inline constexpr std::uint32_t kPollsPerLook = 16;
#endif

// Polls `ready` until it is true (returns true) or the wait must end (false; the failure is recorded).
template <class Ready>
TUTTI_DEVICE bool wait_until(const Control& control, const Awaited& awaited, Ready&& ready) {
  std::uint64_t started = 0;
  for (std::uint32_t polls = 1; !ready(); ++polls) {
    if (polls % kPollsPerLook == 0 && give_up(control, awaited, started)) return false;
#if !defined(__CUDA_ARCH__)
    std::this_thread::yield();
#endif
  }
  return true;
}

}  // namespace tutti::device
