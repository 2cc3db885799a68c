// The kernels of all_reduce_quantized on the host: all ranks get the same bits, and the error stays in its bound, on
// friendly and on hostile data.
#include "algorithm/cuda/quantized.cuh"

#include <algorithm>
#include <random>

#include "algorithm/cuda/quantized_launch.h"
#include "cuda/quantized_case.h"
#include "cuda/serving_case.h"
#include "tutti/error.h"

namespace tutti::cuda::test {
namespace {

constexpr const char* kAlgorithms[] = {"ll_one_shot", "ll_two_shot", "bulk_two_shot"};
constexpr DataType kTypes[] = {DataType::kBfloat16, DataType::kFloat16, DataType::kFloat32};
constexpr DataType kCodes[] = {DataType::kFloat8E4M3fn, DataType::kInt8};

template <class Lanes>
void launch_as(const SerialTeam& team, const DeviceWorld& world, const QuantizedLaunch& launch) {
  switch (launch.pattern) {
    case QuantizedPattern::kLL:
      return quantized_all_reduce<QuantizedPattern::kLL, Lanes>(team, world, launch.args);
    case QuantizedPattern::kLLTwoShot:
      return quantized_all_reduce<QuantizedPattern::kLLTwoShot, Lanes>(team, world, launch.args);
    case QuantizedPattern::kBulk:
      return quantized_all_reduce<QuantizedPattern::kBulk, Lanes>(team, world, launch.args);
  }
}
void launch_quantized(const SerialTeam& team, const DeviceWorld& world, DataType dtype, const QuantizedLaunch& launch) {
  if (dtype == DataType::kBfloat16) return launch_as<Bf16Lanes>(team, world, launch);
  if (dtype == DataType::kFloat16) return launch_as<F16Lanes>(team, world, launch);
  launch_as<F32Lanes>(team, world, launch);
}

// Runs the case once; returns rank 0's output.
std::vector<std::byte> run_quantized(HostRanks& ranks, const QuantizedShape& shape, std::uint64_t seed,
                                     const char* algorithm, int most_blocks, std::size_t piece_tiles = 0) {
  const int size = ranks.size();
  constexpr std::size_t kGuard = 32;
  const QuantizedCase c(shape, size, seed);
  const std::size_t shift = kGuard + shape.shift * size_of(shape.dtype), bytes = c.input(0).size();
  std::vector<std::vector<std::byte>> ins, outs;
  std::vector<QuantizedLaunch> launches;
  for (int r = 0; r < size; ++r) {
    ins.emplace_back(bytes + shift + kGuard, std::byte{0x5a});
    outs.emplace_back(bytes + shift + kGuard, std::byte{0xa5});
    if (bytes > 0) std::memcpy((shape.in_place ? outs : ins).back().data() + shift, c.input(r).data(), bytes);
    std::byte* const out = outs.back().data() + shift;
    const QuantizedAllReduce call = quantized_call(shape, shape.in_place ? out : ins.back().data() + shift, out);
    check_quantized(call);
    launches.push_back(make_quantized_launch(call, size, most_blocks, parse_forced(algorithm)));
    launches.back().args.fingerprint = 17;
    if (piece_tiles != 0) launches.back().args.piece_tiles = piece_tiles;
  }
  SCOPED_TRACE(describe(shape, size) + " " + to_string(launches[0]) + " seed " + std::to_string(seed));
  ranks.run([&](int) { return launches[0].blocks; },
            [&](int r, const SerialTeam& team) {
              launch_quantized(team, ranks.world(r), shape.dtype, launches[static_cast<std::size_t>(r)]);
            });
  for (int r = 0; r < size; ++r) {
    const auto& out = outs[static_cast<std::size_t>(r)];
    EXPECT_EQ(ranks.host(r).code, 0u) << "rank " << r << " failed";
    EXPECT_EQ(out, outs[0]) << "rank " << r << " has other bits than rank 0";
    for (std::size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(out[i], std::byte{0xa5}) << "before the output";
      EXPECT_EQ(out[out.size() - 1 - i], std::byte{0xa5}) << "after the output";
    }
  }
  EXPECT_EQ(c.complaint(outs[0].data() + shift), "");
  return outs[0];
}

TEST(Quantized, TheErrorStaysInItsBound) {
  for (const int size : {2, 3, 4, 5, 6, 7, 8}) {
    HostRanks ranks(size);
    std::uint64_t seed = static_cast<std::uint64_t>(size) * 1000;
    for (const char* algorithm : kAlgorithms) {
      for (const DataType dtype : kTypes) {
        for (const DataType code : kCodes) {
          for (const int block : {32, 64, 128, 256, 512}) {
            QuantizedShape shape;
            shape.dtype = dtype;
            shape.code = code;
            shape.block = block;
            const std::size_t counts[] = {1, 15, 129, 513, 1600, 4096};
            shape.count = counts[++seed % 6];
            shape.data = static_cast<QuantizedData>(seed % 5);
            shape.in_place = seed % 2 == 0;
            shape.shift = seed % 3;
            run_quantized(ranks, shape, seed, algorithm, 1 + static_cast<int>(seed % 3));
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

// Every hostile data on every kernel, several pieces and tiles a warp.
TEST(Quantized, HostileData) {
  HostRanks ranks(3);
  std::uint64_t seed = 5;
  for (const char* algorithm : kAlgorithms) {
    for (const DataType code : kCodes) {
      for (const DataType dtype : kTypes) {
        for (int data = 0; data < 5; ++data) {
          QuantizedShape shape;
          shape.dtype = dtype;
          shape.code = code;
          shape.count = 20'011;
          shape.data = static_cast<QuantizedData>(data);
          run_quantized(ranks, shape, ++seed, algorithm, 4, 2);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Numbers that are codes times a power of two come out exactly: nothing is lost but what rounding loses.
TEST(Quantized, NumbersThatAreCodesAreExact) {
  HostRanks ranks(2);
  for (const char* algorithm : kAlgorithms) {
    std::vector<float> in(700), out(700);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(static_cast<int>(i % 15) - 7) * 32.0f;
    for (std::size_t i = 0; i < in.size(); i += 32) in[i] = 224.0f;
    QuantizedShape shape;
    shape.dtype = DataType::kFloat32;
    shape.block = 32;
    shape.count = in.size();
    const auto* bytes = reinterpret_cast<const std::byte*>(in.data());
    std::vector<std::vector<float>> outs(2, out);
    ranks.run([](int) { return 1; },
              [&](int r, const SerialTeam& team) {
                auto* to = reinterpret_cast<std::byte*>(outs[static_cast<std::size_t>(r)].data());
                QuantizedLaunch launch =
                    make_quantized_launch(quantized_call(shape, bytes, to), 2, 1, parse_forced(algorithm));
                launch.args.fingerprint = 17;
                launch_quantized(team, ranks.world(r), shape.dtype, launch);
              });
    for (const auto& got : outs) {
      for (std::size_t i = 0; i < in.size(); ++i) ASSERT_EQ(got[i], 2 * in[i]) << algorithm << " element " << i;
    }
  }
}

TEST(Quantized, SharesItsSlotsWithOtherCollectives) {
  constexpr const char* kOthers[] = {"ll_one_shot@3", "bulk_two_shot@4", "ll_two_shot@2"};
  std::mt19937_64 random(99);
  HostRanks ranks(3, device::kFlagPeriod - 30);
  for (std::uint64_t i = 0; i < 100; ++i) {
    if (i % 2 == 0) {
      QuantizedShape shape;
      shape.count = random() % 9000;
      shape.code = kCodes[random() % 2];
      shape.in_place = random() % 2 == 0;
      run_quantized(ranks, shape, i, random() % 2 == 0 ? "" : kAlgorithms[random() % 3],
                    1 + static_cast<int>(random() % 4), 1 + random() % 3);
    } else {
      run_other_all_reduce(ranks, 1 + random() % 3000, i, kOthers[random() % std::size(kOthers)]);
    }
    if (HasFailure()) FAIL() << "call " << i;
  }
}

TEST(Quantized, BlocksNeedNotRunAtTheSameTime) {
  HostRanks ranks(3);
  ranks.run_one_block_at_a_time();
  for (int r = 0; r < 3; ++r) ranks.host(r).timeout_ns = 10'000'000'000;
  QuantizedShape shape;
  shape.count = 9001;
  for (const char* algorithm : kAlgorithms) run_quantized(ranks, shape, 1, algorithm, 4);
}

// Many calls without a pause between them, each with numbers of its own.
TEST(Quantized, CallsFollowEachOtherWithoutAPause) {
  constexpr int kSize = 3, kCalls = 100, kBlocks = 2;
  HostRanks ranks(kSize);
  std::vector<QuantizedCase> cases;
  std::vector<std::vector<std::byte>> outs[kSize];
  std::vector<QuantizedLaunch> launches[kSize];
  for (std::size_t i = 0; i < kCalls; ++i) {
    QuantizedShape shape;
    shape.count = 1 + i * i * 37 % 6000;
    shape.block = 32 << i % 5;
    shape.code = kCodes[i % 2];
    cases.emplace_back(shape, kSize, i);
  }
  for (std::size_t i = 0; i < kCalls; ++i) {
    for (int r = 0; r < kSize; ++r) {
      outs[r].emplace_back(cases[i].input(r).size());
      const auto call = quantized_call(cases[i].shape(), cases[i].input(r).data(), outs[r].back().data());
      launches[r].push_back(make_quantized_launch(call, kSize, kBlocks, parse_forced(kAlgorithms[(i + i / 7) % 3])));
      launches[r].back().args.fingerprint = 5;
      launches[r].back().args.piece_tiles = 1 + i % 3;
    }
  }
  ranks.run(
      [](int) { return kBlocks; },
      [&](int r, const SerialTeam& thread) {
        for (const QuantizedLaunch& launch : launches[r]) {
          if (thread.block_index >= launch.blocks) continue;
          launch_quantized(SerialTeam{thread.block_index, launch.blocks}, ranks.world(r), DataType::kBfloat16, launch);
        }
      });
  for (std::size_t i = 0; i < kCalls; ++i) {
    SCOPED_TRACE("call " + std::to_string(i) + " " + describe(cases[i].shape(), kSize) + " " +
                 to_string(launches[0][i]));
    for (int r = 1; r < kSize; ++r) ASSERT_EQ(outs[r][i], outs[0][i]) << "rank " << r << " has other bits than rank 0";
    ASSERT_EQ(cases[i].complaint(outs[0][i].data()), "");
  }
}

TEST(Quantized, AMissingRankIsATimeoutEverywhere) {
  QuantizedShape shape;
  shape.count = 2000;
  const QuantizedCase c(shape, 3, 1);
  for (const char* algorithm : kAlgorithms) {
    expect_a_missing_rank_found(algorithm, [&](const DeviceWorld& world, int r, const SerialTeam& team) {
      std::vector<std::byte> out(c.input(r).size());
      QuantizedLaunch launch =
          make_quantized_launch(quantized_call(shape, c.input(r).data(), out.data()), 3, 1, parse_forced(algorithm));
      launch.args.fingerprint = 5;
      launch_quantized(team, world, shape.dtype, launch);
    });
  }
}

TEST(Quantized, RefusesWhatItCannotDo) {
  std::vector<float> memory(64);
  QuantizedShape shape;
  shape.dtype = DataType::kFloat32;
  shape.count = 16;
  auto* at = reinterpret_cast<std::byte*>(memory.data());
  const QuantizedAllReduce good = quantized_call(shape, at, at + 64);
  EXPECT_NO_THROW(check_quantized(good));
  const auto refused = [&](auto change) {
    QuantizedAllReduce call = good;
    change(call);
    EXPECT_THROW(check_quantized(call), Error);
  };
  refused([](auto& c) { c.dtype = DataType::kFloat64; });
  refused([](auto& c) { c.code = DataType::kUint8; });
  refused([](auto& c) { c.block = 48; });
  refused([](auto& c) { c.output = nullptr; });
  refused([&](auto& c) { c.output = at + 4; });
}

TEST(Quantized, ChoosesBySize) {
  const auto chosen = [](std::size_t count, int size, const char* forced) {
    QuantizedAllReduce call;
    call.count = count;
    return to_string(make_quantized_launch(call, size, kMaxBlocks, parse_forced(forced)));
  };
  EXPECT_EQ(chosen(1, 4, ""), "ll_one_shot@1x32");
  EXPECT_EQ(chosen(32'768, 4, ""), "ll_one_shot@16x128");
  EXPECT_EQ(chosen(131'072, 2, ""), "ll_one_shot@64x128");
  EXPECT_EQ(chosen(524'288, 4, ""), "ll_two_shot@64x128");
  EXPECT_EQ(chosen(8'388'608, 4, ""), "bulk_two_shot@64x512");
  EXPECT_EQ(chosen(8'388'608, 4, "ll_one_shot"), "bulk_two_shot@64x512");
  EXPECT_EQ(chosen(1000, 4, "ll128_two_shot"), "bulk_two_shot@1x32");
}

}  // namespace
}  // namespace tutti::cuda::test
