// Groups whose calls on GPUs are NCCL's: what the calls come to, in every layout.
#include <cstdint>
#include <cstring>
#include <latch>
#include <numeric>

#include "communicator/nccl_groups.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

// What rank `r` gives to block `b`, at place `i`.
float value(int r, int b, std::size_t i) { return static_cast<float>(100 * r + 10 * b + static_cast<int>(i % 7)); }

// Blocks of floats, one behind the other or apart in another order, of `sizes[b]` elements.
struct List {
  List(const std::vector<std::size_t>& sizes, bool apart) {
    for (const std::size_t size : sizes) blocks.emplace_back(size, -1.0F);
    if (!apart) {
      whole.assign(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), -1.0F);
      for (std::size_t b = 0, at = 0; b < sizes.size(); at += sizes[b++]) pointers.push_back(whole.data() + at);
    } else {
      for (auto& block : blocks) pointers.push_back(block.data());
    }
    for (const std::size_t size : sizes) bytes.push_back(size * sizeof(float));
  }
  float* at(int b) { return static_cast<float*>(pointers[static_cast<std::size_t>(b)]); }
  Blocks given(bool apart, bool uneven) {
    if (apart || uneven) return Blocks::list(pointers.data(), bytes.data());
    return {reinterpret_cast<std::byte*>(whole.data()), bytes[0], nullptr, nullptr};
  }
  std::vector<std::vector<float>> blocks;
  std::vector<float> whole;
  std::vector<void*> pointers;
  std::vector<std::size_t> bytes;
};

void every_collective(Rank& rank, bool apart, bool uneven) {
  const int me = rank.rank, n = rank.size;
  std::vector<std::size_t> sizes;  // of the block of each rank; one of them empty
  for (int r = 0; r < n; ++r) sizes.push_back(uneven ? static_cast<std::size_t>(5 * r) : 11);
  const auto size_of_rank = [&](int r) { return sizes[static_cast<std::size_t>(r)]; };
  std::vector<float> own(size_of_rank(me)), out(size_of_rank(me), -1.0F);
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = value(me, 0, i);
  const auto single = [](std::vector<float>& data) { return Blocks::single(data.data(), 4 * data.size()); };
  const auto run = [&](Collective collective, const Blocks& input, const Blocks& output, int root = -1) {
    Call call = call_of(collective, own.size(), root);
    call.uneven = uneven;
    call.input = input;
    call.output = output;
    rank.run(call);
  };
  {
    List all(sizes, apart);
    run(Collective::kAllGather, single(own), all.given(apart, uneven));
    for (int r = 0; r < n; ++r) {
      for (std::size_t i = 0; i < size_of_rank(r); ++i) EXPECT_EQ(all.at(r)[i], value(r, 0, i)) << r << " " << i;
    }
  }
  for (int root = 0; root < n; ++root) {
    List all(sizes, apart);
    run(Collective::kGather, single(own), me == root ? all.given(apart, uneven) : Blocks{}, root);
    for (int r = 0; me == root && r < n; ++r) {
      for (std::size_t i = 0; i < size_of_rank(r); ++i) EXPECT_EQ(all.at(r)[i], value(r, 0, i));
    }
    List parts(sizes, apart);
    for (int b = 0; b < n; ++b) {
      for (std::size_t i = 0; i < size_of_rank(b); ++i) parts.at(b)[i] = value(root, b, i);
    }
    run(Collective::kScatter, me == root ? parts.given(apart, uneven) : Blocks{}, single(out), root);
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], value(root, me, i));
  }
  {
    List parts(sizes, apart);
    for (int b = 0; b < n; ++b) {
      for (std::size_t i = 0; i < size_of_rank(b); ++i) parts.at(b)[i] = value(me, b, i);
    }
    run(Collective::kReduceScatter, parts.given(apart, uneven), single(out));
    for (std::size_t i = 0; i < out.size(); ++i) {
      float sum = 0;
      for (int r = 0; r < n; ++r) sum += value(r, me, i);
      EXPECT_EQ(out[i], sum) << i;
    }
  }
  // To rank b as much as b's block has, from every rank.
  std::vector<std::size_t> received(static_cast<std::size_t>(n), size_of_rank(me));
  List to(sizes, apart), from(received, apart);
  for (int b = 0; b < n; ++b) {
    for (std::size_t i = 0; i < size_of_rank(b); ++i) to.at(b)[i] = value(me, b, i);
  }
  run(Collective::kAllToAll, to.given(apart, uneven), from.given(apart, uneven));
  for (int r = 0; r < n; ++r) {
    for (std::size_t i = 0; i < size_of_rank(me); ++i) EXPECT_EQ(from.at(r)[i], value(r, me, i));
  }
}

