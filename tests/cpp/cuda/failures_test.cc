// What the kernels' bodies do when something goes wrong: whom they blame, that all threads of a block leave together,
// and that nothing is called complete that is not.
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "algorithm/cuda/direct.cuh"
#include "algorithm/cuda/meet.cuh"
#include "cuda/collective_case.h"
#include "cuda/host_ranks.h"
#include "cuda/thread_team.h"

namespace tutti::cuda::test {
namespace {

CaseShape floats(std::size_t count) {
  CaseShape shape;
  shape.count = count;
  return shape;
}

// Failures end the waits of all ranks, and say who is to blame.
TEST(Failures, AMissingRankIsATimeoutEverywhere) {
  for (const char* algorithm : {"ll_one_shot@1", "ll128_two_shot@1", "bulk_two_shot@1"}) {
    HostRanks ranks(3);
    const CollectiveCase c(floats(500), 3, 1);
    const Choice choice = choice_for(c, 3, algorithm);
    for (int r = 0; r < 3; ++r) ranks.host(r).timeout_ns = 200'000'000;
    ranks.run([](int r) { return r == 1 ? 0 : 1; },
              [&](int r, const SerialTeam& team) {
                std::vector<std::byte> in = c.input(r), out(in.size());
                HostRanks::launch(team, ranks.world(r), c.call(in.data(), out.data()), choice, 7);
              });
    for (const int r : {0, 2}) {
      EXPECT_EQ(ranks.host(r).code, static_cast<std::uint64_t>(device::FailureCode::kTimeout)) << algorithm;
      EXPECT_EQ(ranks.host(r).peer, 1u) << algorithm;
    }
  }
}

TEST(Failures, AnotherFingerprintIsAMismatch) {
  HostRanks ranks(2);
  const CollectiveCase c(floats(10), 2, 1);
  const Choice choice = choice_for(c, 2, "ll_one_shot@1");
  ranks.run([](int) { return 1; },
            [&](int r, const SerialTeam& team) {
              std::vector<std::byte> in = c.input(r), out(in.size());
              HostRanks::launch(team, ranks.world(r), c.call(in.data(), out.data()), choice,
                                static_cast<std::uint32_t>(40 + r));
            });
  for (const int r : {0, 1}) EXPECT_EQ(ranks.host(r).code, static_cast<std::uint64_t>(device::FailureCode::kMismatch));
}

// A peer's poison arrives between the looks of two threads. Here each thread has a word of its own for it, so that
// every order is met: whichever thread alone sees it, all of them leave, and the call is neither complete nor counted.
TEST(Failures, AllThreadsOfABlockLeaveTogether) {
  constexpr int kWorkers = 3;
  constexpr std::uint64_t kFirst = 10;  // a call that clears no slots, which takes a barrier
  for (const bool in_two_steps : {false, true}) {
    for (int sees_it = -1; sees_it <= kWorkers; ++sees_it) {
      SCOPED_TRACE("seen by thread " + std::to_string(sees_it) + (in_two_steps ? ", in two steps" : ""));
      HostRanks ranks(2, kFirst);
      constexpr std::uint32_t kTicket = 5;
      std::array<std::uint64_t, kWorkers + 1> words{};
      if (sees_it >= 0) {
        words[static_cast<std::size_t>(sees_it)] =
            device::pack_poison(device::FailureCode::kTimeout, /*peer=*/0, /*reporter=*/1);
      }
      std::array<char, kWorkers + 1> sends{}, entered{};
      run_block(kWorkers, [&](const ThreadTeam& team) {
        const auto thread = static_cast<std::size_t>(team.thread);
        DeviceWorld world = ranks.world(0);
        world.control.poison = &words[thread];
        BlockCall<ThreadTeam> call(team, world, 7, kTicket);
        if (in_two_steps) sends[thread] = call.begin() ? 1 : 0;
        entered[thread] = (in_two_steps ? call.goes_on() : call.enter()) ? 1 : 0;
      });
      for (int thread = 0; thread <= kWorkers; ++thread) {
        EXPECT_EQ(sends[static_cast<std::size_t>(thread)], in_two_steps && thread != sees_it ? 1 : 0) << thread;
        EXPECT_EQ(entered[static_cast<std::size_t>(thread)], sees_it < 0 ? 1 : 0) << thread;
      }
      const BlockState& state = ranks.world(0).state->blocks[0];
      // In two steps the control thread, the last one, tells that the call before has ended unless it sees a failure.
      const bool told = sees_it < 0 || (in_two_steps && sees_it < kWorkers);
      EXPECT_EQ(state.progress, told ? pack_progress(kTicket, kTicket - 1) : 0u);
      EXPECT_EQ(state.sequence, kFirst);
      EXPECT_EQ(state.busy, sees_it < 0 ? 1u : 0u);
    }
  }
}

// A thread of another block fails between the decision that its failure is the first and the telling of it: what comes
// behind goes by the poison, and this thread may be the last one before that.
TEST(Failures, WhoIsSecondDoesNotLeaveBeforeTheFirstIsTold) {
  HostRanks ranks(2);
  const device::Control& control = ranks.world(0).control;
  const std::uint64_t first = device::pack_poison(device::FailureCode::kTimeout, /*peer=*/1, /*reporter=*/0);
  *control.failed = first;
  device::fail(control, device::pack_poison(device::FailureCode::kAborted, 0, 0), {1, 7, 7}, 0);
  EXPECT_EQ(*control.failed, first);
  EXPECT_EQ(*control.poison, first);
  EXPECT_EQ(ranks.host(0).code, 0u);     // the record is the first one's
  *control.poison = first | 1ull << 40;  // told already, and more
  device::fail(control, device::pack_poison(device::FailureCode::kAborted, 0, 0), {1, 7, 7}, 0);
  EXPECT_EQ(*control.poison, first | 1ull << 40);
}

// A call that failed has not awaited its peers, so they may still be reading what the next one would write over.
TEST(Failures, BehindAFailureNothingIsSent) {
  HostRanks ranks(2);
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                      Collective::kBroadcast, Collective::kReduce}) {
    for (const char* algorithm : {"ll_one_shot@1", "ll128_one_shot@1", "bulk_one_shot@1", "ll_two_shot@1",
                                  "ll128_two_shot@1", "bulk_two_shot@1"}) {
      if (collective != Collective::kAllReduce && std::string_view(algorithm).ends_with("two_shot@1")) continue;
      for (const int rank : {0, 1}) {  // of equal parts by LL, each of them runs other kernels
        SCOPED_TRACE(std::string(to_string(collective)) + ", " + algorithm + ", rank " + std::to_string(rank));
        CaseShape shape = floats(300);
        shape.collective = collective;
        const CollectiveCase c(shape, 2, 1);
        const DeviceWorld &mine = ranks.world(rank), &other = ranks.world(1 - rank);
        const std::uint64_t poison = device::pack_poison(device::FailureCode::kTimeout, 1 - rank, 1 - rank);
        *mine.control.poison = poison;
        std::vector<std::byte> in = c.input(rank), out(c.output_bytes());
        HostRanks::launch(SerialTeam{}, mine, c.call(in.data(), out.data()), choice_for(c, 2, algorithm), 7);
        EXPECT_EQ(std::exchange(ranks.host(rank).code, 0), static_cast<std::uint64_t>(device::FailureCode::kTimeout));
        EXPECT_EQ(std::exchange(*other.control.poison, 0), poison);  // all that it tells
        *mine.control.poison = *mine.control.failed = 0;
        // Where the block's header and the first of its packets, pieces and signals would lie.
        const ScratchLayout& at = mine.layout;
        for (const std::size_t offset : {at.header(0, 0, rank), at.ll(0, 0, 0, rank), at.ll128(0, 0, 0, rank),
                                         at.bulk_signal(0, 0, rank), at.bulk(0, 0, 0, rank)}) {
          const std::byte* const theirs = mine.scratch[1 - rank] + offset;
          EXPECT_TRUE(std::all_of(theirs, theirs + 64, [](std::byte b) { return b == std::byte{}; })) << offset;
        }
      }
    }
  }
}

