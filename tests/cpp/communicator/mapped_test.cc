// Gather and scatter where the tensors of one side, of both or of none are mapped, and where the root's are a list; and
// tensors that are mapped no more.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/memory_store.h"
#include "communicator/plan_calls.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

constexpr std::size_t kMappedCount = 10'007;  // more than a slot holds

// Which tensors are mapped, on the ranks that have one.
struct MappedSides {
  bool inputs = false;
  bool outputs = false;
  bool list = false;  // the root's blocks are tensors of their own
  bool in_place = false;
};

float mapped_value(int rank, int block, std::size_t i) {
  return static_cast<float>((i * 3 + static_cast<std::size_t>(rank) * 1001 + static_cast<std::size_t>(block) * 77) %
                            65'521);
}

void fill(float* to, int rank, int block) {
  for (std::size_t i = 0; i < kMappedCount; ++i) to[i] = mapped_value(rank, block, i);
}

// The root's blocks. Of a list the last one comes first, so that they lie nowhere as if they were one tensor.
class RootBlocks {
 public:
  RootBlocks(float* base, int ranks, bool list) : base_(base), list_(list) {
    for (int r = 0; r < ranks; ++r) {
      pointers_.push_back(base + static_cast<std::size_t>(list ? ranks - 1 - r : r) * kMappedCount);
    }
  }
  float* block(int rank) const { return static_cast<float*>(pointers_[static_cast<std::size_t>(rank)]); }
  Blocks blocks() const {
    Blocks all = Blocks::single(base_, kMappedCount * sizeof(float));
    if (list_) all.pointers = pointers_.data();
    return all;
  }

 private:
  float* base_;
  bool list_;
  std::vector<void*> pointers_;
};

// One call on tensors of these kinds with this root; what is right is checked, and what ran returned.
std::string run_rooted(Communicator& c, Collective collective, const MappedSides& sides, int root) {
  const bool gathers = collective == Collective::kGather, is_root = c.rank() == root;
  const auto blocks = static_cast<std::size_t>(c.size());
  Floats one(kMappedCount, gathers ? sides.inputs : sides.outputs);
  Floats all(blocks * kMappedCount, gathers ? sides.outputs : sides.inputs);
  const RootBlocks of_root(all.data(), c.size(), sides.list);
  float* const mine = sides.in_place && is_root ? of_root.block(root) : one.data();
  if (gathers) fill(mine, c.rank(), 0);
  for (int r = 0; !gathers && is_root && r < c.size(); ++r) fill(of_root.block(r), root, r);

  Call call;
  call.collective = collective;
  call.dtype = DataType::kFloat32;
  call.count = kMappedCount;
  call.root = root;
  const Blocks single = Blocks::single(mine, kMappedCount * sizeof(float));
  const Blocks many = is_root ? of_root.blocks() : Blocks{};
  call.input = gathers ? single : many;
  call.output = gathers ? many : single;
  c.reset_metrics();
  c.run(call);

  for (int r = 0; r < c.size(); ++r) {
    if (gathers ? !is_root : r != c.rank()) continue;
    const float* const got = gathers ? of_root.block(r) : mine;
    for (std::size_t i = 0; i < kMappedCount; ++i) {
      const float want = gathers ? mapped_value(r, 0, i) : mapped_value(root, r, i);
      if (got[i] == want) continue;
      ADD_FAILURE() << "rank " << c.rank() << ", root " << root << ", block " << r << ", element " << i << ": "
                    << got[i] << " for " << want;
      break;
    }
  }
  const Metrics metrics = c.metrics();
  return metrics.rows.size() == 1 ? std::string(metrics.rows[0].algorithm) : "not one call";
}

void run_every_root(Collective collective, const MappedSides& sides, const std::string& algorithm) {
  for (const int ranks : {2, 3, 4}) {
    World world;
    world.size = ranks;
    run_ranks(world, [&](Communicator& c) {
      for (int root = 0; root < c.size(); ++root) {
        EXPECT_EQ(run_rooted(c, collective, sides, root), algorithm) << "rank " << c.rank() << " of " << ranks;
      }
    });
  }
}

TEST(MappedTensors, OfEitherSideAreGatheredWithoutStaging) {
  run_every_root(Collective::kGather, {.inputs = true, .outputs = true}, "mapped");
  run_every_root(Collective::kGather, {.inputs = true, .outputs = true, .in_place = true}, "mapped");
  run_every_root(Collective::kGather, {.outputs = true}, "mapped");
  run_every_root(Collective::kGather, {.inputs = true}, "mapped");
  run_every_root(Collective::kGather, {.inputs = true, .outputs = true, .list = true}, "mapped");
  run_every_root(Collective::kGather, {.inputs = true, .outputs = true, .list = true, .in_place = true}, "mapped");
  run_every_root(Collective::kGather, {.outputs = true, .list = true}, "staged");
  run_every_root(Collective::kGather, {}, "staged");
}

TEST(MappedTensors, OfEitherSideAreScatteredWithoutStaging) {
  run_every_root(Collective::kScatter, {.inputs = true, .outputs = true}, "mapped");
  run_every_root(Collective::kScatter, {.inputs = true, .outputs = true, .in_place = true}, "mapped");
  run_every_root(Collective::kScatter, {.outputs = true}, "mapped");
  run_every_root(Collective::kScatter, {.inputs = true}, "mapped");
  run_every_root(Collective::kScatter, {.inputs = true, .outputs = true, .list = true}, "mapped");
  run_every_root(Collective::kScatter, {.inputs = true, .outputs = true, .list = true, .in_place = true}, "mapped");
  run_every_root(Collective::kScatter, {.inputs = true, .list = true}, "staged");
  run_every_root(Collective::kScatter, {}, "staged");
}

std::string run_all_reduce(Communicator& c, float* x) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kFloat32;
  call.count = kMappedCount;
  call.input = call.output = Blocks::single(x, kMappedCount * sizeof(float));
  c.reset_metrics();
  c.run(call);
  const Metrics metrics = c.metrics();
  return metrics.rows.size() == 1 ? std::string(metrics.rows[0].algorithm) : "not one call";
}

