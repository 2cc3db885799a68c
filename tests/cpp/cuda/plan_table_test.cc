// Which plan a call on GPUs takes, and how ranks agree on the plans that they have. Offers are made for several ranks
// and compared as communicators do; nothing here runs.
#include "communicator/cuda/plan_table.h"

#include <gtest/gtest.h>

#include <new>

#include "algorithm/user/algorithm_source.h"
#include "channel/cuda/device_world.h"
#include "executor/executor_plans.h"
#include "plan/writer.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

constexpr int kSize = 2;

// With room for so many blocks, of whatever threads.
OfferingRank offering(int rank, int blocks = 64) {
  return {rank, kSize, [blocks](int) { return PlanRoom{blocks, ""}; }, {}};
}

UserAlgorithmPtr made(plan::Plan plan, const std::string& name) {
  plan.name = name;
  return plan_algorithm(plan::write_plan(plan), name + ".json");
}

UserAlgorithmPtr with_sizes(const UserAlgorithmPtr& algorithm, std::uint64_t least, std::uint64_t most) {
  AlgorithmLimits limits = algorithm->limits();
  limits.min_bytes = least;
  limits.max_bytes = most;
  return algorithm->with_limits(limits);
}

CallShape sum_of(std::size_t bytes) {
  CallShape shape;
  shape.collective = Collective::kAllReduce;
  shape.dtype = DataType::kFloat32;
  shape.bytes = bytes;
  shape.ranks = kSize;
  return shape;
}

PlanOffer tried(const std::vector<UserAlgorithmPtr>& algorithms, const PlanTable* table, const OfferingRank& rank,
                bool chooses) {
  PlanOffer offer(algorithms, table, rank, chooses);
  offer.try_new();
  return offer;
}

// The tables of both ranks after they have offered the same.
struct Tables {
  PlanTable tables[kSize];

  std::vector<std::uint64_t> offer(const std::vector<UserAlgorithmPtr>& algorithms, bool chooses = false) {
    std::vector<PlanOffer> offers;
    std::vector<std::string> texts;
    for (int r = 0; r < kSize; ++r) {
      offers.emplace_back(algorithms, &tables[r], offering(r), chooses).try_new();
      texts.push_back(offers.back().text());
    }
    for (int r = 0; r < kSize; ++r) {
      offers[static_cast<std::size_t>(r)].agree(texts);
      tables[r].add(offers[static_cast<std::size_t>(r)].take_new());
    }
    return offers.front().identities();
  }
};

std::string name_of(const TablePlan* plan) { return plan != nullptr ? plan->name : ""; }

template <typename F>
Error error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorKind::kInternal, ""};
}

TEST(PlanTable, TheProgramsPlansComeBeforeThoseOfFilesInTheirOrder) {
  const auto ring = made(plan::ring_all_reduce(kSize), "ring");
  const auto small = with_sizes(made(plan::packet_two_step_all_reduce(kSize), "small"), 1, 1000);
  const auto file = made(plan::two_step_all_reduce(kSize), "file");
  Tables both;
  const auto files = both.offer({file});
  const auto given = both.offer({small, ring});
  for (PlanTable& table : both.tables) {
    table.set_files(files);
    EXPECT_EQ(name_of(table.first_fit(sum_of(4000))), "plan:file");
    table.install(given, nullptr);
    EXPECT_EQ(name_of(table.first_fit(sum_of(1000))), "plan:small");
    EXPECT_EQ(name_of(table.first_fit(sum_of(1004))), "plan:ring");
    const std::string text = table.explain(sum_of(1004), table.first_fit(sum_of(1004)));
    EXPECT_EQ(text,
              "   plan:small: not here: is for messages of other sizes\n"
              "-> plan:ring: runs the plan of ring.json\n"
              "   plan:file: would work; another is preferred\n");
    table.install({}, nullptr);
    EXPECT_EQ(name_of(table.first_fit(sum_of(1000))), "plan:file");
  }
}