// Messages between rank 0 and rank 1: what each of them has in its batch.
FewMessages one_message(std::vector<std::byte>& data, bool send, int peer) {
  FewMessages kernel = make_few_messages({{send, data.data(), data.size(), peer, 3}}, 1);
  kernel.ticket = 5;
  return kernel;
}

// A rank that only receives would never wait, so nobody would tell it that its peer has failed.
TEST(Failures, AMessageOnAPoisonedPairIsReported) {
  for (const bool send : {false, true}) {
    HostRanks ranks(2);
    *ranks.world(1).control.poison = device::pack_poison(device::FailureCode::kTimeout, 1, 0);
    std::vector<std::byte> data(100, std::byte{7});
    const FewMessages kernel = one_message(data, send, 0);
    run_messages(SerialTeam{}, ranks.world(1), kernel);
    EXPECT_EQ(ranks.host(1).code, static_cast<std::uint64_t>(device::FailureCode::kTimeout));
    EXPECT_EQ(ranks.host(1).reporter, 0u);
    EXPECT_EQ(ranks.host(1).ticket, 5u);
    EXPECT_EQ(ranks.world(1).state->message_progress[0], 0u);
  }
}

// Two kernels of one lane at the same time, such as graphs replayed on two streams, would take the same slots.
TEST(Failures, MessageKernelsThatOverlapAreFound) {
  for (const bool send : {false, true}) {
    HostRanks ranks(2);
    std::vector<std::byte> data(100);
    const FewMessages kernel = one_message(data, send, 1);
    MessageState& state = ranks.world(0).state->messages[1][0];
    (send ? state.sending : state.receiving) = 1;  // the other kernel runs
    run_messages(SerialTeam{}, ranks.world(0), kernel);
    EXPECT_EQ(ranks.host(0).code, static_cast<std::uint64_t>(device::FailureCode::kOverlap)) << send;
    EXPECT_EQ(ranks.host(0).peer, 0u);
  }
}