// What a call has lent that failed is where it was for its owner alone. The others still map the arena that it was in.
TEST(MappedTensors, OfACallThatFailedAreStagedInASmallerGroup) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&store, r] {
      CommunicatorOptions options;
      options.timeout = std::chrono::milliseconds(20'000);
      options.config.log_level = "error";
      const auto c = Communicator::create(store, "whole", r, 3, options);
      Floats x(kMappedCount, true);
      std::fill_n(x.data(), kMappedCount, 1.0F);
      EXPECT_EQ(run_all_reduce(*c, x.data()), "mapped");
      if (r == 2) return;
      EXPECT_NE(std::string(error_of([&] { run_all_reduce(*c, x.data()); }).what()), "");
      const auto smaller = c->shrink(store, "smaller", std::chrono::seconds(4), nullptr);
      std::fill_n(x.data(), kMappedCount, static_cast<float>(r + 1));
      EXPECT_EQ(process_arena()->offset_of(x.data(), kMappedCount * sizeof(float)), kNotMapped);
      EXPECT_EQ(run_all_reduce(*smaller, x.data()), "staged");
      EXPECT_EQ(std::count(x.data(), x.data() + kMappedCount, 3.0F), static_cast<std::ptrdiff_t>(kMappedCount));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A list counts as not mapped, also where some of its tensors lie in the arena, or the first does.
TEST(MappedTensors, OfAListSomeMayLieElsewhere) {
  constexpr std::size_t kBytes = kMappedCount * sizeof(float);
  World world;
  world.size = 3;
  run_ranks(world, [](Communicator& c) {
    for (const Collective collective : {Collective::kAllGather, Collective::kGather}) {
      for (const unsigned mapped : {0b001U, 0b010U, 0b110U, 0b111U}) {
        for (const bool input_mapped : {false, true}) {
          const int root = collective == Collective::kGather ? 1 : -1;
          const bool writes = root < 0 || c.rank() == root;
          std::deque<Floats> list;
          std::vector<void*> pointers;
          for (unsigned r = 0; r < 3; ++r) {
            pointers.push_back(list.emplace_back(kMappedCount, (mapped >> r & 1U) != 0).data());
          }
          Floats input(kMappedCount, input_mapped);
          fill(input.data(), c.rank(), 0);
          Call call;
          call.collective = collective;
          call.dtype = DataType::kFloat32;
          call.count = kMappedCount;
          call.root = root;
          call.input = Blocks::single(input.data(), kBytes);
          if (writes) {
            call.output = Blocks::single(nullptr, kBytes);
            call.output.pointers = pointers.data();
          }
          c.reset_metrics();
          c.run(call);
          for (int r = 0; writes && r < 3; ++r) {
            const auto* const got = static_cast<const float*>(pointers[static_cast<std::size_t>(r)]);
            std::size_t right = 0;
            while (right < kMappedCount && got[right] == mapped_value(r, 0, right)) ++right;
            EXPECT_EQ(right, kMappedCount) << "of rank " << r << ", mapped " << mapped;
          }
          const Metrics metrics = c.metrics();
          ASSERT_EQ(metrics.rows.size(), 1U);
          EXPECT_EQ(metrics.rows[0].algorithm, input_mapped ? "mapped" : "staged") << "mapped " << mapped;
        }
      }
    }
  });
}

// On a rank that has no tensor of one side, too.
TEST(MappedTensors, OfGatherAndScatterAreExplainedAsTheyRun) {
  World world;
  world.size = 2;
  run_ranks(world, [](Communicator& c) {
    for (const Collective collective : {Collective::kGather, Collective::kScatter}) {
      for (const bool mapped : {false, true}) {
        Floats one(kMappedCount, mapped), all(2 * kMappedCount, mapped);
        const Blocks single = Blocks::single(one.data(), kMappedCount * sizeof(float));
        const Blocks many = c.rank() == 1 ? Blocks::single(all.data(), kMappedCount * sizeof(float)) : Blocks{};
        Call call;
        call.collective = collective;
        call.dtype = DataType::kFloat32;
        call.count = kMappedCount;
        call.root = 1;
        call.input = collective == Collective::kGather ? single : many;
        call.output = collective == Collective::kGather ? many : single;
        const std::string text = c.explain(call);
        EXPECT_NE(text.find(mapped ? "-> mapped: " : "-> staged: "), std::string::npos) << text;
      }
    }
  });
}

}  // namespace
}  // namespace tutti::test
