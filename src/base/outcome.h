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
};

struct Outcome {
  Status status = Status::kOk;
  int peer = -1;  // the rank that is to blame, when known

  bool ok() const noexcept { return status == Status::kOk; }
};

inline constexpr Outcome kOkOutcome{};

}  // namespace tutti
