// One call of a plan: what is around its thread blocks.
//
// The first block announces the call to the first block of every peer and waits for theirs, as in every other kernel
// (BlockCall): ranks that make different calls find it out, and the call ends only when all have started. The other
// blocks take part in no headers. They wait for blocks of their own rank and of others, so all blocks of a plan must
// find room on the GPU at once.
//
// Where peers make another call, what this one has written meanwhile lies in memory of the plan's own. Of a call that
// reaches into peers' tensors it would not: there every block, before it touches the first of them, awaits a word
// (PeerBuffers::agreed) that the control warp raises once all headers have come.
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

// All threads: waits for all headers, and says so to those that await it. If they do not come, or are another call's,
// what awaits the word sees that the communicator has failed.
template <class Own, class Call, class Peers>
TUTTI_DEVICE void agree(const Own& own, const Call& call, const Peers& peers) {
  const bool agreed = call.check_headers_and_go();
  if (!peers.any() || !own.is_first_control() || !agreed) return;
  // release: the headers that this warp has seen; pairs with the acquire of the record that awaits the word. Nobody
  // else raises it.
  device::store_release(peers.agreed, device::load_relaxed(peers.agreed) + 1);
}

// Block: what runs one thread block of a plan, by records (executor::PlanBlock) or as it was compiled
// (executor::CompiledBlock).
template <class Block, class Team, class Args>
TUTTI_DEVICE void run_first_plan_block(const Team& team, const DeviceWorld& world, const Args& args, Block& block) {
  const auto& own = own_block(team);
  block.prepare();
  BlockCall call(own, world, args.fingerprint, args.ticket);
  const bool entered = call.enter();
  await_members(team);
  if (!entered) return leave_out(team);
  // A thread that is worker and control, as on the host, must not await what it is to raise.
  const bool alone = own.is_worker() && own.is_first_control() && args.peers.any();
  if (alone) agree(own, call, args.peers);
  if (own.is_worker() && !(begins(team) && block.run(call.awaited(world.rank)))) call.miss();
  if (!alone) agree(own, call, args.peers);
  call.leave();
}

template <class Block, class Team, class Args>
TUTTI_DEVICE void run_plan_block(const Team& team, const DeviceWorld& world, const Args& args, Block& block) {
  const auto& own = own_block(team);
  block.prepare();
  const bool failed = own.any(device::load_relaxed(world.control.poison) != 0);
  await_members(team);
  const device::Awaited awaited{world.rank, device::load_relaxed(&world.state->blocks[0].sequence), args.fingerprint,
                                args.ticket, nullptr};
  if (failed) {
    // Reported here: a peer may have failed since the first block has found all it waited for.
    if (own.is_first_control()) device::fail_as_told(world.control, awaited);
    return leave_out(team);
  }
  std::uint64_t* const progress = progress_of(*world.state, team.block());
  const auto note = [&](std::uint32_t ended) {
    if (args.ticket != 0 && team.worker() == 0) device::store_relaxed(progress, pack_progress(args.ticket, ended));
  };
  if (!own.is_worker()) return;
  note(args.ticket - 1);
  if (begins(team) && block.run(awaited)) note(args.ticket);
}

template <class Block, class Team, class Args>
TUTTI_DEVICE void run_plan_blocks(const Team& team, const DeviceWorld& world, const Args& args) {
  open(team);
  Block block(team, world.control, args);
  block.fetch();
  await_preceding();
  if (team.block() == 0 && leads(team)) {
    run_first_plan_block(team, world, args, block);
  } else {
    run_plan_block(team, world, args, block);
  }
}

}  // namespace tutti::cuda
