// Port channels between ranks that share no memory: what travels, and where it lands.
//
// A put becomes a message that its receiver takes straight into the destination; a signal rides on the put before it or
// is an empty message. No message says what it is: the plan is static, so the receiver derives the same list of
// messages, in the same order, from the sender's thread blocks. A stream is what one thread block posts to one port
// channel: only its order is known beforehand. So where several blocks post to a channel that crosses hosts it may
// carry packets, each of which says itself that it is there, but no signals.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/rank_map.h"
#include "plan/links.h"
#include "plan/plan.h"

namespace tutti::executor {

// The most that stream_of() gives; a message's tag has no room for more.
inline constexpr std::uint32_t kMostStream = 0xfffe;

// The number of a stream among those of `sender`, from 1.
inline std::uint32_t stream_of(const plan::Rank& sender, std::size_t port_channel, std::size_t block) noexcept {
  return static_cast<std::uint32_t>(port_channel * sender.blocks.size() + block + 1);
}

// Why the plan cannot run when its ranks lie so: what reaches from one host to another other than by a port channel,
// with its ranks and channel. Empty if nothing does.
std::string crossing_fault(const plan::Plan& plan, const plan::Links& links, const RankMap& map);

}  // namespace tutti::executor
