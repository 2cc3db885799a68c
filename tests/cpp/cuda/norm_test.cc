// The kernels of all_reduce_add_rms_norm on the host, with ranks and blocks as threads: one kernel, and every
// all-reduce with the norm behind it, give the bits of the reference, beside other collectives on the same slots.
#include <algorithm>
#include <random>

#include "algorithm/cuda/add_rms_norm.cuh"
#include "algorithm/cuda/norm_launch.h"
#include "cuda/norm_case.h"
#include "cuda/serving_case.h"
#include "support/sanitized.h"
#include "tutti/error.h"

namespace tutti::cuda::test {
namespace {

// The first is the one kernel, where it takes the rows.
constexpr const char* kNormAlgorithms[] = {"ll_one_shot", "ll128_one_shot", "bulk_one_shot",
                                           "ll_two_shot", "ll128_two_shot", "bulk_two_shot"};

template <class F>
void with_lanes(DataType dtype, F f) {
  if (dtype == DataType::kBfloat16) return f.template operator()<Bf16Lanes>();
  if (dtype == DataType::kFloat16) return f.template operator()<F16Lanes>();
  f.template operator()<F32Lanes>();
}

// One rank's call, as the communicator would launch it.
struct RankCall {
  AddRmsNorm call;
  NormLaunch launch;

