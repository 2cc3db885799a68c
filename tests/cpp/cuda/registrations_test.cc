// Which calls run in registered memory, and what ranks compare of it; and the kernels of such calls on the host.
#include "communicator/cuda/registrations.h"

#include <gtest/gtest.h>

#include <set>

#include "algorithm/cuda/direct.cuh"
#include "cuda/collective_case.h"
#include "cuda/host_ranks.h"

namespace tutti::cuda::test {
namespace {

// One rank's view of a range: only its own address counts.
class FakeRegion final : public CudaRegion {
 public:
  FakeRegion(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  std::size_t bytes() const noexcept override { return bytes_; }
  std::byte* data(int rank) const noexcept override { return rank == 0 ? data_ : nullptr; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

constexpr std::size_t kMB = std::size_t{1} << 20;

std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

Call call_of(Collective collective, std::byte* input, std::byte* output, std::size_t block_bytes) {
  Call call;
  call.collective = collective;
  call.dtype = DataType::kUint8;
  call.count = block_bytes;
  call.input = Blocks::single(input, block_bytes);
  call.output = Blocks::single(output, block_bytes);
  return call;
}

class RegistrationTable : public testing::Test {
 protected:
  std::byte* add(Registrations& table, std::uintptr_t address, std::size_t bytes) {
    table.add(std::make_shared<FakeRegion>(at(address), bytes), 0);
    return at(address);
  }
  Registrations table_;
  std::byte* first_ = add(table_, 0x10000000, 4 * kMB);
  std::byte* second_ = add(table_, 0x20000000, 4 * kMB);
  std::byte* foreign_ = at(0x30000000);
};

// In memory of allocate() copy engines need only the buffers that peers touch, as far as a rank has them; ranks compare
// where those lie.
TEST(CopiedPlace, FollowsWhatARankHas) {
  const auto memory = std::make_shared<FakeRegion>(at(0x10000000), 4 * kMB);
  Registrations table;
  table.add(memory, 0, /*allocated=*/true);
  std::byte* const in = memory->data(0);
  std::byte* const out = in + kMB;
  const auto place = [&](Collective collective, std::byte* input, std::byte* output, int root) {
    Call call = call_of(collective, input, output, 1000);
    call.root = root;
    return table.place_of(call, 0, 3, CopyEngines::kAllocated);
  };
  const auto taken = [&](Collective collective, std::byte* input, std::byte* output, int root = -1) {
    return place(collective, input, output, root).has_value();
  };
  const auto number = [&](Collective collective, std::byte* input, std::byte* output, int root = -1) {
    const auto found = place(collective, input, output, root);
    EXPECT_TRUE(found && found->by_copy_engines) << to_string(collective);
    return found.value().number;
  };
  // All parts of a buffer of n blocks lie in the memory, no more.
  EXPECT_TRUE(taken(Collective::kAllToAll, in, in + 4 * kMB - 3000));
  EXPECT_FALSE(taken(Collective::kAllToAll, in, in + 4 * kMB - 2999));
  EXPECT_FALSE(taken(Collective::kAllGather, in, in + 4 * kMB - 2999));
  // Of a broadcast the output, also at the root, whose input may lie anywhere.
  EXPECT_TRUE(taken(Collective::kBroadcast, nullptr, in + 4 * kMB - 1000, 0));
  EXPECT_FALSE(taken(Collective::kBroadcast, nullptr, in + 4 * kMB - 999, 0));
  EXPECT_TRUE(taken(Collective::kBroadcast, nullptr, in + 4 * kMB - 1000, 1));
  EXPECT_EQ(number(Collective::kBroadcast, nullptr, out, 0), number(Collective::kBroadcast, out, out, 0));
  EXPECT_EQ(number(Collective::kBroadcast, nullptr, out, 0), number(Collective::kBroadcast, nullptr, out, 1));
  // A rooted call's list is the root's alone.
  EXPECT_EQ(place(Collective::kGather, in, nullptr, 1)->output.memory, nullptr);
  EXPECT_FALSE(taken(Collective::kGather, nullptr, out, 0));
  EXPECT_EQ(place(Collective::kScatter, nullptr, out, 1)->input.memory, nullptr);
  EXPECT_FALSE(taken(Collective::kScatter, in, nullptr, 0));
  // What peers touch counts, and nothing else.
  for (const Collective c : {Collective::kAllGather, Collective::kAllToAll, Collective::kScatter}) {
    EXPECT_EQ(number(c, in, out, 0), number(c, in + 64, out, 0)) << to_string(c);
    EXPECT_NE(number(c, in, out, 0), number(c, in, out + 64, 0)) << to_string(c);
  }
  EXPECT_EQ(number(Collective::kGather, in, out, 0), number(Collective::kGather, in, out + 64, 0));
  EXPECT_NE(number(Collective::kGather, in, out, 0), number(Collective::kGather, in + 64, out, 0));
  EXPECT_EQ(number(Collective::kGather, in, out, 0), number(Collective::kGather, in, nullptr, 1));
  EXPECT_NE(number(Collective::kAllReduce, in, out), number(Collective::kAllReduce, in + 64, out));
  EXPECT_NE(number(Collective::kAllReduce, in, out), number(Collective::kAllReduce, in, out + 64));
}

// Registered memory uses copy engines only when told to, and for the calls that count in it.
TEST_F(RegistrationTable, UsesCopyEnginesWhereItIsToldTo) {
  const auto way = [&](Collective collective, CopyEngines engines) {
    const auto place = table_.place_of(call_of(collective, first_, second_, kMB), 0, 2, engines);
    return !place ? -1 : place->by_copy_engines ? 1 : 0;
  };
  EXPECT_EQ(way(Collective::kAllGather, CopyEngines::kNowhere), 0);
  EXPECT_EQ(way(Collective::kAllGather, CopyEngines::kAllocated), 0);
  EXPECT_EQ(way(Collective::kAllGather, CopyEngines::kEverywhere), 1);
  EXPECT_EQ(way(Collective::kAllToAll, CopyEngines::kEverywhere), -1);
  const auto allocated = std::make_shared<FakeRegion>(at(0x40000000), 4 * kMB);
  table_.add(allocated, 0, /*allocated=*/true);
  EXPECT_FALSE(table_.holds(*allocated));
  EXPECT_TRUE(table_.contains(allocated->data(0), kMB));
  const Call call = call_of(Collective::kAllToAll, foreign_, allocated->data(0), kMB);
  EXPECT_TRUE(table_.place_of(call, 0, 2, CopyEngines::kAllocated)->by_copy_engines);
  EXPECT_FALSE(table_.place_of(call, 0, 2).has_value());
  table_.remove(*allocated);
  EXPECT_FALSE(table_.contains(allocated->data(0), kMB));
}

TEST_F(RegistrationTable, TakesWhatPeersTouch) {
  const auto takes = [&](Collective collective, std::byte* input, std::byte* output, std::size_t bytes) {
    return table_.place_of(call_of(collective, input, output, bytes), 0, 2).has_value();
  };
  // An all-reduce: both buffers, in one range or in two.
  EXPECT_TRUE(takes(Collective::kAllReduce, first_, first_, kMB));
  EXPECT_TRUE(takes(Collective::kAllReduce, first_, second_, kMB));
  EXPECT_FALSE(takes(Collective::kAllReduce, first_, foreign_, kMB));
  EXPECT_FALSE(takes(Collective::kAllReduce, foreign_, first_, kMB));
  // The input of a reduce-scatter, the output of an all-gather.
  EXPECT_TRUE(takes(Collective::kReduceScatter, first_, foreign_, 2 * kMB));
  EXPECT_FALSE(takes(Collective::kReduceScatter, foreign_, first_, 2 * kMB));
  EXPECT_TRUE(takes(Collective::kAllGather, foreign_, first_, 2 * kMB));
  EXPECT_FALSE(takes(Collective::kAllGather, first_, foreign_, 2 * kMB));
  // Others run as ever.
  EXPECT_FALSE(takes(Collective::kAllToAll, first_, second_, kMB));
  EXPECT_FALSE(takes(Collective::kBroadcast, first_, first_, kMB));
  // All of it must be registered, and it must be worth while.
  EXPECT_FALSE(takes(Collective::kAllReduce, first_ + 3 * kMB + 1, first_, kMB));
  EXPECT_TRUE(takes(Collective::kAllReduce, first_ + 3 * kMB, first_, kMB));
  EXPECT_FALSE(takes(Collective::kAllReduce, first_, first_, kMB - 1));
  Call call = call_of(Collective::kAllReduce, first_, first_, kMB);
  EXPECT_FALSE(table_.place_of(call, 0, 1).has_value());
  call.op = ReduceOp::kPremulSum;
  EXPECT_FALSE(table_.place_of(call, 0, 2).has_value());
}

TEST_F(RegistrationTable, ComparesRangeAndOffset) {
  const auto number = [](const Registrations& table, Collective collective, std::byte* input, std::byte* output) {
    return table.place_of(call_of(collective, input, output, kMB), 0, 2).value().number;
  };
  // Another rank: its memory lies elsewhere, its first range above its second.
  Registrations other;
  std::byte* other_first = add(other, 0x70000000, 4 * kMB);
  std::byte* other_second = add(other, 0x50000000, 4 * kMB);
  constexpr Collective kReduce = Collective::kAllReduce;
  EXPECT_EQ(number(table_, kReduce, first_ + 64, second_), number(other, kReduce, other_first + 64, other_second));
  const std::uint64_t base = number(table_, kReduce, first_, first_);
  EXPECT_NE(base, number(other, kReduce, other_first + 16, other_first));
  EXPECT_NE(base, number(other, kReduce, other_first, other_first + 16));
  EXPECT_NE(base, number(other, kReduce, other_second, other_second));
  EXPECT_NE(base, number(other, kReduce, other_first, other_second));
  // What only the rank itself touches may lie anywhere.
  EXPECT_EQ(number(table_, Collective::kReduceScatter, first_, foreign_),
            number(other, Collective::kReduceScatter, other_first, other_second + 5));
  EXPECT_EQ(number(table_, Collective::kAllGather, foreign_, first_),
            number(other, Collective::kAllGather, other_second + 5, other_first));
}

// Regular steps, such as of 64 MB, or of one buffer up and the other one down, make other calls of them.
TEST(DirectIdentity, TellsPlacesBlocksAndWaysApart) {
  const FakeRegion memory(at(std::uintptr_t{1} << 40), std::size_t{1} << 36);
  Registrations table;
  table.add(std::make_shared<FakeRegion>(at(std::uintptr_t{1} << 40), std::size_t{1} << 36), 0);
  std::byte* const base = memory.data(0);
  std::set<std::uint32_t> seen;
  std::size_t made = 0;
  const auto add = [&](std::size_t input, std::size_t output) {
    const Call call = call_of(Collective::kAllReduce, base + input, base + output, kMB);
    const DirectPlace place = table.place_of(call, 0, 2).value();
    for (const int blocks : {1, 32, 64}) {
      for (const DirectWay way : {DirectWay::kKernel, DirectWay::kFirstMeeting, DirectWay::kSecondMeeting}) {
        seen.insert(choice_of(place, blocks, way));
        ++made;
      }
    }
  };
  for (std::size_t step = 0; step < 100; ++step) add(step * 64 * kMB, 0);
  for (std::size_t step = 1; step < 100; ++step) add(0, step * 64 * kMB);
  for (std::size_t step = 1; step < 20; ++step) add(16 * step, 31 * 16 * (40 - step));
  for (const std::size_t high : {std::size_t{1} << 32, std::size_t{1} << 33}) add(high, high >> 32);
  EXPECT_EQ(seen.size(), made);
}

TEST_F(RegistrationTable, ForgetsWhatIsRemoved) {
  EXPECT_TRUE(table_.contains(first_ + 1, 4 * kMB - 1));
  EXPECT_FALSE(table_.contains(first_ + 1, 4 * kMB));
  EXPECT_FALSE(table_.contains(first_ - 1, 2));
  EXPECT_TRUE(table_.touches(first_ - 1, 2));
  EXPECT_TRUE(table_.touches(first_ + 4 * kMB - 1, 2));
  EXPECT_FALSE(table_.touches(first_ + 4 * kMB, 2));
  EXPECT_FALSE(table_.touches(first_ - 1, 1));
  const Call call = call_of(Collective::kAllReduce, first_, first_, kMB);
  const auto region = table_.place_of(call, 0, 2).value().input.memory;
  EXPECT_TRUE(table_.holds(*region));
  table_.remove(*region);
  EXPECT_FALSE(table_.holds(*region));
  EXPECT_FALSE(table_.place_of(call, 0, 2).has_value());
  // A number is never given twice: a rank that still uses the old range is found.
  const std::uint64_t before = table_.place_of(call_of(Collective::kAllReduce, second_, second_, kMB), 0, 2)->number;
  add(table_, 0x10000000, 4 * kMB);
  const auto again = table_.place_of(call, 0, 2);
  EXPECT_EQ(describe(*again), "input in range 3 at byte 0, output in range 3 at byte 0");
  EXPECT_NE(again->number, before);
}

TEST_F(RegistrationTable, ExplainsOnlyWhereMemoryWasRegistered) {
  EXPECT_EQ(Registrations().explain(7), "");
  EXPECT_NE(table_.explain(7).find("no registered memory"), std::string::npos);
  table_.remember(7, *table_.place_of(call_of(Collective::kReduceScatter, first_ + 8, foreign_, kMB), 0, 2));
  EXPECT_NE(table_.explain(7).find("(input in range 1 at byte 8)"), std::string::npos) << table_.explain(7);
}

// One rank runs in registered memory, the other by another offset, or not in registered memory at all: nobody's memory
// is written, whatever signals come.
TEST(DirectKernels, TouchNothingWhenRanksDiffer) {
  for (const bool other_direct : {true, false}) {
    constexpr std::size_t kCount = 5000;
    const CollectiveCase c({.count = kCount}, 2, 1);
    HostRanks ranks(2);
    std::vector<std::vector<std::byte>> memory(2, std::vector<std::byte>(2 * c.output_bytes(), std::byte{0xa5}));
    std::vector<std::byte> elsewhere(c.output_bytes());
    ranks.run([](int) { return 2; },
              [&](int r, const SerialTeam& team) {
                const DeviceWorld& world = ranks.world(r);
                const auto fingerprint = static_cast<std::uint32_t>(77 + r);
                if (r == 1 && !other_direct) {
                  const Choice choice{Protocol::kBulk, false, 2, 32, 16};
                  std::byte* own = elsewhere.data();
                  return HostRanks::launch(team, world, c.call(own, own), choice, fingerprint);
                }
                std::byte* places[device::kMaxRanks] = {};
                const std::size_t offset = r == 0 ? 0 : c.output_bytes();
                for (int p = 0; p < 2; ++p) places[p] = memory[static_cast<std::size_t>(p)].data() + offset;
                const Call call = c.call(places[r], places[r]);
                direct_all_reduce<SumF32>(team, world, make_direct(call, 2, 2, places, places, fingerprint));
              });
    for (int r = 0; r < 2; ++r) {
      EXPECT_EQ(memory[static_cast<std::size_t>(r)], std::vector<std::byte>(2 * c.output_bytes(), std::byte{0xa5}));
      const auto code = static_cast<device::FailureCode>(ranks.host(r).code);
      EXPECT_EQ(code, device::FailureCode::kMismatch) << "rank " << r;
    }
  }
}

// The bodies of the kernels, with the buffers that only their own rank touches unknown to the others.
TEST(DirectKernels, LeaveAloneWhatIsNotShared) {
  std::uint64_t seed = 0;
  for (const int size : {2, 3}) {
    HostRanks ranks(size);
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      for (const std::size_t count : {1, 1031, 5000}) {
        CaseShape shape;
        shape.collective = collective;
        shape.count = count;
        const CollectiveCase c(shape, size, ++seed);
        SCOPED_TRACE(describe(shape, size));
        std::vector<std::vector<std::byte>> ins, outs;
        for (int r = 0; r < size; ++r) {
          ins.push_back(c.input(r));
          outs.emplace_back(c.output_bytes(), std::byte{0xa5});
        }
        constexpr int kBlocks = 3;
        ranks.run([](int) { return kBlocks; },
                  [&](int r, const SerialTeam& team) {
                    std::byte* inputs[device::kMaxRanks] = {};
                    std::byte* outputs[device::kMaxRanks] = {};
                    for (int p = 0; p < size; ++p) {
                      const auto i = static_cast<std::size_t>(p);
                      if (p == r || collective != Collective::kAllGather) inputs[p] = ins[i].data();
                      if (p == r || collective != Collective::kReduceScatter) outputs[p] = outs[i].data();
                    }
                    const Call call = c.call(inputs[r], outputs[r]);
                    const DirectArgs args = make_direct(call, size, kBlocks, inputs, outputs, 77);
                    const DeviceWorld& world = ranks.world(r);
                    if (collective == Collective::kAllReduce) return direct_all_reduce<SumF32>(team, world, args);
                    if (collective == Collective::kAllGather) return direct_all_gather(team, world, args);
                    direct_reduce_scatter<SumF32>(team, world, args);
                  });
        for (int r = 0; r < size; ++r) {
          EXPECT_EQ(outs[static_cast<std::size_t>(r)], c.expected(r)) << "rank " << r;
          EXPECT_EQ(ins[static_cast<std::size_t>(r)], c.input(r)) << "rank " << r;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tutti::cuda::test
