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
};

// In pinned host memory. The host writes the first two words, the device the rest, once; `code` last, with release.
struct HostControl {
  std::uint64_t abort = 0;       // not zero: give up
  std::uint64_t timeout_ns = 0;  // of every wait, read while waiting: replayed graphs follow changes
  std::uint64_t code = 0;        // FailureCode
  std::uint64_t peer = 0;        // the rank to blame
  std::uint64_t reporter = 0;    // the rank that found it
  std::uint64_t sequence = 0;    // of the block's call
  std::uint64_t mine = 0;        // fingerprint of this rank's call
  std::uint64_t theirs = 0;      // of a mismatch: fingerprint of the peer's
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

TUTTI_DEVICE std::uint64_t pack_poison(FailureCode code, int peer, int reporter) {
  return static_cast<std::uint64_t>(code) | static_cast<std::uint64_t>(peer) << 8 |
         static_cast<std::uint64_t>(reporter) << 16;
}

// Records a failure; the first one counts.
TUTTI_DEVICE void fail(const Control& control, std::uint64_t poison, std::uint64_t sequence, std::uint64_t mine,
                       std::uint64_t theirs) {
  if (compare_exchange(control.failed, 0, poison) != 0) return;
  HostControl& host = *control.host;
  store_relaxed(&host.peer, poison >> 8 & 0xff);
  store_relaxed(&host.reporter, poison >> 16 & 0xff);
  store_relaxed(&host.sequence, sequence);
  store_relaxed(&host.mine, mine);
  store_relaxed(&host.theirs, theirs);
  store_relaxed(control.poison, poison);
  for (int p = 0; p < control.size; ++p) {
    if (p != control.rank && control.peer_poison[p] != nullptr) store_relaxed(control.peer_poison[p], poison);
  }
  // release: the record is complete when the host sees its code.
  store_release(&host.code, poison & 0xff);
}

// What a wait waits for, for the failure's record. A wait for several peers may change `peer` as it goes.
struct Awaited {
  int peer;
  std::uint64_t sequence;
  std::uint64_t fingerprint;
};

// One look at the world outside the awaited word: true if the wait must end. `started` is 0 at the first look.
TUTTI_DEVICE bool give_up(const Control& control, const Awaited& awaited, std::uint64_t& started) {
  const std::uint64_t poison = load_relaxed(control.poison);
  if (poison != 0) {
    fail(control, poison, awaited.sequence, awaited.fingerprint, 0);
    return true;
  }
  FailureCode code = FailureCode::kNone;
  const std::uint64_t now = clock_ns();
  if (load_relaxed(&control.host->abort) != 0) code = FailureCode::kAborted;
  if (started == 0) {
    started = now;
  } else if (now - started > load_relaxed(&control.host->timeout_ns)) {
    code = FailureCode::kTimeout;
  }
  if (code == FailureCode::kNone) return false;
  const int blamed = code == FailureCode::kAborted ? control.rank : awaited.peer;
  fail(control, pack_poison(code, blamed, control.rank), awaited.sequence, awaited.fingerprint, 0);
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
