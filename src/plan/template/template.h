// A plan that is not written out: what rank 0 does, and how the other ranks' parts follow from it.
//
// A plan of thousands of ranks has millions of operations that differ in nothing but the numbers of peers and chunks. A
// template holds one rank of them. Nothing is assumed of it: it is written out before it is checked and verified like
// any other plan, and a plan is only folded into a template after every operation of every rank has been compared with
// what the template makes of it.
//
// Thread rule: values.
#pragma once

#include <cstdint>

#include "plan/plan.h"
#include "plan/template/symmetry.h"

namespace tutti::plan {

struct Template {
  Plan plan;  // its one rank is rank 0, whose peers are numbers of `symmetry`
  Symmetry symmetry;

  bool operator==(const Template&) const = default;
};

// What rank `rank` does. Rank 0 has passed check_first_rank. Throws InvalidArgument with the JSON path if chunks of an
// operand would not lie side by side.
Rank rank_of(const Template& folded, std::int32_t rank);

// The operations of all ranks.
std::int64_t operations_of(const Template& folded);

// The whole plan, which has passed check_structure. Throws InvalidArgument if it would be larger than
// kMaxWritten.
Plan written_out(const Template& folded);

// The template of a plan. Throws InvalidArgument that names the first rank and operation that differ from what rank 0's
// would be there. Which numbers channels and buffers have in a rank's tables does not matter, nor do origins.
Template folded(const Plan& plan, const Symmetry& symmetry);

// … under a symmetry that is looked for: a ring, a cube, hosts of equal size. Throws InvalidArgument, with the reason
// of the ring's, if there is none.
Template folded(const Plan& plan);

}  // namespace tutti::plan