TEST(PlanTable, AFunctionsAnswerCountsWhereItFitsAndElseTheFiles) {
  const auto ring = made(plan::ring_all_reduce(kSize), "ring"), file = made(plan::two_step_all_reduce(kSize), "file");
  Tables both;
  const auto files = both.offer({file}), given = both.offer({ring}, true);
  PlanTable& table = both.tables[1];
  table.set_files(files);
  table.install(given, [&](const AlgorithmRequest&) { return ring; });
  ASSERT_TRUE(table.chooser());
  EXPECT_EQ(name_of(table.answered(table.chooser()({})->identity(), sum_of(1000))), "plan:ring");
  EXPECT_EQ(table.answered(0, sum_of(1000)), nullptr);
  CallShape product = sum_of(1000);
  product.op = ReduceOp::kPremulSum;  // no plan on GPUs multiplies
  EXPECT_EQ(table.answered(ring->identity(), product), nullptr);
  EXPECT_EQ(name_of(table.first_fit(sum_of(1000))), "plan:file");  // not the ring, of which the function decides
  EXPECT_NE(table.explain(sum_of(1000), nullptr).find("plan:ring: would work; the selector function decides"),
            std::string::npos);
}

// A forced kernel comes before all plans but the one that a call names, and the program's function is not asked.
TEST(PlanTable, AForcedKernelComesBehindWhatTheCallNamesOnly) {
  const auto ring = made(plan::ring_all_reduce(kSize), "ring");
  Tables both;
  const auto given = both.offer({ring}, true);
  PlanTable& table = both.tables[0];
  Call call;
  call.collective = Collective::kAllReduce;
  EXPECT_EQ(plan_chooser_of(call, false, nullptr), PlanChooser::kNobody);
  EXPECT_EQ(plan_chooser_of(call, false, &table), PlanChooser::kOrder);
  EXPECT_EQ(plan_chooser_of(call, true, &table), PlanChooser::kNobody);
  table.install(given, [](const AlgorithmRequest&) { return nullptr; });
  EXPECT_EQ(plan_chooser_of(call, false, &table), PlanChooser::kFunction);
  EXPECT_EQ(plan_chooser_of(call, true, &table), PlanChooser::kNobody);
  Call uneven = call, barrier = call;
  uneven.uneven = true;
  barrier.collective = Collective::kBarrier;
  EXPECT_EQ(plan_chooser_of(uneven, false, &table), PlanChooser::kNobody);
  EXPECT_EQ(plan_chooser_of(barrier, false, &table), PlanChooser::kNobody);
  AlgorithmChoice named;
  named.algorithm = ring;
  call.choice = &named;
  EXPECT_EQ(plan_chooser_of(call, true, &table), PlanChooser::kCall);
  EXPECT_EQ(plan_chooser_of(call, false, nullptr), PlanChooser::kCall);
}

// Graphs keep tables: what a program has given is let go when the communicator gives it back.
TEST(PlanTable, KeepsNothingOfTheProgram) {
  auto ring = made(plan::ring_all_reduce(kSize), "ring");
  const std::weak_ptr<const UserAlgorithm> held = ring;
  const auto function = std::make_shared<int>();
  Tables both;
  const auto given = both.offer({ring}, true);
  both.tables[0].install(given, [function](const AlgorithmRequest&) { return nullptr; });
  ring.reset();
  EXPECT_TRUE(held.expired());
  EXPECT_EQ(function.use_count(), 2);
  EXPECT_TRUE(both.tables[0].install({}, nullptr)) << "is returned, to go where no mutex is held";
  EXPECT_EQ(function.use_count(), 1);
}

TEST(PlanTable, ANamedAlgorithmRunsOrSaysWhyNot) {
  const auto ring = made(plan::ring_all_reduce(kSize), "ring"), late = made(plan::two_step_all_reduce(kSize), "late");
  const auto three = made(plan::ring_all_reduce(3), "three"), gather = made(plan::port_all_gather(kSize), "gather");
  const auto slots = library_algorithm(Collective::kAllReduce, "slots");
  Tables both;
  both.offer({ring, gather});
  const PlanTable& table = both.tables[0];
  EXPECT_EQ(table.named(*ring, sum_of(1000)).name, "plan:ring");
  struct Refused {
    UserAlgorithmPtr algorithm;
    ErrorKind kind;
    const char* text;
  };
  for (const Refused& r :
       {Refused{gather, ErrorKind::kInvalidArgument, "\"gather\" computes all_gather, not all_reduce"},
        Refused{slots, ErrorKind::kUnsupported, "\"slots\" computes in main memory"},
        Refused{three, ErrorKind::kInvalidArgument, "is for other ranks"},
        Refused{late, ErrorKind::kInvalidArgument, "has no memory on these GPUs yet"}}) {
    const Error error = error_of([&] { static_cast<void>(table.named(*r.algorithm, sum_of(1000))); });
    EXPECT_EQ(error.kind(), r.kind);
    EXPECT_NE(std::string(error.what()).find(r.text), std::string::npos) << error.what();
  }
}

