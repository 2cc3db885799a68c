// Templates of more operations than can be simulated one by one: a ring of 4,096 ranks has 170 million.
//
// Such plans do the same round again and again. Where rank 0's operations repeat (alike but for the chunks), all but
// some rounds are left out. If in those that are left, from some round on, every operation of every rank ends later by
// one and the same time than q rounds before, to the picosecond, the machine is in a steady state: its links and queues
// stand as they did q rounds before, so what follows is the same again. Then the time of the whole plan is that of the
// shortened one plus that difference for every q rounds left out. q is 1 where all ranks are placed alike; in a ring
// over leaves of eight ranks it is 8, the hops after which a message has crossed every kind of link. If no such q
// shows, more rounds are tried, up to a limit or until the budget is spent; then the result is an estimate and says so.
//
// Thread rule: functions.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/simulator/simulator.h"
#include "plan/template/template.h"

namespace tutti::plan {

// As of a plan. Templates that are small, or in which nothing repeats, are written out and simulated whole; then
// `basis` is empty. In the others every chunk is taken to be full, and timeline and critical path are those of the
// rounds that were simulated.
Simulation simulate(const Template& folded, const Topology& topology, std::int64_t block_bytes,
                    std::optional<double> budget_s = std::nullopt);

// … whole, if there are at most `whole` operations.
Simulation simulate(const Template& folded, const Topology& topology, std::int64_t block_bytes,
                    std::optional<double> budget_s, std::int64_t whole);

}  // namespace tutti::plan
