// A collective that finds no memory is refused before any other rank can have heard of it, whatever algorithm runs it
// and whether it is queued: the group stays usable, and the same call, made again, is right on all ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>

#include "algorithm/call_memory.h"
#include "base/collective_traits.h"
#include "communicator/kept_endpoint.h"
#include "communicator/refused_memory.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

struct Case {
  Collective collective = Collective::kBarrier;
  const char* algorithm = "";
  DataType dtype = DataType::kFloat32;
  std::size_t count = 0;
  ReduceOp op = ReduceOp::kSum;
  bool takes_little = false;  // no more than the calls by which the ranks meet
};

// Numbers that both types hold exactly.
std::vector<std::byte> elements(DataType dtype, std::size_t count, float value) {
  const std::size_t size = size_of(dtype);
  std::vector<std::byte> bytes(count * size);
  const auto* const top = reinterpret_cast<const std::byte*>(&value) + (sizeof value - size);  // bf16: the upper half
  for (std::size_t i = 0; i < count; ++i) std::memcpy(bytes.data() + i * size, top, size);
  return bytes;
}

// Rank r gives r + 1 everywhere.
class Made {
 public:
  Made(const Case& what, int rank, int ranks)
      : what_(what), rank_(rank), ranks_(ranks), traits_(traits_of(what.collective)) {
    const auto n = static_cast<std::size_t>(ranks);
    input_ = elements(what.dtype, what.count * (traits_.input_blocks ? n : 1), static_cast<float>(rank + 1));
    output_ = elements(what.dtype, what.count * (traits_.output_blocks ? n : 1), 0);
    const std::size_t block = what.count * size_of(what.dtype);
    call.collective = what.collective;
    call.dtype = what.dtype;
    call.op = what.op;
    call.factor = 2;
    if (traits_.has_root) call.root = kRoot;
    if (what.collective == Collective::kBarrier) return;
    call.count = what.count;
    const bool one_buffer = what.collective == Collective::kBroadcast;
    if (one_buffer && rank == kRoot) output_ = input_;
    call.output = Blocks::single(output_.data(), block);
    call.input = one_buffer ? call.output : Blocks::single(input_.data(), block);
  }
  Made(const Made&) = delete;

  bool right() const {
    if (traits_.root_writes && rank_ != kRoot) return true;
    const float scale = what_.op == ReduceOp::kPremulSum ? 2 : 1;
    std::vector<std::byte> want;
    for (int r = 0; r < (traits_.output_blocks ? ranks_ : 1); ++r) {
      float value = traits_.output_blocks ? static_cast<float>(r + 1) : static_cast<float>(kRoot + 1);
      if (traits_.reduces) value = scale * static_cast<float>(ranks_ * (ranks_ + 1) / 2);
      const auto block = elements(what_.dtype, what_.count, value);
      want.insert(want.end(), block.begin(), block.end());
    }
    return what_.collective == Collective::kBarrier || output_ == want;
  }

  Call call;

 private:
  static constexpr int kRoot = 1;

  const Case what_;
  const int rank_, ranks_;
  const CollectiveTraits& traits_;
  std::vector<std::byte> input_, output_;
};

// All ranks are connected after that, and have made what a group's first calls make.
void meet(Communicator& comm, bool queued) {
  for (const Case& what : {Case{Collective::kAllToAll, "", DataType::kFloat32, 1}, Case{}}) {
    Made made(what, comm.rank(), comm.size());
    queued ? comm.submit(made.call)->wait() : comm.run(made.call);
  }
}

void make(Communicator& comm, const Call& call, bool queued) { queued ? comm.submit(call)->wait() : comm.run(call); }

// The call's memory is the first that the hit rank asks for. The other ranks wait for its call until it makes it again.
void refuse(const World& world, const Case& what, int hit, bool queued) {
  run_ranks(world, [&](Communicator& comm) {
    comm.rank() == hit ? count_me() : spare_me();
    meet(comm, queued);
    Made made(what, comm.rank(), comm.size());
    if (comm.rank() == hit && !what.takes_little) {
      const Error error = error_of([&] {
        const Refusal refusal(Of::kThisThread, Which::kAllFromThere, 1);
        make(comm, made.call, queued);
      });
      EXPECT_EQ(error.kind(), ErrorKind::kExhausted) << error.what();
      EXPECT_NE(std::string(error.what()).find("Nothing has been sent"), std::string::npos) << error.what();
    }
    make(comm, made.call, queued);
    EXPECT_TRUE(made.right()) << "on rank " << comm.rank();
    meet(comm, queued);
  });
}