TEST(OverNccl, EveryCollectiveInEveryLayout) {
  for (const int size : {1, 2, 3, 4}) {
    Groups(size).run([](Rank& rank) {
      every_collective(rank, false, false);
      every_collective(rank, true, false);
      every_collective(rank, true, true);
      // One rank has its blocks in a row, the others have not.
      every_collective(rank, rank.rank != 0, false);
    });
    EXPECT_EQ(fake_faults().ends, size);
  }
}

TEST(OverNccl, CallsOnSeveralStreamsAreInOrderAlsoWithTheCopiesAroundThem) {
  Groups(2).run([](Rank& rank) {
    HostStream second;
    std::vector<float> own(4, value(rank.rank, 0, 0));
    List all({4, 4}, /*apart=*/true);
    Call gather = call_of(Collective::kAllGather, own.size());
    gather.input = Blocks::single(own.data(), 4 * own.size());
    gather.output = all.given(/*apart=*/true, /*uneven=*/false);
    Call sum = call_of(Collective::kAllReduce, 4);
    sum.input = sum.output = Blocks::single(all.at(1), 16);
    std::latch issued(1);
    stream_of(rank.work->own_stream()).put([&] { issued.wait(); });
    rank.group->run(gather, rank.work->own_stream(), {});
    rank.group->run(sum, &second, {});
    std::this_thread::yield();
    issued.count_down();
    rank.group->synchronize(&second);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(all.at(1)[i], 2 * value(1, 0, 0));
  });
}

TEST(OverNccl, ReductionsInPlaceAndOfEveryKind) {
  Groups(3).run([](Rank& rank) {
    const auto reduced = [&](ReduceOp op, std::vector<float> data, double factor = 1) {
      Call call = call_of(Collective::kAllReduce, data.size());
      call.op = op;
      call.factor = factor;
      call.input = call.output = Blocks::single(data.data(), 4 * data.size());
      rank.run(call);
      return data[0];
    };
    const auto mine = static_cast<float>(rank.rank + 1);
    EXPECT_EQ(reduced(ReduceOp::kSum, {mine}), 6);
    EXPECT_EQ(reduced(ReduceOp::kAvg, {mine}), 2);
    EXPECT_EQ(reduced(ReduceOp::kProduct, {mine}), 6);
    EXPECT_EQ(reduced(ReduceOp::kMin, {mine}), 1);
    EXPECT_EQ(reduced(ReduceOp::kMax, {mine}), 3);
    EXPECT_EQ(reduced(ReduceOp::kPremulSum, {mine}, 0.5), 3);
    for (int root = 0; root < 3; ++root) {
      std::vector<float> data{mine, 2 * mine};
      Call call = call_of(Collective::kReduce, 2, root);
      call.input = Blocks::single(data.data(), 8);
      if (rank.rank == root) call.output = call.input;
      rank.run(call);
      EXPECT_EQ(data[1], rank.rank == root ? 12 : 2 * mine);
      call = call_of(Collective::kBroadcast, 2, root);
      call.input = call.output = Blocks::single(data.data(), 8);
      rank.run(call);
      EXPECT_EQ(data[1], 12);
      // The root's own result too, where it wants it.
      std::vector<float> elsewhere(2);
      call.output = Blocks::single(elsewhere.data(), 8);
      rank.run(call);
      EXPECT_EQ(elsewhere, data);
    }
    std::vector<std::uint8_t> flags{static_cast<std::uint8_t>(rank.rank == 1), 1};
    Call call = call_of(Collective::kAllReduce, 2);
    call.dtype = DataType::kBool;
    call.input = call.output = Blocks::single(flags.data(), 2);
    call.op = ReduceOp::kSum;
    rank.run(call);
    EXPECT_EQ(flags[0], 1);
    EXPECT_EQ(flags[1], 1);
    rank.run(call_of(Collective::kBarrier, 0));
    // Parts of complex numbers.
    std::vector<double> parts{rank.rank + 1.0, -1.0};
    call = call_of(Collective::kAllReduce, 1);
    call.dtype = DataType::kComplex128;
    call.op = ReduceOp::kPremulSum;
    call.factor = 2;
    call.input = call.output = Blocks::single(parts.data(), 16);
    rank.run(call);
    EXPECT_EQ(parts, (std::vector<double>{12, -6}));
  });
}

TEST(OverNccl, FactorsAreOfTheCallsType) {
  Call call = call_of(Collective::kAllReduce, 1);
  call.factor = 1.0 / 3;
  const auto bits = [&](DataType dtype) {
    call.dtype = dtype;
    std::uint16_t half = 0;
    std::memcpy(&half, nccl_factor(call).data(), 2);
    return half;
  };
  EXPECT_EQ(bits(DataType::kFloat16), 0x3555);
  EXPECT_EQ(bits(DataType::kBfloat16), 0x3EAB);  // rounded up
}

