// What the algorithms in two levels have in common: a part on each host, a part among the hosts.
//
// The part among the hosts is one of the algorithms over messages, run by one rank of each host. How calls are
// compared: on a host by announcements, which every call of a group on several hosts makes, whatever its algorithm;
// among the hosts by the messages, whose first go around the ring of those ranks (net_call.h). If two hosts make
// different calls and one of them runs in one level, there are neighbouring ranks, the left on such a host, the right
// on one that runs in two levels: the right one watches for the left one's first message. Where the ranks that speak
// for their hosts differ in more, as in a broadcast whose root does, a wait that lasts finds out (net_call.h).
//
// A rank that waits on its host sees in the segment that a peer has failed, so whatever ends a part among the hosts
// ends the call of all ranks.
#pragma once

#include <memory>
#include <vector>

#include "algorithm/net/net_algorithm.h"
#include "algorithm/two_level/scopes.h"

namespace tutti {

class TwoLevelAlgorithm : public NetAlgorithm {
 public:
  using NetAlgorithm::NetAlgorithm;
  const char* refusal(const CallShape& shape) const noexcept override;
};

// The part among the hosts: the first of the library's algorithms over messages that fits.
class TwoLevelExchange {
 public:
  explicit TwoLevelExchange(Collective collective);
  // `part` is the call of these ranks; `largest`: bytes of the largest block. The context is that of AmongHosts.
  Outcome run(const Call& part, std::size_t largest, CallContext& context) const noexcept;
  // Of the call's memory, with what AmongHosts takes; the context is that of the group.
  std::size_t memory(const Call& part, std::size_t largest, const CallContext& whole) const noexcept;

 private:
  const Algorithm* choose(const Call& part, std::size_t largest, int ranks) const noexcept;

  std::vector<std::shared_ptr<const Algorithm>> candidates_;
};

// A call over `bytes` at `data`, in and out, that is a part of `call`; averages are sums until average() divides.
Call part_of(const Call& call, std::byte* data, std::size_t bytes) noexcept;
void average(const Call& call, std::byte* data, std::size_t bytes, int ranks) noexcept;

// Until the rank with `place` on this host has published `value` as filled. Watches, if this rank's left neighbour is
// on another host. The context is that of the group. Takes NetCall::bytes_for(0) of the call's memory, until then.
Outcome await_filled(CallContext& context, int place, std::uint64_t value);

}  // namespace tutti
