// The kernels of all_reduce_add_rms_norm on the host, with ranks and blocks as threads: every way for the data to move
// gives the bits of the reference, beside other collectives on the same slots.
#include <algorithm>
#include <random>

#include "algorithm/cuda/add_rms_norm.cuh"
#include "algorithm/cuda/plan_add_rms_norm.h"
#include "cuda/norm_case.h"
#include "cuda/serving_case.h"
#include "tutti/error.h"

namespace tutti::cuda::test {
namespace {

constexpr const char* kAlgorithms[] = {"ll_one_shot", "ll128_one_shot", "ll_two_shot", "ll128_two_shot",
                                       "bulk_two_shot"};

template <class Lanes>
void launch_as(const SerialTeam& team, const DeviceWorld& world, NormPattern pattern, const AddRmsNormArgs& args) {
  NormScratch scratch;
  switch (pattern) {
    case NormPattern::kLL:
      return add_rms_norm<NormPattern::kLL, Lanes>(team, world, args, scratch);
    case NormPattern::kLL128:
      return add_rms_norm<NormPattern::kLL128, Lanes>(team, world, args, scratch);
    case NormPattern::kLLTwoShot:
      return add_rms_norm<NormPattern::kLLTwoShot, Lanes>(team, world, args, scratch);
    case NormPattern::kLL128TwoShot:
      return add_rms_norm<NormPattern::kLL128TwoShot, Lanes>(team, world, args, scratch);
    case NormPattern::kBulk:
      return add_rms_norm<NormPattern::kBulk, Lanes>(team, world, args, scratch);
  }
}

void launch_norm(const SerialTeam& team, const DeviceWorld& world, DataType dtype, const NormPlan& plan) {
  if (dtype == DataType::kBfloat16) return launch_as<Bf16Lanes>(team, world, plan.pattern, plan.args);
  if (dtype == DataType::kFloat16) return launch_as<F16Lanes>(team, world, plan.pattern, plan.args);
  launch_as<F32Lanes>(team, world, plan.pattern, plan.args);
}

// One rank's memory for a case, between guards.
class NormMemory {
 public:
  NormMemory(const NormCase& c, int rank) : shape_(c.shape()) {
    const std::size_t shift = shape_.shift * size_of(shape_.dtype);
    for (const auto* content : {&c.input(rank), &c.residual(), &c.weight()}) {
      memory_.emplace_back(content->size() + shift + 2 * kGuard, std::byte{0x5a});
      if (!content->empty()) std::memcpy(memory_.back().data() + kGuard + shift, content->data(), content->size());
    }
    for (const std::size_t bytes : {c.residual().size(), c.expected_output().size()}) {
      memory_.emplace_back(bytes + shift + 2 * kGuard, std::byte{0x5a});
    }
    scales_.assign(shape_.rows + 1, -1.0f);
    scales_.back() = NormCase::kScale;
    const auto at = [&](std::size_t i) { return memory_[i].data() + kGuard + shift; };
    const bool same = shape_.output == NormOutput::kSame;
    buffers_ = {
        at(0),           at(1),         at(2), shape_.in_place ? at(1) : at(3), shape_.in_place && same ? at(0) : at(4),
        &scales_.back(), scales_.data()};
  }
  CudaAddRmsNorm call() const { return norm_call(shape_, buffers_); }

  void verify(const NormCase& c) const {
    const auto equal = [](const std::byte* got, const std::vector<std::byte>& want) {
      return want.empty() || std::memcmp(got, want.data(), want.size()) == 0;
    };
    ASSERT_TRUE(equal(buffers_.residual_output, c.expected_residual())) << "the residual's output";
    if (shape_.output == NormOutput::kFp8Rows) {
      for (std::size_t r = 0; r < shape_.rows; ++r) ASSERT_EQ(scales_[r], c.expected_scales()[r]) << "scale " << r;
    }
    ASSERT_TRUE(equal(buffers_.output, c.expected_output())) << "the output";
    for (const auto& bytes : memory_) {
      for (std::size_t i = 0; i < kGuard; ++i) {
        ASSERT_EQ(bytes[i], std::byte{0x5a}) << "before a tensor";
        ASSERT_EQ(bytes[bytes.size() - 1 - i], std::byte{0x5a}) << "after a tensor";
      }
    }
  }