TEST(OverNccl, WhatNcclCannotReduceIsRefusedAndTheGroupGoesOn) {
  Groups(2).run([](Rank& rank) {
    std::vector<std::int32_t> data{rank.rank + 1};
    Call call = call_of(Collective::kAllReduce, 1);
    call.dtype = DataType::kInt32;
    call.input = call.output = Blocks::single(data.data(), 4);
    for (const ReduceOp op : {ReduceOp::kBand, ReduceOp::kBxor}) {
      call.op = op;
      try {
        rank.run(call);
        ADD_FAILURE() << "taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
        EXPECT_NE(std::string(error.what()).find("NCCL"), std::string::npos) << error.what();
      }
    }
    call.op = ReduceOp::kSum;
    rank.run(call);
    EXPECT_EQ(data[0], 3);
    EXPECT_EQ(rank.group->sequence(), 1U);
  });
}

// Which NCCL would say too late: it has no sums of fp8 before sm_90.
TEST(OverNccl, Fp8IsReducedWhereTheDeviceCan) {
  Groups(2).run([](Rank& rank) {
    std::uint8_t data = 0;
    Call call = call_of(Collective::kAllReduce, 1);
    call.input = call.output = Blocks::single(&data, 1);
    rank.work->new_enough = false;
    for (const DataType type : {DataType::kFloat8E4M3fn, DataType::kFloat8E5M2}) {
      call.dtype = type;
      try {
        rank.run(call);
        ADD_FAILURE() << "taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
        EXPECT_NE(std::string(error.what()).find("before sm_90"), std::string::npos) << error.what();
      }
    }
    EXPECT_EQ(rank.group->sequence(), 0U);
    rank.work->new_enough = true;
    EXPECT_NO_THROW(rank.group->check(call));
  });
}

TEST(OverNccl, MessagesOfABatchInAnyOrder) {
  Groups(3).run([](Rank& rank) {
    std::vector<float> to(6), from(6);
    std::vector<DeviceMessage> messages;
    for (int peer = 2; peer >= 0; --peer) {
      if (peer == rank.rank) continue;
      const auto at = static_cast<std::size_t>(2 * peer);
      to[at] = to[at + 1] = value(rank.rank, peer, 0);
      messages.push_back({false, &from[at], 8, peer, 7});
      messages.push_back({true, &to[at], 8, peer, 7});
      messages.push_back({true, nullptr, 0, peer, 8});
    }
    rank.group->exchange(messages, rank.work->own_stream(), {});
    rank.group->synchronize(rank.work->own_stream());
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank.rank) continue;
      EXPECT_EQ(from[static_cast<std::size_t>(2 * peer + 1)], value(peer, rank.rank, 0));
    }
    EXPECT_THROW(rank.group->exchange({{true, to.data(), 4, rank.rank, 0}}, rank.work->own_stream(), {}), Error);
  });
}

TEST(OverNccl, APairForMessagesIsConnectedWhenItIsMade) {
  Groups groups(2);
  groups.messages_only = true;
  groups.run([](Rank& rank) {
    float data = rank.rank == 0 ? 5.0F : 0.0F;
    rank.group->exchange({{rank.rank == 0, &data, 4, 1 - rank.rank, 0}}, rank.work->own_stream(), {});
    rank.group->synchronize(rank.work->own_stream());
    EXPECT_EQ(data, 5.0F);
  });
  EXPECT_EQ(fake_faults().messages, 4);
}

TEST(OverNccl, CapturedCallsHaveNoDeadline) {
  Groups(2).run([](Rank& rank) {
    std::vector<float> data{1};
    Call call = call_of(Collective::kAllReduce, 1);
    call.input = call.output = Blocks::single(data.data(), 4);
    rank.work->capturing = true;
    rank.group->run(call, rank.work->own_stream(), 1ms);
    rank.work->capturing = false;
    std::this_thread::sleep_for(20ms);
    rank.group->look();
    rank.group->synchronize(rank.work->own_stream());
    EXPECT_EQ(data[0], 2);
  });
}

TEST(OverNccl, RecordsSayWhatHasEnded) {
  Groups(2).run([](Rank& rank) {
    std::vector<float> data{1, 2};
    Call call = call_of(Collective::kAllReduce, 2);
    call.input = call.output = Blocks::single(data.data(), 8);
    rank.run(call);
    const Metrics metrics = rank.group->metrics();
    EXPECT_EQ(metrics.device_calls, 1U);
    ASSERT_EQ(metrics.rows.size(), 1U);
    EXPECT_EQ(metrics.rows[0].algorithm + " " + metrics.rows[0].device, "nccl cuda");
    EXPECT_NE(rank.group->flight_record().find("completed"), std::string::npos) << rank.group->flight_record();
    EXPECT_EQ(rank.group->explain(call), "nccl");
    EXPECT_EQ(rank.group->candidates(call), "nccl 2.99.1: it has two hosts");
    EXPECT_THROW(rank.group->prepare(nullptr), Error);
    EXPECT_THROW(rank.group->register_memory({}), Error);
    rank.group->reset_metrics();
    EXPECT_TRUE(rank.group->metrics().rows.empty());
  });
}

}  // namespace
}  // namespace tutti::test
