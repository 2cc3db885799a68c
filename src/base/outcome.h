// What a wait or an algorithm returns: done, or why it cannot go on. Trivial, no allocation, no throw.
#pragma once

#include <cstdint>

namespace tutti {

enum class Status : std::uint8_t {
  kOk,
  kTimeout,
  kPeerLost,    // a peer died
  kPeerLeft,    // a peer left cleanly (it exited or destroyed its communicator)
  kPeerFailed,  // a peer reported a failure of its own
  kAborted,
  kMismatch,
  kInternal,
  kCorrupt,    // what a peer says in shared memory cannot be
  kExhausted,  // this rank has no memory to go on
};
inline constexpr Status kLastStatus = Status::kExhausted;

struct Outcome {
  Status status = Status::kOk;
  int peer = -1;  // the rank that is to blame, when known

  bool ok() const noexcept { return status == Status::kOk; }
};

inline constexpr Outcome kOkOutcome{};

// Of several failures of one call the one that explains most has the largest weight: the first failure somewhere makes
// others elsewhere, and all may come in one wait.
inline int weight_of(Status status) noexcept {
  switch (status) {
    case Status::kOk:
      return 0;
    case Status::kPeerFailed:
      return 2;
    case Status::kPeerLeft:
      return 3;
    case Status::kPeerLost:
      return 4;
    case Status::kMismatch:
      return 5;
    case Status::kCorrupt:
      return 6;
    case Status::kExhausted:
      return 7;
    default:
      return 1;
  }
}

}  // namespace tutti