 private:
  static constexpr std::size_t kGuard = 32;
  NormShape shape_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<float> scales_;
  NormBuffers buffers_{};
};

void run_norm(HostRanks& ranks, const NormShape& shape, std::uint64_t seed, const char* algorithm, int most_blocks) {
  const int size = ranks.size();
  const NormCase c(shape, size, seed);
  std::vector<NormMemory> memory;
  std::vector<NormPlan> plans;
  for (int r = 0; r < size; ++r) memory.emplace_back(c, r);
  for (int r = 0; r < size; ++r) {
    const CudaAddRmsNorm call = memory[static_cast<std::size_t>(r)].call();
    check_add_rms_norm(call);
    plans.push_back(plan_add_rms_norm(call, size, most_blocks, true, parse_forced(algorithm)));
    plans.back().args.fingerprint = 99;
  }
  SCOPED_TRACE(describe(shape, size) + " " + to_string(plans[0]) + " seed " + std::to_string(seed));
  ranks.run([&](int) { return plans[0].blocks; },
            [&](int r, const SerialTeam& team) {
              launch_norm(team, ranks.world(r), shape.dtype, plans[static_cast<std::size_t>(r)]);
            });
  for (int r = 0; r < size; ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    ASSERT_EQ(ranks.host(r).code, 0u) << "failed";
    memory[static_cast<std::size_t>(r)].verify(c);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Norm, EveryKernelGivesTheBitsOfTheReference) {
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8}) {
    HostRanks ranks(size);
    std::uint64_t seed = static_cast<std::uint64_t>(size) * 1000;
    for (const char* algorithm : kAlgorithms) {
      for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16, DataType::kFloat32}) {
        for (const auto& [rows, hidden] : {std::pair{1, 8}, {3, 264}, {7, 1032}, {17, 64}}) {
          NormShape shape;
          shape.dtype = dtype;
          shape.rows = static_cast<std::size_t>(rows);
          shape.hidden = static_cast<std::size_t>(hidden);
          shape.output = static_cast<NormOutput>(seed % 3);
          shape.in_place = seed % 2 == 0;
          shape.shift = seed % 4 == 3 ? 1 : 0;
          ++seed;
          run_norm(ranks, shape, seed, algorithm, 1 + static_cast<int>(seed % 4));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// The hidden sizes of models: rows that fill slots to the last item, and rows of several pieces and batches.
TEST(Norm, LargeRows) {
  HostRanks ranks(2);
  std::uint64_t seed = 7;
  for (const std::size_t hidden : {4096, 5120, 8192, 16384}) {
    for (const std::size_t rows : {1, 5, 12}) {
      for (const char* algorithm : kAlgorithms) {
        NormShape shape;
        shape.hidden = hidden;
        shape.rows = rows;
        shape.output = static_cast<NormOutput>(++seed % 3);
        run_norm(ranks, shape, seed, algorithm, 4);
        if (HasFatalFailure()) return;
      }
    }
  }
  NormShape widest;
  widest.dtype = DataType::kFloat32;
  widest.hidden = kMostSegments * kSegmentBytes / 4;
  widest.rows = 2;
  widest.output = NormOutput::kFp8Rows;
  run_norm(ranks, widest, 1, "", 2);
}

// What the norm leaves in slots, other calls use next, and the other way round: across the period of the flags too.
TEST(Norm, SharesItsSlotsWithOtherCollectives) {
  constexpr const char* kOthers[] = {"ll_one_shot@3", "ll128_one_shot@2", "bulk_two_shot@4", "ll_two_shot@2"};
  std::mt19937_64 random(4243);
  HostRanks ranks(3, device::kFlagPeriod - 40);
  for (std::uint64_t i = 0; i < 120; ++i) {
    if (i % 2 == 0) {
      NormShape shape;
      shape.rows = random() % 9;
      shape.hidden = 8 * (1 + random() % 400);
      shape.output = static_cast<NormOutput>(random() % 3);
      shape.in_place = random() % 2 == 0;
      run_norm(ranks, shape, i, random() % 2 == 0 ? "" : kAlgorithms[random() % std::size(kAlgorithms)],
               1 + static_cast<int>(random() % 4));
    } else {
      run_other_all_reduce(ranks, 1 + random() % 3000, i, kOthers[random() % std::size(kOthers)]);
    }
    if (HasFatalFailure()) return;
  }
}

// Many calls without a pause between them.
TEST(Norm, CallsFollowEachOtherWithoutAPause) {
  constexpr int kSize = 3, kCalls = 100, kBlocks = 2;
  HostRanks ranks(kSize);
  std::vector<NormCase> cases;
  std::vector<std::vector<NormMemory>> memory;
  std::vector<std::vector<NormPlan>> plans;
  for (std::size_t i = 0; i < kCalls; ++i) {
    NormShape shape;
    shape.rows = 1 + i % 6;
    shape.hidden = 8 * (1 + i * i % 60);
    cases.emplace_back(shape, kSize, i);
    memory.emplace_back();
    plans.emplace_back();
    for (int r = 0; r < kSize; ++r) {
      memory[i].emplace_back(cases[i], r);
      plans[i].push_back(plan_add_rms_norm(memory[i].back().call(), kSize, kBlocks, true,
                                           parse_forced(kAlgorithms[(i + i / 7) % std::size(kAlgorithms)])));
      plans[i].back().args.fingerprint = 5;
      plans[i].back().args.piece_bytes = 64 * (1 + i % 4);  // bulk: many pieces
    }
  }
  ranks.run([](int) { return kBlocks; },
            [&](int r, const SerialTeam& thread) {
              for (const auto& of_call : plans) {
                const NormPlan& plan = of_call[static_cast<std::size_t>(r)];
                if (thread.block_index >= plan.blocks) continue;
                launch_norm(SerialTeam{thread.block_index, plan.blocks}, ranks.world(r), DataType::kBfloat16, plan);
              }
            });
  for (std::size_t i = 0; i < kCalls; ++i) {
    for (int r = 0; r < kSize; ++r) {
      SCOPED_TRACE("call " + std::to_string(i) + " rank " + std::to_string(r));
      memory[i][static_cast<std::size_t>(r)].verify(cases[i]);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Norm, AMissingRankIsATimeoutEverywhere) {
  NormShape shape;
  shape.rows = 4;
  const NormCase c(shape, 3, 1);
  for (const char* algorithm : kAlgorithms) {
    expect_a_missing_rank_found(algorithm, [&](const DeviceWorld& world, int r, const SerialTeam& team) {
      const NormMemory memory(c, r);
      NormPlan plan = plan_add_rms_norm(memory.call(), 3, 1, true, parse_forced(algorithm));
      plan.args.fingerprint = 5;
      launch_norm(team, world, shape.dtype, plan);
    });
  }
}

// The formula in double precision: the promised order is no excuse for a wrong one.
TEST(Norm, TheReferenceIsTheFormula) {
  NormShape shape;
  shape.dtype = DataType::kFloat32;
  shape.rows = 3;
  shape.hidden = 1000;
  const NormCase c(shape, 4, 9);
  for (std::size_t r = 0; r < shape.rows; ++r) {
    double squares = 0;
    for (std::size_t i = 0; i < shape.hidden; ++i) {
      const double s = reference::load<float>(c.expected_residual().data(), r * shape.hidden + i);
      squares += s * s;
    }
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(shape.hidden) + double{NormCase::kEpsilon});
    for (std::size_t i = 0; i < shape.hidden; ++i) {
      double s = reference::load<float>(c.residual().data(), r * shape.hidden + i);
      for (int p = 0; p < 4; ++p) s += reference::load<float>(c.input(p).data(), r * shape.hidden + i);
      const double want = s * inverse * reference::load<float>(c.weight().data(), i);
      EXPECT_NEAR(reference::load<float>(c.expected_output().data(), r * shape.hidden + i), want, 1e-5);
    }
  }
}

TEST(Norm, RefusesWhatItCannotDo) {
  const auto kind_of = [](const CudaAddRmsNorm& call) {
    try {
      check_add_rms_norm(call);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  std::vector<std::byte> memory(4096);
  const auto at = [&](std::size_t offset) { return memory.data() + offset; };
  CudaAddRmsNorm good;
  good.rows = 2;
  good.hidden = 64;
  good.input = at(0);
  good.residual = at(256);
  good.weight = at(512);
  good.residual_output = at(1024);
  good.output = at(1280);
  EXPECT_NO_THROW(check_add_rms_norm(good));
  const auto changed = [&](auto change) {
    CudaAddRmsNorm call = good;
    change(call);
    return kind_of(call);
  };
  EXPECT_EQ(changed([](auto& c) { c.hidden = 63; }), ErrorKind::kUnsupported);
  EXPECT_EQ(changed([](auto& c) { c.hidden = 0; }), ErrorKind::kUnsupported);
  EXPECT_EQ(changed([](auto& c) { c.dtype = DataType::kFloat64; }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(changed([](auto& c) { c.weight = nullptr; }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(changed([](auto& c) { c.fp8 = true; }), ErrorKind::kInvalidArgument);
  float scale = 1;
  EXPECT_EQ(changed([&](auto& c) { c.scale = &scale; }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(changed([&](auto& c) { c.output = at(16); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(changed([&](auto& c) { c.residual_output = at(272); }), ErrorKind::kInvalidArgument);
  EXPECT_NO_THROW(check_add_rms_norm([&] {
    CudaAddRmsNorm call = good;
    call.output = at(0);
    call.residual_output = at(256);
    return call;
  }()));
}

// The choice follows what all ranks know; a forced kernel that does not take the call is left out.
TEST(Norm, ChoosesBySize) {
  const auto chosen = [](std::size_t rows, std::size_t hidden, int size, bool ll128, const char* forced) {
    CudaAddRmsNorm call;
    call.rows = rows;
    call.hidden = hidden;
    return to_string(plan_add_rms_norm(call, size, kMaxBlocks, ll128, parse_forced(forced)));
  };
  EXPECT_EQ(chosen(1, 4096, 4, true, ""), "ll_one_shot@1x512");
  EXPECT_EQ(chosen(4, 8192, 2, true, ""), "ll_one_shot@4x512");
  EXPECT_EQ(chosen(8, 512, 8, true, ""), "ll_one_shot@8x64");
  EXPECT_EQ(chosen(16, 8192, 2, true, ""), "ll128_one_shot@16x512");
  EXPECT_EQ(chosen(64, 8192, 4, true, ""), "ll128_two_shot@16x512");
  EXPECT_EQ(chosen(64, 4096, 4, false, ""), "ll_two_shot@16x512");
  EXPECT_EQ(chosen(64, 8192, 4, false, ""), "bulk_two_shot@16x512");
  EXPECT_EQ(chosen(4096, 8192, 4, true, ""), "bulk_two_shot@64x512");
  EXPECT_EQ(chosen(1, 4096, 4, true, "ll_two_shot"), "ll_two_shot@1x512");
  EXPECT_EQ(chosen(4096, 8192, 4, true, "ll_two_shot"), "bulk_two_shot@64x512");
}

}  // namespace
}  // namespace tutti::cuda::test
