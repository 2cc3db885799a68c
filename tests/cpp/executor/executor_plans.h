// Plans that exercise the executor, beside those of plan_builder.h. All are right at any number of ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plan/plan_builder.h"

namespace tutti::plan {

// Everybody tells everybody that it has come, and hears the same: channel `nth` of every pair.
void meet_all(const PlanBuilder::Block& block, std::int32_t rank, std::int32_t ranks, int nth,
              OpKind signal = OpKind::kSignal, OpKind wait = OpKind::kWait);

// An operation through a switch channel.
Operation through_switch(OpKind kind, std::vector<Operand> sources, std::vector<Operand> destinations);

// Two steps by put over three thread blocks that are joined by semaphores and a barrier.
Plan two_step_all_reduce(std::int32_t ranks);
// Two steps by packets with double scratch: reduce-scatter, then all-gather.
Plan packet_two_step_all_reduce(std::int32_t ranks);
// One step by packets, a rank's own among them: all add in one order.
Plan one_shot_all_reduce(std::int32_t ranks);
// Of two ranks: the packets that the second rank adds to plain data of the first say that these have come.
Plan fenced_all_reduce();
// Two steps again, where a rank keeps the packets of its sums: rank 0 passes them on from there.
Plan kept_packets_all_reduce(std::int32_t ranks);
// Each rank reduces what all have put into its scratch and writes it to all.
Plan reduce_send_all_reduce(std::int32_t ranks);
// The same, where a rank adds up in its input, which therefore is a copy.
Plan input_all_reduce(std::int32_t ranks);
// Each rank reads a chunk of all, reduces and writes it to all.
Plan read_send_all_reduce(std::int32_t ranks);
// Each rank reduces a chunk of all and stores it to all.
Plan switch_all_reduce(std::int32_t ranks);
// The same, from a load into scratch.
Plan switch_through_scratch(std::int32_t ranks);
// Each rank stores packets to all, itself too.
Plan switch_packets_all_gather(std::int32_t ranks);
// All-pairs through port channels, from scratch that a copy has just filled. `flushing`: each put is also flushed.
Plan port_all_gather(std::int32_t ranks, bool flushing = false);
// All-pairs by get, two thread blocks a peer, each a part of the group.
Plan split_all_to_all(std::int32_t ranks);
// Direct reduce-scatter by reading from all inputs.
Plan read_reduce_scatter(std::int32_t ranks);
// One chunk in a loop of `unit` bytes through scratch.
Plan looped_all_reduce(std::int32_t ranks, std::int64_t unit);
// In place: the input is the own block of the output.
Plan in_place_all_gather(std::int32_t ranks);
Plan put_broadcast(std::int32_t ranks, std::int32_t root);
Plan put_gather(std::int32_t ranks, std::int32_t root);
Plan get_scatter(std::int32_t ranks, std::int32_t root);
// The root reads from all.
Plan read_reduce(std::int32_t ranks, std::int32_t root);
// By put, each of `blocks` thread blocks a part of it, all of which meet at the end.
Plan wide_all_gather(std::int32_t ranks, std::int32_t blocks);
// One thread block a rank puts `puts` chunks, each with a signal, over as many channels to each peer as are named.
Plan long_all_gather(std::int32_t ranks, std::int32_t puts, std::int32_t channels);

struct NamedPlan {
  std::string name;
  std::shared_ptr<const Plan> plan;  // of that name
};
// All of them, and those of plan_builder.h for two ranks and more: every operation that there is. The loop's body takes
// `unit` bytes.
std::vector<NamedPlan> plans_of_every_operation(std::int32_t ranks, std::int64_t unit = 64);

}  // namespace tutti::plan
