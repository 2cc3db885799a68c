// Plans on GPUs: the results of collectives, graphs, several streams, faults.
#include <functional>
#include <optional>

#include "cuda/gpu/plan_ranks.h"
#include "plan/structure.h"

namespace tutti::cuda::test {
namespace {

using plan::Plan;

TEST(PlansOnGpu, EveryOperation) {
  for (const int size : {2, 3}) {
    for (const auto& [name, shared] : plan::plans_of_every_operation(size, kUnit)) {
      const Plan& plan = *shared;
      SCOPED_TRACE(plan.name);
      const PlanFolder folder(plan);
      run_gpu_ranks(world_of(folder, size), [&](Rank& rank) {
        std::uint64_t seed = 0;
        for (const std::size_t count :
             {std::size_t{1}, std::size_t{100}, std::size_t{3000}, std::size_t{70'001}, kClustered}) {
          for (const bool in_place : {false, true}) {
            run_by_plan(rank, shape_of(plan, count, in_place), ++seed, plan);
          }
        }
      });
    }
  }
}

TEST(PlansOnGpu, TypesAndOperations) {
  Plan plan = plan::packet_two_step_all_reduce(2);
  plan.name = "packets";
  plan.reduce = plan::common_reduction(plan);
  const PlanFolder folder(plan);
  run_gpu_ranks(world_of(folder, 2), [&](Rank& rank) {
    std::uint64_t seed = 0;
    for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16, DataType::kFloat32, DataType::kFloat64,
                                 DataType::kInt8, DataType::kInt64, DataType::kFloat8E4M3fn, DataType::kComplex64}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        if (op == ReduceOp::kAvg && dtype == DataType::kFloat8E4M3fn) continue;  // rounds twice
        CaseShape shape = shape_of(plan, 1003, ++seed % 2 == 0);
        shape.dtype = dtype;
        shape.op = op;
        run_by_plan(rank, shape, seed, plan);
      }
    }
  });
}

// Replays with other data, eager calls of another size and of no plan between them, on two streams.
TEST(PlansOnGpu, GraphsAndEagerCalls) {
  for (Plan plan : {plan::packet_two_step_all_reduce(2), plan::ring_all_reduce(2), plan::two_step_all_reduce(2)}) {
    plan.name = "graphed";
    plan.reduce = plan::common_reduction(plan);
    const PlanFolder folder(plan);
    run_gpu_ranks(world_of(folder, 2), [&](Rank& rank) {
      const CaseShape shape = shape_of(plan, 5000, true), other = shape_of(plan, 777, false);
      CaseShape native = shape;
      native.collective = Collective::kAllGather;
      const SumsInAGraph graph(rank, shape);
      const std::size_t used = rank.used;
      for (std::uint64_t round = 1; round <= 10; ++round) {
        graph.replay(round);
        for (const CaseShape& eager : {other, native}) {
          rank.used = used;
          const CollectiveCase e(eager, rank.size, 100 + round);
          const cudaStream_t stream = round % 2 == 0 ? rank.stream : rank.other_stream;
          const Buffers buffers = prepare(rank, e, stream);
          rank.comm->run(buffers.call, stream);
          rank.comm->synchronize(stream);
          verify(rank, e, buffers, "eager");
        }
      }
    });
  }
}

UserAlgorithmPtr algorithm_of(Plan plan, const std::string& name) {
  plan.name = name;
  return plan_algorithm(plan::write_plan(plan), "a test");
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

// As on CPUs: what is given comes before the kernels, a function chooses where there is one, a call may name its own.
TEST(PlansOnGpu, WhatAProgramGivesAndNames) {
  const auto ring = algorithm_of(plan::ring_all_reduce(2), "ring");
  const auto packets = algorithm_of(plan::packet_two_step_all_reduce(2), "packets");
  const auto late = algorithm_of(plan::two_step_all_reduce(2), "late");
  const auto gather = algorithm_of(plan::port_all_gather(2), "gather");
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    CudaCommunicator& comm = *rank.comm;
    std::uint64_t seed = 0;
    const auto run = [&](const std::string& expected, const UserAlgorithmPtr& named = nullptr) {
      rank.used = 0;
      CaseShape shape;
      shape.collective = Collective::kAllReduce;
      shape.count = 5000;
      shape.in_place = ++seed % 2 == 0;
      const CollectiveCase c(shape, rank.size, seed);
      Buffers b = prepare(rank, c, rank.stream);
      const AlgorithmChoice choice{named, {}};
      if (named != nullptr) b.call.choice = &choice;
      const std::string taken = comm.explain(b.call);
      require(taken.starts_with(expected), "it takes " + taken + ", not " + expected);
      comm.run(b.call, rank.stream);
      comm.synchronize(rank.stream);
      verify(rank, c, b, taken);
    };
    run("ll");
    comm.set_algorithms({{gather, ring, packets}, nullptr});
    run("plan:ring");
    run("plan:packets", packets);
    require(error_of([&] { run("", late); }).find("has no memory on these GPUs yet") != std::string::npos, "late");
    comm.prepare(late);
    comm.prepare(late);  // nothing more to do, and nobody to wait for
    run("plan:late", late);
    require(error_of([&] { run("", gather); }).find("computes all_gather") != std::string::npos, "gather");
    bool ours = true;
    comm.set_algorithms({{ring, packets}, [&](const AlgorithmRequest& request) {
                           require(request.bytes == 20'000 && request.ranks == 2, "another request");
                           return ours ? packets : nullptr;
                         }});
    run("plan:packets");
    ours = false;
    run("ll");
    comm.set_algorithms({});
    run("ll");
    require(!comm.failure().has_value(), "it has failed");
  });
}

TEST(PlansOnGpu, RanksThatGiveOthersAllRaiseAndGoOn) {
  const auto ring = algorithm_of(plan::ring_all_reduce(2), "ring");
  const auto other = algorithm_of(plan::two_step_all_reduce(2), "other");
  run_gpu_ranks({}, [&](Rank& rank) {
    const auto& mine = rank.rank == 0 ? ring : other;
    const std::string text = error_of([&] { rank.comm->set_algorithms({{mine}, nullptr}); });
    require(text.find("rank 0 ring (") != std::string::npos && text.find("rank 1 other (") != std::string::npos, text);
    CaseShape shape;
    shape.collective = Collective::kAllReduce;
    shape.count = 1000;
    run_and_verify(rank, shape, 1);
  });
}

// Both are prepared; the call tells which of them it is.
TEST(PlansOnGpu, RanksThatNameOthersAreToldWhich) {
  const auto ring = algorithm_of(plan::ring_all_reduce(2), "ring");
  const auto other = algorithm_of(plan::two_step_all_reduce(2), "other");
  run_gpu_ranks({}, [&](Rank& rank) {
    for (const auto& algorithm : {ring, other}) rank.comm->prepare(algorithm);
    CaseShape shape;
    shape.collective = Collective::kAllReduce;
    shape.count = 1000;
    Buffers b = prepare(rank, CollectiveCase(shape, rank.size, 1), rank.stream);
    const AlgorithmChoice choice{rank.rank == 0 ? ring : other, {}};
    b.call.choice = &choice;
    rank.comm->run(b.call, rank.stream);
    const std::string text = error_of([&] { rank.comm->synchronize(rank.stream); });
    for (const char* const said : {"make different calls", "by ring (", "by other ("}) {
      require(text.find(said) != std::string::npos, text);
    }
    rank.barrier->arrive_and_wait();
  });
}

TEST(PlansOnGpu, AMissingRankIsATimeout) {
  for (const auto& [name, shared] : plan::plans_of_every_operation(2, kUnit)) {
    const Plan& plan = *shared;
    if (plan.collective != plan::PlanCollective::kAllReduce) continue;
    SCOPED_TRACE(plan.name);
    const PlanFolder folder(plan);
    for (const std::size_t count : {std::size_t{1000}, kClustered}) {
      run_gpu_ranks(world_of(folder, 2), [&](Rank& rank) {
        rank.comm->set_timeout(std::chrono::milliseconds(200));
        if (rank.rank == 0) {
          std::string text;
          try {
            run_and_verify(rank, shape_of(plan, count, false), 1);
          } catch (const Error& error) {
            text = error.what();
          }
          if (text.find("rank 1 did not come") == std::string::npos) {
            throw std::runtime_error("not the error that names the rank: " + text);
          }
        }
        rank.barrier->arrive_and_wait();
      });
    }
  }
}

// Ranks with other plans find it out when the group is made.
TEST(PlansOnGpu, OtherPlansAreAnErrorOfAllRanks) {
  const PlanFolder folder(*plan::plans_of_every_operation(2, kUnit).front().plan);
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  std::string texts[2];
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      CudaOptions options;
      options.device = r % device_count();
      options.timeout = std::chrono::seconds(10);
      options.settings().plan_path = r == 0 ? folder.path() : "";
      try {
        CudaCommunicator::create(store, "other plans", r, 2, options);
      } catch (const Error& error) {
        texts[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_NE(text.find("TUTTI_PLAN_PATH is "), std::string::npos) << text;
}

}  // namespace
}  // namespace tutti::cuda::test
