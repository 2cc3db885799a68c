// The families one by one; what they are for and how they are called is in generators.cc, which also checks the number
// of ranks. All take n ≥ 2.
#pragma once

#include <cstdint>

#include "plan/plan.h"
#include "plan/template/template.h"

namespace tutti::plan {

// n blocks; in the first round block b sets out from rank b and is added to on the way to b − 1, in the second it goes
// round whole: 2(n − 1) steps, 2(n − 1)/n of the data a rank.
Template ring(std::int32_t ranks);

// Everything with ranks at distances 1, 2, 4, …: log n steps, the whole data in each. n is a power of two, as in the
// next.
Template recursive_doubling(std::int32_t ranks);

// R. Rabenseifner, Optimization of Collective Reduction Operations, ICCS 2004: far ranks first, halving the data, then
// back: 2 log n steps, 2(n − 1)/n of the data.
Template halving_doubling(std::int32_t ranks);

// Within hosts of m ranks each rank adds up an m-th of the data; ranks of one number then double recursively between
// the h hosts, a power of two; then back. After N. T. Karonis et al., IPDPS 2000: 2 + log h steps, 2(m − 1)/m of the
// data within a host and log h times an m-th between hosts.
Template two_level(std::int32_t ranks, std::int32_t ranks_per_host);

// P. Sanders, J. Speck, J. L. Träff, Two-Tree Algorithms for Full Bandwidth Broadcast, Reduction and Scan, 2009: half
// of the data up and down each of two trees, in `pieces`: 2 log n + pieces steps, twice the data.
Plan double_tree(std::int32_t ranks, std::int32_t pieces);

// Everything to everybody in packets, added up in the order of ranks; (n − 1) times the data.
Plan one_shot(std::int32_t ranks, std::int32_t pieces);

// Every rank adds up its block and gives it to everybody, in packets; 2(n − 1)/n of the data.
Plan two_shot(std::int32_t ranks);

}  // namespace tutti::plan