  int blocks() const { return launch.choice.blocks; }
  // A block of the kernel that communicates.
  void communicate(const SerialTeam& team, const DeviceWorld& world, std::uint32_t fingerprint) const {
    if (!launch.one_kernel) return HostRanks::launch(team, world, sum_of(call, launch), launch.choice, fingerprint);
    AddRmsNormArgs args = launch.args;
    args.fingerprint = fingerprint;
    NormScratch scratch;
    with_lanes(call.dtype, [&]<class Lanes>() {
      if (launch.aligned) return add_rms_norm<true, Lanes>(team, world, args, scratch);
      add_rms_norm<false, Lanes>(team, world, args, scratch);
    });
  }
  // The second kernel, if there is one: all its blocks, the last one first, since their order is not promised.
  void normalise() const {
    for (int b = launch.blocks - 1; b >= 0 && !launch.one_kernel; --b) {
      const SerialTeam team{b, launch.blocks};
      NormScratch scratch;
      with_lanes(call.dtype, [&]<class Lanes>() {
        if (launch.vectors == 1) return add_and_norm<1, Lanes>(team, launch.args, scratch);
        if (launch.vectors == 2) return add_and_norm<2, Lanes>(team, launch.args, scratch);
        if (launch.vectors == 4) return add_and_norm<4, Lanes>(team, launch.args, scratch);
        add_and_norm<0, Lanes>(team, launch.args, scratch);
      });
    }
  }
};
RankCall rank_call(const AddRmsNorm& call, int size, int most_blocks, const char* algorithm) {
  check_add_rms_norm(call);
  return {call, make_norm_launch(call, size, most_blocks, true, parse_forced(algorithm))};
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
    for (const std::size_t bytes : {c.residual().size(), c.expected_output().size(), c.residual().size()}) {
      memory_.emplace_back(bytes + shift + 2 * kGuard, std::byte{0x5a});
    }
    scales_.assign(shape_.rows + 1, -1.0f);
    scales_.back() = NormCase::kScale;
    const auto at = [&](std::size_t i) { return memory_[i].data() + kGuard + shift; };
    const bool same = shape_.output == NormOutput::kSame;
    buffers_ = {at(0),
                at(1),
                at(2),
                shape_.in_place ? at(1) : at(3),
                shape_.in_place && same ? at(0) : at(4),
                &scales_.back(),
                scales_.data(),
                at(5)};
  }
  AddRmsNorm call() const { return norm_call(shape_, buffers_); }

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
  std::vector<RankCall> calls;
  for (int r = 0; r < size; ++r) memory.emplace_back(c, r);
  for (const NormMemory& of_rank : memory) calls.push_back(rank_call(of_rank.call(), size, most_blocks, algorithm));
  SCOPED_TRACE(describe(shape, size) + " " + to_string(calls[0].launch) + " seed " + std::to_string(seed));
  ranks.run(
      [&](int) { return calls[0].blocks(); },
      [&](int r, const SerialTeam& team) { calls[static_cast<std::size_t>(r)].communicate(team, ranks.world(r), 99); });
  for (const RankCall& call : calls) call.normalise();
  for (int r = 0; r < size; ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    ASSERT_EQ(ranks.host(r).code, 0u) << "failed";
    memory[static_cast<std::size_t>(r)].verify(c);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Norm, EveryKernelGivesTheBitsOfTheReference) {
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8}) {
    if (tutti::test::kThreadSanitizer && size > 4) break;
    HostRanks ranks(size);
    std::uint64_t seed = static_cast<std::uint64_t>(size) * 1000;
    for (const char* algorithm : kNormAlgorithms) {
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

// The hidden sizes of models: rows that fill slots to the last item, rows for every number of vectors a thread, rows of
// which a block has several.
TEST(Norm, LargeRows) {
  HostRanks ranks(2);
  std::uint64_t seed = 7;
  for (const std::size_t hidden : {4096, 5120, 8192, 16384}) {
    for (const std::size_t rows : {1, 5, 12}) {
      if (tutti::test::kThreadSanitizer && rows > 1) break;
      for (const char* algorithm : kNormAlgorithms) {
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
  NormShape many;
  many.hidden = 264;
  many.rows = 515;
  for (const NormOutput output : {NormOutput::kSame, NormOutput::kFp8, NormOutput::kFp8Rows}) {
    many.output = output;
    many.in_place = output != NormOutput::kFp8;
    run_norm(ranks, many, 2, "", 4);
  }
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
      run_norm(ranks, shape, i, random() % 2 == 0 ? "" : kNormAlgorithms[random() % std::size(kNormAlgorithms)],
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
  std::vector<std::vector<RankCall>> calls;
  for (std::size_t i = 0; i < kCalls; ++i) {
    NormShape shape;
    shape.rows = 1 + i % 6;
    shape.hidden = 8 * (1 + i * i % 60);
    cases.emplace_back(shape, kSize, i);
    memory.emplace_back();
    calls.emplace_back();
    for (int r = 0; r < kSize; ++r) {
      memory[i].emplace_back(cases[i], r);
      calls[i].push_back(rank_call(memory[i].back().call(), kSize, kBlocks,
                                   kNormAlgorithms[(i + i / 7) % std::size(kNormAlgorithms)]));
      calls[i].back().launch.choice.piece_bytes = 64 * (1 + i % 4);  // bulk: many pieces
    }
  }
  ranks.run([](int) { return kBlocks; },
            [&](int r, const SerialTeam& thread) {
              for (const auto& of_call : calls) {
                const RankCall& call = of_call[static_cast<std::size_t>(r)];
                if (thread.block_index >= call.blocks()) continue;
                call.communicate(SerialTeam{thread.block_index, call.blocks()}, ranks.world(r), 5);
              }
            });
  for (const auto& of_call : calls) {
    for (const RankCall& call : of_call) call.normalise();
  }
  for (std::size_t i = 0; i < kCalls; ++i) {
    for (int r = 0; r < kSize; ++r) {
      SCOPED_TRACE("call " + std::to_string(i) + " rank " + std::to_string(r));
      memory[i][static_cast<std::size_t>(r)].verify(cases[i]);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Norm, BlocksNeedNotRunAtTheSameTime) {
  HostRanks ranks(3);
  ranks.run_one_block_at_a_time();
  for (int r = 0; r < 3; ++r) ranks.host(r).timeout_ns = 10'000'000'000;
  NormShape shape;
  shape.rows = 7;
  shape.hidden = 264;
  for (const char* algorithm : kNormAlgorithms) run_norm(ranks, shape, 1, algorithm, 4);
}

TEST(Norm, AMissingRankIsATimeoutEverywhere) {
  NormShape shape;
  shape.rows = 4;
  const NormCase c(shape, 3, 1);
  for (const char* algorithm : kNormAlgorithms) {
    expect_a_missing_rank_found(algorithm, [&](const DeviceWorld& world, int r, const SerialTeam& team) {
      const NormMemory memory(c, r);
      rank_call(memory.call(), 3, 1, algorithm).communicate(team, world, 5);
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
  const auto kind_of = [](const AddRmsNorm& call) {
    try {
      check_add_rms_norm(call);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  std::vector<std::byte> memory(4096);
  const auto at = [&](std::size_t offset) { return memory.data() + offset; };
  AddRmsNorm good;
  good.rows = 2;
  good.hidden = 64;
  good.input = at(0);
  good.residual = at(256);
  good.weight = at(512);
  good.residual_output = at(1024);
  good.output = at(1280);
  EXPECT_NO_THROW(check_add_rms_norm(good));
  const auto changed = [&](auto change) {
    AddRmsNorm call = good;
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
    AddRmsNorm call = good;
    call.output = at(0);
    call.residual_output = at(256);
    return call;
  }()));
  // An fp8 output in place needs room for the sums, of its own.
  const auto in_place = [&](std::byte* workspace) {
    return changed([&](auto& c) {
      c.fp8 = true;
      c.scale = &scale;
      c.residual_output = at(256);
      c.workspace = workspace;
    });
  };
  EXPECT_EQ(in_place(nullptr), ErrorKind::kInvalidArgument);
  for (const std::size_t taken : {0, 256, 512, 1280}) EXPECT_EQ(in_place(at(taken)), ErrorKind::kInvalidArgument);
  EXPECT_EQ(in_place(at(2048)), ErrorKind::kInternal) << "no error";
}

// The choice follows what all ranks know; a forced kernel that does not take the call is left out.
TEST(Norm, ChoosesBySize) {
  const auto chosen = [](std::size_t rows, std::size_t hidden, int size, bool ll128, const char* forced) {
    AddRmsNorm call;
    call.rows = rows;
    call.hidden = hidden;
    return to_string(make_norm_launch(call, size, kMaxBlocks, ll128, parse_forced(forced)));
  };
  const auto sum_and = [](std::size_t rows, std::size_t hidden, int size, bool ll128, const char* forced,
                          const char* norm) {
    const CudaShape shape{Collective::kAllReduce, DataType::kBfloat16, size, rows * hidden * 2, kMaxBlocks, ll128};
    return to_string(choose(shape, parse_forced(forced))) + ", norm@" + norm;
  };
  EXPECT_EQ(chosen(1, 2048, 4, true, ""), "one_kernel@1x256");
  EXPECT_EQ(chosen(8, 512, 8, true, ""), "one_kernel@8x64");
  EXPECT_EQ(chosen(0, 8192, 4, true, ""), "one_kernel@1x512");
  EXPECT_EQ(chosen(16, 2048, 4, true, ""), "one_kernel@16x256");
  EXPECT_EQ(chosen(17, 2048, 4, true, ""), sum_and(17, 2048, 4, true, "", "17x256"));
  EXPECT_EQ(chosen(64, 4096, 2, true, ""), "one_kernel@64x512");
  EXPECT_EQ(chosen(128, 2048, 2, true, ""), "one_kernel@64x512");
  EXPECT_EQ(chosen(65, 4096, 2, true, ""), sum_and(65, 4096, 2, true, "", "65x512"));
  EXPECT_EQ(chosen(1, 4096, 4, true, ""), "one_kernel@1x512");
  EXPECT_EQ(chosen(1, 4104, 4, true, ""), sum_and(1, 4104, 4, true, "", "1x288"));
  EXPECT_EQ(chosen(4, 8192, 4, true, ""), sum_and(4, 8192, 4, true, "", "4x512"));
  EXPECT_EQ(chosen(64, 8192, 4, true, ""), sum_and(64, 8192, 4, true, "", "64x512"));
  EXPECT_EQ(chosen(64, 8192, 4, false, ""), sum_and(64, 8192, 4, false, "", "64x512"));
  EXPECT_EQ(chosen(4096, 8192, 4, true, ""), sum_and(4096, 8192, 4, true, "", "4096x512"));
  EXPECT_EQ(chosen(4096, 512, 4, true, ""), sum_and(4096, 512, 4, true, "", "1024x256"));
  // Forced: the all-reduce; LL in one shot also the one kernel, up to a vector a thread.
  EXPECT_EQ(chosen(1, 2048, 4, true, "ll_two_shot"), sum_and(1, 2048, 4, true, "ll_two_shot", "1x256"));
  EXPECT_EQ(chosen(1, 4096, 4, true, "ll_one_shot"), "one_kernel@1x512");
  EXPECT_EQ(chosen(1, 8192, 4, true, "ll_one_shot"), sum_and(1, 8192, 4, true, "ll_one_shot", "1x512"));
  EXPECT_EQ(chosen(1, 2048, 4, true, "copy_engine"), "one_kernel@1x256");
}

// What a rank alone knows, where its memory lies, changes nothing that goes over the wire.
TEST(Norm, MemoryChangesOnlyWhatIsLocal) {
  std::vector<std::byte> memory(1 << 20);
  float scale = 1;
  const auto planned = [&](std::size_t shift, std::byte* residual_output) {
    AddRmsNorm call;
    call.rows = 4;
    call.hidden = 8192;
    call.input = memory.data() + shift;
    call.residual = memory.data() + (1 << 16);
    call.weight = memory.data() + (2 << 16);
    call.output = memory.data() + (3 << 16);
    call.residual_output = residual_output;
    call.workspace = memory.data() + (4 << 16);
    call.fp8 = true;
    call.scale = &scale;
    return make_norm_launch(call, 4, kMaxBlocks, true, std::nullopt);
  };
  std::byte* const residual = memory.data() + (1 << 16);
  std::byte* const elsewhere = memory.data() + (5 << 16);
  const NormLaunch apart = planned(0, elsewhere), in_place = planned(0, residual), shifted = planned(0, elsewhere + 2);
  EXPECT_EQ(apart.sum, elsewhere);
  EXPECT_EQ(in_place.sum, memory.data() + (4 << 16)) << "the residual is still needed";
  EXPECT_EQ(shifted.vectors, 0) << "memory of any alignment";
  EXPECT_NE(apart.vectors, 0);
  for (const NormLaunch& launch : {in_place, shifted}) {
    EXPECT_EQ(launch.one_kernel, apart.one_kernel);
    EXPECT_EQ(to_string(launch.choice), to_string(apart.choice));
    EXPECT_EQ(launch.choice.piece_bytes, apart.choice.piece_bytes);
  }
}

}  // namespace
}  // namespace tutti::cuda::test
