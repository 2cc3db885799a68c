// What travels on a link: frames of a fixed header and a payload, in the sender's byte order (checked by the magic).
//
//   eager     id tag bytes record, payload    a small message
//   announce  id tag bytes record             a large one; the payload waits for a grant
//   grant     id                              to the sender: the receive is posted
//   data      id bytes, payload               a fragment of a granted message; fragments of one message are in order
//   refuse    id record, sender's record      to the sender: the receiver's record differs
//   withdraw  id                              an announced message ends here
//   blank     id tag record                   a message that was cancelled before it began: it holds its place
//   decline   id                              to the sender: the granted receive has been cancelled
//
// A message past the window is announced whatever its size: an empty one then has one empty fragment.
//
// `id` is always the number that the message's sender gave it. Between the fragments of one message any other frames
// may stand, so a large payload delays others by one fragment only.
//
// Every header carries `credit`: what this side has taken of the eager messages that the other sent it. A sender that
// is kEagerWindow ahead announces small messages too, so the memory for unexpected messages is bounded a pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "channel/call_record.h"

namespace tutti {

inline constexpr std::uint32_t kFrameMagic = 0x54755431;
// The end of a fragment goes out in a segment of its own, so a network takes fewer and fuller ones of long fragments.
inline constexpr std::size_t kFragmentBytes = std::size_t{512} << 10;
inline constexpr std::uint64_t kEagerWindow = 4u << 20;

enum class FrameKind : std::uint8_t { kEager, kAnnounce, kGrant, kData, kRefuse, kWithdraw, kBlank, kDecline };

struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  FrameKind kind = FrameKind::kEager;
  std::uint8_t reserved[3] = {};
  std::uint64_t id = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t credit = 0;
  CallRecord record;
};
static_assert(std::is_trivially_copyable_v<FrameHeader>);
static_assert(sizeof(FrameHeader) == 104);

// What an eager message counts for against the window: its payload and the memory to keep it.
constexpr std::uint64_t eager_cost(std::uint64_t bytes) noexcept { return bytes + 256; }

}  // namespace tutti
