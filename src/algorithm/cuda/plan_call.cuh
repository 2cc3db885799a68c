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
#pragma once

#include "algorithm/cuda/block_call.cuh"

namespace tutti::cuda {

// Of compiled plans. Who compiles them for the host says what a block is there.
#if defined(__CUDACC__)
using PlanTeam = GridTeam;
#elif defined(TUTTI_PLAN_TEAM)
using PlanTeam = TUTTI_PLAN_TEAM;
#endif

// Block: what runs one thread block of a plan, by records (executor::PlanBlock) or as it was compiled
// (executor::CompiledBlock).
template <class Block, class Team, class Args>
TUTTI_DEVICE void run_first_plan_block(const Team& team, const DeviceWorld& world, const Args& args) {
  Block block(team, world.control, args);
  block.prepare();
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  const bool first = args.peers.any();
  const bool agreed = !first || call.check_headers();
  if (first && team.any(!agreed)) return call.leave();  // the others wait in vain, and see that it has failed
  if (team.is_worker() && !block.run(call.awaited(world.rank))) call.miss();
  if (!first) call.check_headers();
  call.leave();
}

template <class Block, class Team, class Args>
TUTTI_DEVICE void run_plan_block(const Team& team, const DeviceWorld& world, const Args& args) {
  Block block(team, world.control, args);
  block.prepare();
  if (team.any(device::load_relaxed(world.control.poison) != 0)) return;
  std::uint64_t* const progress = progress_of(*world.state, team.block());
  const auto note = [&](std::uint32_t ended) {
    if (args.ticket != 0 && team.worker() == 0) device::store_relaxed(progress, pack_progress(args.ticket, ended));
  };
  if (!team.is_worker()) return;
  note(args.ticket - 1);
  const device::Awaited awaited{world.rank, device::load_relaxed(&world.state->blocks[0].sequence), args.fingerprint,
                                args.ticket, nullptr};
  if (block.run(awaited)) note(args.ticket);
}

template <class Block, class Team, class Args>
TUTTI_DEVICE void run_plan_blocks(const Team& team, const DeviceWorld& world, const Args& args) {
  if (team.block() == 0) {
    run_first_plan_block<Block>(team, world, args);
  } else {
    run_plan_block<Block>(team, world, args);
  }
}

}  // namespace tutti::cuda