TEST(PlanTable, ThePlanOfAFileIsTheOneThatAProgramGives) {
  const auto ring = made(plan::ring_all_reduce(kSize), "ring");
  const auto* source = dynamic_cast<const AlgorithmSource*>(ring.get());
  const auto again = plan_algorithm(*source->plan_file());
  EXPECT_EQ(again->identity(), ring->identity());
  Tables both;
  both.offer({ring});
  EXPECT_EQ(tried({again}, &both.tables[0], offering(0), false).take_new().size(), 0U);
}

TEST(PlanTable, RanksThatOfferOthersAllRaise) {
  const auto ring = made(plan::ring_all_reduce(kSize), "ring"), other = made(plan::two_step_all_reduce(kSize), "other");
  const auto text_of = [&](const std::vector<UserAlgorithmPtr>& list, bool chooses) {
    return tried(list, nullptr, offering(1), chooses).text();
  };
  PlanOffer mine = tried({ring}, nullptr, offering(0), false);
  const Error named = error_of([&] { mine.agree({mine.text(), text_of({other}, false)}); });
  EXPECT_EQ(named.kind(), ErrorKind::kMismatch);
  EXPECT_NE(std::string(named.what()).find("rank 0 ring ("), std::string::npos) << named.what();
  EXPECT_NE(std::string(named.what()).find("rank 1 other ("), std::string::npos) << named.what();
  const Error fewer = error_of([&] { mine.agree({mine.text(), text_of({}, false)}); });
  EXPECT_NE(std::string(fewer.what()).find("rank 1 nothing"), std::string::npos) << fewer.what();
  const Error chosen = error_of([&] { mine.agree({mine.text(), text_of({ring}, true)}); });
  EXPECT_NE(std::string(chosen.what()).find("rank 1 by a function"), std::string::npos) << chosen.what();
}

// Of what one rank alone cannot place, the others are told, and leave it too.
TEST(PlanTable, WhatOneRankCannotRunNoneDoes) {
  const auto two_step = made(plan::two_step_all_reduce(kSize), "two_step");
  PlanOffer here = tried({two_step}, nullptr, offering(0), false),
            there = tried({two_step}, nullptr, offering(1, 1), false);
  const std::vector<std::string> texts{here.text(), there.text()};
  here.agree(texts);
  there.agree(texts);
  PlanTable mine, theirs;
  mine.add(here.take_new());
  theirs.add(there.take_new());
  for (const auto& [table, text] : {std::pair(&mine, "rank 1 of 2 cannot run it: plan \"two_step\" on GPUs: its 3 "),
                                    std::pair(&theirs, "plan \"two_step\" on GPUs: its 3 thread blocks")}) {
    const TablePlan* const plan = table->find(two_step->identity());
    ASSERT_NE(plan, nullptr);
    EXPECT_EQ(plan->device, nullptr);
    EXPECT_EQ(plan->unfit.find(text), 0U) << plan->unfit;
    table->install({two_step->identity()}, nullptr);
    EXPECT_EQ(table->first_fit(sum_of(1000)), nullptr);
    EXPECT_EQ(error_of([&] { static_cast<void>(table->named(*two_step, sum_of(1000))); }).kind(),
              ErrorKind::kUnsupported);
  }
}

// Many plans share the memory that few have to themselves.
TEST(PlanTable, ManyPlansTogetherHaveABound) {
  std::vector<UserAlgorithmPtr> many;
  for (int i = 0; i < 40; ++i) many.push_back(made(plan::ring_all_reduce(kSize), "ring" + std::to_string(i)));
  std::size_t total = 0;
  for (const auto& plan : tried(many, nullptr, offering(0), false).take_new()) {
    ASSERT_NE(plan->device, nullptr) << plan->unfit;
    total += plan->device->memory_bytes();
  }
  EXPECT_LE(total, std::size_t{256} << 20);
  EXPECT_GT(total, std::size_t{200} << 20);
  const auto alone = tried({many.front()}, nullptr, offering(0), false).take_new();
  EXPECT_GT(alone.front()->device->memory_bytes(), std::size_t{12} << 20);
}