void try_on_two_ranks(World world, const Case& what, bool queued) {
  SCOPED_TRACE(std::string(to_string(what.collective)) + " " + what.algorithm);
  const std::uint64_t late = CallMemory::late();
  world.algorithm = std::string(to_string(what.collective)) + "=" + what.algorithm;
  for (const int hit : {0, world.size - 1}) {
    SCOPED_TRACE("on rank " + std::to_string(hit));
    refuse(world, what, hit, queued);
  }
  EXPECT_EQ(CallMemory::late(), late) << "calls have taken memory after they had their number";
}

class NoMemoryForCalls : public RefusedMemory<testing::TestWithParam<bool>> {};

TEST_P(NoMemoryForCalls, BetweenHosts) {
  const auto endpoint = keep_endpoint();
  World world;
  world.size = 3;
  world.host_of = [](int r) { return "host" + std::to_string(r); };
  using enum Collective;
  for (const Case& what : {
           Case{kAllReduce, "ring", DataType::kFloat32, 50'000},
           Case{kAllReduce, "direct", DataType::kBfloat16, 50'000},
           Case{kAllReduce, "dissemination", DataType::kFloat32, 1'000},
           Case{kAllReduce, "tree", DataType::kFloat32, 5'000},
           Case{kAllReduce, "ring", DataType::kFloat32, 50'000, ReduceOp::kPremulSum},
           Case{kReduce, "direct", DataType::kFloat32, 50'000},
           Case{kReduce, "tree", DataType::kFloat32, 20'000},
           Case{kReduce, "chain", DataType::kFloat32, 200'000},
           Case{kReduceScatter, "ring", DataType::kFloat32, 50'000},
           Case{kReduceScatter, "direct", DataType::kFloat32, 50'000},
           Case{kBroadcast, "tree", DataType::kFloat32, 20'000, ReduceOp::kSum, true},
           Case{kBroadcast, "chain", DataType::kFloat32, 200'000, ReduceOp::kSum, true},
           Case{kAllGather, "ring", DataType::kFloat32, 50'000},
           Case{kAllToAll, "pairwise", DataType::kFloat32, 50'000, ReduceOp::kSum, true},
           Case{kGather, "linear", DataType::kFloat32, 50'000, ReduceOp::kSum, true},
           Case{kScatter, "linear", DataType::kFloat32, 50'000, ReduceOp::kSum, true},
       }) {
    try_on_two_ranks(world, what, GetParam());
  }
}

TEST_P(NoMemoryForCalls, InTwoLevels) {
  const auto endpoint = keep_endpoint();
  World world;
  world.size = 5;
  world.host_of = [](int r) { return r < 3 ? "a" : "b"; };
  using enum Collective;
  for (const Case& what : {
           Case{kAllReduce, "leaders", DataType::kFloat32, 1'000},
           Case{kAllReduce, "leaders", DataType::kBfloat16, 1'000},
           Case{kAllReduce, "carriers", DataType::kFloat32, 50'000},
           Case{kBroadcast, "leaders", DataType::kFloat32, 1'000},
           Case{kAllGather, "leaders", DataType::kFloat32, 1'000},
       }) {
    try_on_two_ranks(world, what, GetParam());
  }
}

class NoMemoryForACall : public RefusedMemory<> {};

// There an algorithm over messages is known to be the one only when the call has been announced.
TEST_F(NoMemoryForACall, OnOneHostIsLookedForOnce) {
  World world;
  world.size = 3;
  world.algorithm = "all_reduce=ring";
  std::barrier<> all(world.size);
  std::uint64_t late = 0;
  run_ranks(world, [&](Communicator& comm) {
    for (int call = 0; call < 4; ++call) {
      Made made({Collective::kAllReduce, "", DataType::kFloat32, 50'000}, comm.rank(), comm.size());
      comm.run(made.call);
      EXPECT_TRUE(made.right()) << "on rank " << comm.rank();
      all.arrive_and_wait();
      if (call == 0 && comm.rank() == 0) late = CallMemory::late();
      all.arrive_and_wait();
    }
    if (comm.rank() == 0) {
      EXPECT_EQ(CallMemory::late(), late);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, NoMemoryForCalls, testing::Bool(),
                         [](const auto& test) { return test.param ? "Queued" : "AtOnce"; });

}  // namespace
}  // namespace tutti::test
