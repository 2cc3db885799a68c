// One call of a plan: what is around its thread blocks.
//
// The first block announces the call to the first block of every peer and waits for theirs, as in every other kernel
// (BlockCall): ranks that make different calls find it out, and the call ends only when all have started. The other
// blocks take part in no headers. They wait for blocks of their own rank and of others, so all blocks of a plan must
// find room on the GPU at once.
//
// Where peers make another call, what this one has written meanwhile lies in memory of the plan's own. Of a call that
// reaches into peers' tensors it would not: there the first block waits for all headers before it begins, and all
// others begin by meeting it.
//
// Where several blocks of the GPU run a thread block of the plan together (cluster_team.cuh), the first of them
// announces the call, and the others take part in no headers either.
#pragma once

#include <type_traits>

#include "algorithm/cuda/block_call.cuh"
#include "algorithm/cuda/cluster_team.cuh"

namespace tutti::cuda {

// Of compiled plans, `kCluster` blocks of the GPU for one of theirs. Who compiles them for the host says what a block
// is there.
#if defined(__CUDACC__)
template <int kCluster>
using PlanTeam = std::conditional_t<kCluster == 1, GridTeam, ClusterTeam<kCluster>>;
#elif defined(TUTTI_PLAN_TEAM)
template <int /*kCluster*/>
using PlanTeam = TUTTI_PLAN_TEAM;
#endif

// Block: what runs one thread block of a plan, by records (executor::PlanBlock) or as it was compiled
// (executor::CompiledBlock).
template <class Block, class Team, class Args>
TUTTI_DEVICE void run_first_plan_block(const Team& team, const DeviceWorld& world, const Args& args) {
  const auto& own = own_block(team);
  Block block(team, world.control, args);
  block.prepare();
  BlockCall call(own, world, args.fingerprint, args.ticket);
  const bool entered = call.enter();
  await_members(team);
  if (!entered) return leave_out(team);
  const bool first = args.peers.any();
  const bool agreed = !first || call.check_headers();
  if (first && own.any(!agreed)) {  // the others wait in vain, and see that it has failed
    leave_out(team);
    return call.leave();
  }
  if (own.is_worker() && !(begins(team) && block.run(call.awaited(world.rank)))) call.miss();
  if (!first) call.check_headers();
  call.leave();
}

template <class Block, class Team, class Args>
TUTTI_DEVICE void run_plan_block(const Team& team, const DeviceWorld& world, const Args& args) {
  const auto& own = own_block(team);
  Block block(team, world.control, args);
  block.prepare();
  const bool failed = own.any(device::load_relaxed(world.control.poison) != 0);
  await_members(team);
  if (failed) return leave_out(team);
  std::uint64_t* const progress = progress_of(*world.state, team.block());
  const auto note = [&](std::uint32_t ended) {
    if (args.ticket != 0 && team.worker() == 0) device::store_relaxed(progress, pack_progress(args.ticket, ended));
  };
  if (!own.is_worker()) return;
  note(args.ticket - 1);
  const device::Awaited awaited{world.rank, device::load_relaxed(&world.state->blocks[0].sequence), args.fingerprint,
                                args.ticket, nullptr};
  if (begins(team) && block.run(awaited)) note(args.ticket);
}

template <class Block, class Team, class Args>
TUTTI_DEVICE void run_plan_blocks(const Team& team, const DeviceWorld& world, const Args& args) {
  open(team);
  if (team.block() == 0 && leads(team)) {
    run_first_plan_block<Block>(team, world, args);
  } else {
    run_plan_block<Block>(team, world, args);
  }
}

}  // namespace tutti::cuda