// A wait that ends without its data: the call is not complete, whatever the failure's record says. It may be that of a
// message, which ran beside the call and has a later ticket.
TEST(Failures, ACallWithoutItsDataIsNotComplete) {
  constexpr std::uint32_t kTicket = 9;
  constexpr std::uint64_t kBegun = pack_progress(kTicket, kTicket - 1);
  const auto alone = [&](const std::function<void(const SerialTeam&, const DeviceWorld&)>& body) {
    HostRanks ranks(2);
    ranks.host(0).timeout_ns = 20'000'000;
    ranks.world(0).state->failed = device::pack_poison(device::FailureCode::kTimeout, 1, 0);  // recorded before
    body(SerialTeam{}, ranks.world(0));
    return ranks.world(0).state->blocks[0].progress;
  };
  std::vector<std::byte> in(4096), out(4096);
  UniformArgs uniform;
  uniform.input = in.data();
  uniform.output = out.data();
  uniform.bytes = uniform.block_bytes = 64;
  uniform.ticket = kTicket;
  ExchangeArgs exchange;
  exchange.send[1] = in.data();
  exchange.receive[1] = out.data();
  exchange.send_bytes[1] = exchange.receive_bytes[1] = exchange.block_bytes = 64;
  exchange.send[0] = in.data();
  exchange.output = out.data();
  exchange.output_bytes = 64;
  exchange.piece_bytes = 64;
  exchange.ticket = kTicket;
  TwoShotArgs two_shot;
  two_shot.input = in.data();
  two_shot.output = out.data();
  two_shot.bytes = 64;
  two_shot.chunk_bytes = two_shot.block_bytes = two_shot.piece_bytes = 32;
  two_shot.ticket = kTicket;
  MeetArgs meeting;
  meeting.ticket = kTicket;
  DirectArgs direct;
  direct.ticket = kTicket;
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { ll_uniform_copy<2>(team, world, uniform); }), kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { ll_copy(team, world, exchange); }), kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { ll_reduce<SumF32>(team, world, exchange); }), kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { ll_two_shot<SumF32>(team, world, two_shot); }), kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { ll128_copy(team, world, exchange); }), kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { ll128_reduce<SumF32>(team, world, exchange); }), kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { ll128_two_shot<SumF32>(team, world, two_shot); }), kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { bulk_copy(team, world, exchange); }), kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { bulk_reduce<SumF32>(team, world, exchange); }), kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { bulk_two_shot<SumF32>(team, world, two_shot); }), kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { meet(team, world, meeting); }), kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { direct_all_gather(team, world, direct); }), kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { direct_all_reduce<SumF32>(team, world, direct); }),
            kBegun);
  EXPECT_EQ(alone([&](const auto& team, const auto& world) { direct_reduce_scatter<SumF32>(team, world, direct); }),
            kBegun);
}

// The same of messages: one that does not come, and one of more pieces than there is room for, which nobody takes.
TEST(Failures, AMessageWithoutItsDataIsNotComplete) {
  for (const bool send : {false, true}) {
    HostRanks ranks(2);
    ranks.host(0).timeout_ns = 20'000'000;
    ranks.world(0).state->failed = device::pack_poison(device::FailureCode::kTimeout, 1, 0);  // recorded before
    std::vector<std::byte> data(16 * (kMessageDepth + 1), std::byte{7});
    FewMessages kernel = one_message(data, send, 1);
    kernel.piece_bytes = 16;
    run_messages(SerialTeam{}, ranks.world(0), kernel);
    EXPECT_EQ(ranks.world(0).state->message_progress[0], pack_progress(kernel.ticket, kernel.ticket - 1)) << send;
  }
}

}  // namespace
}  // namespace tutti::cuda::test