// A plug-in's kernel as the library knows it.
class OwnKernel final : public AlgorithmSource {
 public:
  explicit OwnKernel(std::string name, std::uint64_t scratch_bytes = 4096)
      : AlgorithmSource({}), name_(std::move(name)) {
    kernel_.function = "create";
    kernel_.collective = Collective::kAllReduce;
    kernel_.scratch_bytes = scratch_bytes;
    kernel_.refusal = [](const char* dtype, const char*, std::uint64_t, std::int32_t) -> const char* {
      return std::string_view(dtype) == "f32" ? nullptr : "is for f32";
    };
    kernel_.source = std::make_shared<const KernelSource>(KernelSource{"own.cu", "", {}, {}});
  }
  Kind kind() const noexcept override { return Kind::kKernel; }
  const std::string& name() const noexcept override { return name_; }
  const std::string& collective_name() const noexcept override { return collective_name_; }
  std::optional<Collective> collective() const noexcept override { return Collective::kAllReduce; }
  UserAlgorithmPtr with_limits(const AlgorithmLimits&) const override { return nullptr; }
  std::shared_ptr<const Algorithm> make(const GroupPlace&) const override { return nullptr; }
  const KernelAlgorithm* kernel() const noexcept override { return &kernel_; }

 protected:
  std::uint64_t content() const noexcept override { return std::hash<std::string>()(name_); }

 private:
  const std::string name_, collective_name_ = "allreduce";
  KernelAlgorithm kernel_;
};

// Beside plans, in their order; each rank compiles it.
TEST(PlanTable, KernelsServeCallsAsPlansDo) {
  const auto kernel = std::make_shared<const OwnKernel>("mine");
  const auto ring = made(plan::ring_all_reduce(kSize), "ring");
  PlanTable tables[kSize];
  std::vector<PlanOffer> offers;
  std::vector<std::string> texts;
  int compiled = 0;
  for (int r = 0; r < kSize; ++r) {
    OfferingRank rank = offering(r);
    rank.load_kernel = [&compiled](const KernelAlgorithm&) {
      ++compiled;
      return std::make_shared<const LoadedCode>();
    };
    offers.emplace_back(std::vector<UserAlgorithmPtr>{kernel, ring}, &tables[r], rank, false).try_new();
    texts.push_back(offers.back().text());
  }
  EXPECT_EQ(compiled, kSize);
  for (std::size_t r = 0; r < kSize; ++r) {
    offers[r].agree(texts);
    tables[r].add(offers[r].take_new());
    static_cast<void>(tables[r].install(offers[r].identities(), nullptr));
    EXPECT_EQ(name_of(tables[r].first_fit(sum_of(4000))), "native:mine");
    EXPECT_EQ(tables[r].named(*kernel, sum_of(4000)).short_name(), "mine");
    CallShape other = sum_of(4000);
    other.dtype = DataType::kFloat16;
    EXPECT_EQ(name_of(tables[r].first_fit(other)), "plan:ring");
    EXPECT_NE(
        std::string(error_of([&] { static_cast<void>(tables[r].named(*kernel, other)); }).what()).find("is for f32"),
        std::string::npos);
    const std::string text = tables[r].explain(sum_of(4000), tables[r].first_fit(sum_of(4000)));
    EXPECT_NE(text.find("-> native:mine: runs the kernel of own.cu"), std::string::npos) << text;
  }
}

