// Plans for ranks on several hosts: memory channels within each, port channels between them.
#pragma once

#include <cstdint>

#include "plan/plan_builder.h"

namespace tutti::plan {

// Ranks lie on hosts of `per_host` ranks, the last of which may have fewer.
struct Hosts {
  std::int32_t ranks = 2;
  std::int32_t per_host = 1;

  bool far(std::int32_t a, std::int32_t b) const { return a / per_host != b / per_host; }
};

// All-pairs, put into the outputs of all by each way that a port channel has: put, signal and flush; put with signal;
// the same with flush. What crosses goes from scratch that the next invocation fills again.
Plan hosts_all_gather(const Hosts& hosts);
// Around the ring through scratch, then through the outputs.
Plan hosts_ring_all_reduce(const Hosts& hosts);
// One chunk in a loop of `unit` bytes, put into the scratch of all.
Plan hosts_looped_all_reduce(const Hosts& hosts, std::int64_t unit);
// One step of packets with double scratch; to other hosts from scratch, in two thread blocks that share each port.
Plan hosts_packet_all_reduce(const Hosts& hosts);
// Around the ring: each rank passes packets on to the next as they come (rppkt).
Plan hosts_packet_ring_all_gather(const Hosts& hosts);
// In place: the input is the own block of the output.
Plan hosts_in_place_all_gather(const Hosts& hosts);

}  // namespace tutti::plan