// What one rank's compiler refuses no rank runs, and all know what it has said.
TEST(PlanTable, AKernelThatOneRankCannotCompileIsUnfitForAll) {
  const auto kernel = std::make_shared<const OwnKernel>("mine"),
             greedy = std::make_shared<const OwnKernel>("greedy", 1UL << 40);
  std::vector<PlanOffer> offers;
  std::vector<std::string> texts;
  for (int r = 0; r < kSize; ++r) {
    OfferingRank rank = offering(r);
    rank.load_kernel = [r](const KernelAlgorithm&) -> std::shared_ptr<const LoadedCode> {
      if (r == 1) throw_error(ErrorKind::kUnsupported, "own.cu(7): error: no such thing" + std::string(100'000, '.'));
      return std::make_shared<const LoadedCode>();
    };
    offers.emplace_back(std::vector<UserAlgorithmPtr>{kernel, greedy}, nullptr, rank, false).try_new();
    texts.push_back(offers.back().text());
    EXPECT_LT(texts.back().size(), 10'000u);
  }
  for (std::size_t r = 0; r < kSize; ++r) {
    offers[r].agree(texts);
    const auto plans = offers[r].take_new();
    const std::string said = r == 1 ? "own.cu(7)" : "rank 1 of 2 cannot run it: own.cu(7)";
    EXPECT_TRUE(plans[0]->unfit.starts_with(said)) << plans[0]->unfit;
    EXPECT_EQ(plans[0]->kernel_code, nullptr);
    EXPECT_NE(plans[1]->unfit.find("wants 1099511627776 bytes of scratch, and an algorithm has at most 16777216"),
              std::string::npos)
        << plans[1]->unfit;
  }
}

// A rank that has no memory to load a kernel tells the others, who would else wait for it.
TEST(PlanTable, WantOfMemoryMakesAKernelUnfitForAll) {
  const auto kernel = std::make_shared<const OwnKernel>("mine");
  std::vector<PlanOffer> offers;
  std::vector<std::string> texts;
  for (int r = 0; r < kSize; ++r) {
    OfferingRank rank = offering(r);
    rank.load_kernel = [r](const KernelAlgorithm&) -> std::shared_ptr<const LoadedCode> {
      if (r == 0) throw std::bad_alloc();
      return std::make_shared<const LoadedCode>();
    };
    offers.emplace_back(std::vector<UserAlgorithmPtr>{kernel}, nullptr, rank, false).try_new();
    texts.push_back(offers.back().text());
  }
  for (std::size_t r = 0; r < kSize; ++r) {
    offers[r].agree(texts);
    const auto plans = offers[r].take_new();
    EXPECT_EQ(plans[0]->unfit, r == 0 ? "no memory left" : "rank 0 of 2 cannot run it: no memory left");
    EXPECT_EQ(plans[0]->kernel_code, nullptr);
  }
}

// What comes behind that, plans' memory on the GPU, is there on all ranks or said by one for all.
TEST(PlanTable, ARankThatCannotTakeThePlansSaysSoToAll) {
  EXPECT_EQ(problem_of([] {}), "");
  EXPECT_EQ(problem_of([] { throw std::bad_alloc(); }), "no memory left");
  EXPECT_EQ(problem_of([] { throw_error(ErrorKind::kInternal, "cudaMalloc: out of memory"); }),
            "cudaMalloc: out of memory");
  require_ready({"", "", ""});
  const Error error = error_of([] { require_ready({"", "no memory left", "another reason"}); });
  EXPECT_EQ(error.kind(), ErrorKind::kExhausted);
  EXPECT_NE(std::string(error.what()).find("rank 1 of 3 cannot take them: no memory left"), std::string::npos)
      << error.what();
}

// The bound of a plan's blocks, and the numbers that it comes from.
TEST(PlanRoom, IsWhatTheGpuHoldsForEachRankOnIt) {
  EXPECT_EQ(room_of(132, 1, 544, 1, kMostPlanBlocks).blocks, 132);
  const PlanRoom shared = room_of(132, 1, 544, 4, kMostPlanBlocks);
  EXPECT_EQ(shared.blocks, 33);
  EXPECT_EQ(
      shared.why,
      "the GPU has room for 33 of them: 132 multiprocessors with 1 block of 544 threads each, which 4 ranks share");
  EXPECT_EQ(room_of(132, 5, 96, 4, kMostPlanBlocks).blocks, 165);
  EXPECT_EQ(room_of(132, 5, 96, 1, kMostPlanBlocks).why, "a kernel has at most 256 at once");
  const PlanRoom wanted = room_of(132, 1, 544, 1, 8);
  EXPECT_EQ(wanted.blocks, 8);
  EXPECT_EQ(wanted.why, "a kernel of this group has at most 8 at once (TUTTI_CUDA_MAX_BLOCKS)");
  EXPECT_EQ(room_of(4, 1, 544, 8, kMostPlanBlocks).blocks, 0);
}

// Plans of few threads have more blocks: each offer asks for its own.
TEST(PlanRoom, IsAskedForThePlansThreads) {
  plan::Plan narrow = plan::two_step_all_reduce(kSize), wide = narrow;
  narrow.threads_per_block = 64;
  wide.threads_per_block = 1024;
  const auto narrow_plan = made(narrow, "narrow"), wide_plan = made(wide, "wide");
  OfferingRank small = offering(0);
  small.room_for = [](int workers) { return room_of(2, workers == 64 ? 5 : 1, workers, 1, kMostPlanBlocks); };
  PlanOffer offer = tried({narrow_plan, wide_plan}, nullptr, small, false);
  const auto plans = offer.take_new();
  EXPECT_EQ(plans[0]->unfit, "");
  EXPECT_EQ(plans[1]->unfit,
            "plan \"wide\" on GPUs: its 3 thread blocks wait for each other, and the GPU has room for 2 of them: 2 "
            "multiprocessors with 1 block of 512 threads each");
}

}  // namespace
}  // namespace tutti::cuda
