// The calls of inference engines on a GPU: bits, bounds, graphs, faults.
#include <nlohmann/json.hpp>
#include <random>

#include "cuda/gpu/gpu_ranks.h"
#include "cuda/norm_case.h"
#include "cuda/quantized_case.h"

namespace tutti::cuda::test {
namespace {

NormBuffers prepare_norm(Rank& rank, const NormCase& c) {
  const NormShape& s = c.shape();
  const std::size_t shift = s.shift * size_of(s.dtype);
  const auto uploaded = [&](const std::vector<std::byte>& content) {
    std::byte* to = rank.allocate(content.size(), shift);
    rank.upload(to, content, rank.stream);
    return to;
  };
  const auto poisoned = [&](std::size_t bytes) {
    std::byte* to = rank.allocate(bytes, shift);
    TUTTI_CUDA_OK(cudaMemsetAsync(to, 0xa5, bytes, rank.stream));
    return to;
  };
  NormBuffers b{};
  b.input = uploaded(c.input(rank.rank));
  b.residual = uploaded(c.residual());
  b.weight = uploaded(c.weight());
  b.residual_output = s.in_place ? b.residual : poisoned(c.residual().size());
  b.output = s.in_place && s.output == NormOutput::kSame ? b.input : poisoned(c.expected_output().size());
  b.scale = reinterpret_cast<float*>(rank.allocate(4));
  b.row_scales = reinterpret_cast<float*>(rank.allocate(4 * s.rows));
  b.workspace = poisoned(c.residual().size());
  TUTTI_CUDA_OK(cudaMemcpyAsync(b.scale, &NormCase::kScale, 4, cudaMemcpyHostToDevice, rank.stream));
  return b;
}

void compare(const Rank& rank, const std::string& what, const std::byte* got, const std::vector<std::byte>& want) {
  const std::vector<std::byte> bytes = rank.download(got, want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (bytes[i] != want[i]) {
      throw std::runtime_error(what + ": byte " + std::to_string(i) + " of " + std::to_string(want.size()) + " is " +
                               std::to_string(static_cast<int>(bytes[i])) + ", not " +
                               std::to_string(static_cast<int>(want[i])));
    }
  }
}

void verify_norm(const Rank& rank, const NormCase& c, const NormBuffers& b, const std::string& algorithm) {
  const std::string what = describe(c.shape(), rank.size) + " by " + (algorithm.empty() ? "choice" : algorithm);
  compare(rank, what + ", the residual's output", b.residual_output, c.expected_residual());
  if (c.shape().output == NormOutput::kFp8Rows) {
    std::vector<std::byte> scales(4 * c.shape().rows);
    if (!scales.empty()) std::memcpy(scales.data(), c.expected_scales().data(), scales.size());
    compare(rank, what + ", the scales", reinterpret_cast<const std::byte*>(b.row_scales), scales);
  }
  compare(rank, what + ", the output", b.output, c.expected_output());
}

// Small rows, for the one kernel; for the second of two, every number of vectors a thread, several rows a block (from
// 512 on), and more rows than the GPU has processors.
constexpr std::pair<int, int> kRowsAndHidden[] = {{1, 8},      {1, 4096},   {5, 5120}, {3, 264},
                                                  {70, 1032},  {260, 512},  {7, 8192}, {1, 16384},
                                                  {2, 40'008}, {1025, 264}, {600, 40}};

class NormOnGpu : public testing::TestWithParam<std::string> {};

TEST_P(NormOnGpu, GivesTheBitsOfTheReference) {
  const bool chosen = GetParam().empty();
  for (const int size : chosen ? std::vector{1, 2, 4, 8} : std::vector{2, 3}) {
    GpuWorld world;
    world.size = size;
    world.options.settings().cuda_algorithm = GetParam();
    run_gpu_ranks(world, [&](Rank& rank) {
      std::uint64_t seed = static_cast<std::uint64_t>(size);
      for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16, DataType::kFloat32}) {
        for (const auto& [rows, hidden] : kRowsAndHidden) {
          ++seed;
          NormShape shape;
          shape.dtype = dtype;
          shape.rows = static_cast<std::size_t>(rows);
          shape.hidden = static_cast<std::size_t>(hidden);
          shape.output = static_cast<NormOutput>(seed % 3);
          shape.in_place = seed % 2 == 0;
          shape.shift = seed % 5 == 4 ? 1 : 0;
          rank.used = 0;
          const NormCase c(shape, size, seed);
          const NormBuffers b = prepare_norm(rank, c);
          rank.comm->serving()->all_reduce_add_rms_norm(norm_call(shape, b), rank.stream);
          rank.comm->synchronize(rank.stream);
          verify_norm(rank, c, b, GetParam());
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Serving, NormOnGpu,
                         testing::Values("", "ll_one_shot", "ll128_one_shot", "ll_two_shot", "ll128_two_shot",
                                         "bulk_one_shot", "bulk_two_shot"),
                         [](const auto& which) { return which.param.empty() ? std::string("chosen") : which.param; });

TEST(Quantized, TheErrorStaysInItsBoundAndTheBitsAreEqual) {
  for (const int size : {2, 3}) {
    for (const char* algorithm : {"ll_one_shot", "ll_two_shot", "bulk_two_shot"}) {
      GpuWorld world;
      world.size = size;
      world.options.settings().cuda_algorithm = algorithm;
      std::vector<std::vector<std::byte>> outs(static_cast<std::size_t>(size));
      run_gpu_ranks(world, [&](Rank& rank) {
        std::uint64_t seed = 1;
        for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16, DataType::kFloat32}) {
          for (const DataType code : {DataType::kFloat8E4M3fn, DataType::kInt8}) {
            for (const std::size_t count : {1, 777, 20'011, 400'003}) {
              ++seed;
              QuantizedShape shape;
              shape.dtype = dtype;
              shape.code = code;
              shape.block = 32 << seed % 5;
              shape.count = count;
              shape.data = static_cast<QuantizedData>(seed % 5);
              shape.shift = seed % 3;
              rank.used = 0;
              const QuantizedCase c(shape, size, seed);
              const std::size_t bytes = c.input(0).size(), shift = shape.shift * size_of(dtype);
              std::byte* in = rank.allocate(bytes, shift);
              std::byte* out = seed % 2 == 0 ? in : rank.allocate(bytes, shift);
              TUTTI_CUDA_OK(cudaMemsetAsync(out, 0xa5, bytes, rank.stream));
              rank.upload(in, c.input(rank.rank), rank.stream);
              rank.comm->serving()->all_reduce_quantized(quantized_call(shape, in, out), rank.stream);
              rank.comm->synchronize(rank.stream);
              auto& mine = outs[static_cast<std::size_t>(rank.rank)];
              mine = rank.download(out, bytes);
              const std::string what = describe(shape, size) + " by " + algorithm + ": ";
              const std::string complaint = c.complaint(mine.data());
              if (!complaint.empty()) throw std::runtime_error(what + complaint);
              rank.barrier->arrive_and_wait();
              if (mine != outs[0]) throw std::runtime_error(what + "other bits than rank 0");
              rank.barrier->arrive_and_wait();
            }
          }
        }
      });
    }
  }
}

// Both calls beside an all-reduce in a graph that is replayed with other data, eager calls between. The norms: in one
// kernel, behind an all-reduce, and there with the sums in a workspace.
TEST(Serving, GraphsAndEagerCalls) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    NormShape shapes[3];
    shapes[0].rows = shapes[1].rows = 4;
    shapes[0].hidden = 1024;
    shapes[1].hidden = 4096;
    shapes[2].rows = 40;
    shapes[2].hidden = 5120;
    shapes[2].output = NormOutput::kFp8Rows;
    shapes[2].in_place = true;
    QuantizedShape codes;
    codes.count = 10'000;
    CaseShape sum;
    sum.dtype = DataType::kUint32;
    sum.count = 3000;
    std::vector<NormBuffers> norms;
    for (const NormShape& shape : shapes) norms.push_back(prepare_norm(rank, NormCase(shape, rank.size, 0)));
    const Buffers plain = prepare(rank, CollectiveCase(sum, rank.size, 0), rank.stream);
    std::byte* in = rank.allocate(2 * codes.count);
    std::byte* out = rank.allocate(2 * codes.count);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    const auto issue = [&] {
      for (std::size_t i = 0; i < norms.size(); ++i) {
        rank.comm->serving()->all_reduce_add_rms_norm(norm_call(shapes[i], norms[i]), rank.stream);
      }
      rank.comm->run(plain.call, rank.stream);
      rank.comm->serving()->all_reduce_quantized(quantized_call(codes, in, out), rank.stream);
    };
    cudaGraphExec_t executable = capture(rank.stream, issue);
    make_ready(rank, executable);
    for (std::uint64_t round = 1; round <= 10; ++round) {
      std::vector<NormCase> cases;
      for (std::size_t i = 0; i < norms.size(); ++i) {
        const NormCase& c = cases.emplace_back(shapes[i], rank.size, 10 * round + i);
        rank.upload(norms[i].input, c.input(rank.rank), rank.stream);
        rank.upload(norms[i].residual, c.residual(), rank.stream);
        rank.upload(norms[i].weight, c.weight(), rank.stream);
      }
      const CollectiveCase p(sum, rank.size, round);
      const QuantizedCase q(codes, rank.size, round);
      rank.upload(plain.input, p.input(rank.rank), rank.stream);
      rank.upload(in, q.input(rank.rank), rank.stream);
      if (round % 3 == 0) {
        issue();
      } else {
        TUTTI_CUDA_OK(cudaGraphLaunch(executable, rank.stream));
      }
      rank.comm->synchronize(rank.stream);
      for (std::size_t i = 0; i < norms.size(); ++i) verify_norm(rank, cases[i], norms[i], "graph");
      verify(rank, p, plain, "graph");
      const std::string complaint = q.complaint(rank.download(out, 2 * codes.count).data());
      if (!complaint.empty()) throw std::runtime_error("round " + std::to_string(round) + ": " + complaint);
    }
    TUTTI_CUDA_OK(cudaGraphExecDestroy(executable));
  });
}

// In one kernel or two, on two streams in turn: one call to the sequence, the metrics, the GPU's count and the record.
TEST(Serving, ANormIsOneCall) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    const std::uint64_t first = rank.comm->sequence();
    std::uint64_t calls = 0;
    for (const std::size_t hidden : {512, 8192}) {
      for (const cudaStream_t stream : {rank.stream, rank.other_stream, rank.stream}) {
        NormShape shape;
        shape.rows = 9;
        shape.hidden = hidden;
        const NormCase c(shape, rank.size, ++calls);
        const NormBuffers b = prepare_norm(rank, c);
        TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
        rank.comm->serving()->all_reduce_add_rms_norm(norm_call(shape, b), stream);
        rank.comm->synchronize(stream);
        verify_norm(rank, c, b, "stream");
      }
    }
    EXPECT_EQ(rank.comm->sequence(), first + calls);
    const Metrics metrics = rank.comm->metrics();
    EXPECT_EQ(metrics.device_calls, calls);
    std::uint64_t counted = 0, bytes = 0;
    for (const MetricsRow& row : metrics.rows) {
      EXPECT_EQ(row.collective, "all_reduce_add_rms_norm");
      counted += row.calls;
      bytes += row.bytes;
    }
    EXPECT_EQ(counted, calls);
    EXPECT_EQ(bytes, 3u * 9 * (512 + 8192) * 2);
    const nlohmann::json record = nlohmann::json::parse(rank.comm->flight_record());
    EXPECT_EQ(record["entries"].size(), calls);
    for (const auto& entry : record["entries"]) EXPECT_EQ(entry["state"], "completed") << entry.dump();
  });
}

// The same row alone, among a few, and among a thousand: the same bits, though it runs in one kernel or in two. The
// rows' number also decides how the sums cross.
TEST(Serving, ARowIsTheSameAmongAnyNumber) {
  constexpr std::size_t kRows = 1000;
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    for (const std::size_t hidden : {512, 4096, 5120}) {
      for (const NormOutput output : {NormOutput::kSame, NormOutput::kFp8Rows}) {
        rank.used = 0;
        NormShape shape;
        shape.rows = kRows;
        shape.hidden = hidden;
        shape.output = output;
        const std::size_t in_bytes = 2 * hidden, out_bytes = output == NormOutput::kSame ? 2 * hidden : hidden;
        std::mt19937_64 random(hidden + static_cast<std::uint64_t>(output));  // the same residual on all ranks
        const auto filled = [&](std::size_t rows, std::uint64_t salt) {
          std::vector<std::byte> bytes(rows * in_bytes);
          for (std::size_t i = 0; i < bytes.size(); i += 2) {
            // Between 0.0078 and 2, of both signs.
            const std::uint64_t bits = random() ^ salt;
            const auto half = static_cast<std::uint16_t>(0x3c00 + bits % 0x400 + ((bits >> 32) % 2) * 0x8000);
            std::memcpy(&bytes[i], &half, 2);
          }
          return bytes;
        };
        NormBuffers b{};
        const auto uploaded = [&](const std::vector<std::byte>& content) {
          std::byte* to = rank.allocate(content.size());
          rank.upload(to, content, rank.stream);
          return to;
        };
        b.input = uploaded(filled(kRows, static_cast<std::uint64_t>(rank.rank)));
        b.residual = uploaded(filled(kRows, 0));
        b.weight = uploaded(filled(1, 0));
        const auto run = [&](std::size_t first, std::size_t rows) {
          shape.rows = rows;
          NormBuffers part = b;
          part.input += first * in_bytes;
          part.residual += first * in_bytes;
          part.residual_output = rank.allocate(rows * in_bytes);
          part.output = rank.allocate(rows * out_bytes);
          part.row_scales = reinterpret_cast<float*>(rank.allocate(4 * rows));
          rank.comm->serving()->all_reduce_add_rms_norm(norm_call(shape, part), rank.stream);
          rank.comm->synchronize(rank.stream);
          return part;
        };
        const NormBuffers all = run(0, kRows);
        const auto row_of = [&](const NormBuffers& of, std::size_t row) {
          std::vector<std::byte> bytes = rank.download(of.residual_output + row * in_bytes, in_bytes);
          for (const std::byte byte : rank.download(of.output + row * out_bytes, out_bytes)) bytes.push_back(byte);
          if (output == NormOutput::kFp8Rows) {
            const auto* scale = reinterpret_cast<const std::byte*>(of.row_scales + row);
            for (const std::byte byte : rank.download(scale, 4)) bytes.push_back(byte);
          }
          return bytes;
        };
        for (const std::size_t rows : {1, 2, 9, 70}) {
          for (const std::size_t first : {std::size_t{0}, std::size_t{437}, kRows - rows}) {
            const std::size_t used = rank.used;
            const NormBuffers few = run(first, rows);
            for (const std::size_t row : {std::size_t{0}, rows - 1}) {
              EXPECT_EQ(row_of(few, row), row_of(all, first + row))
                  << "row " << first + row << " of " << hidden << " elements, among " << rows;
            }
            rank.used = used;
          }
        }
        rank.barrier->arrive_and_wait();
      }
    }
  });
}

// Though an all-reduce of the same tensors would run in them.
TEST(Serving, SumsDoNotUseRegisteredMemory) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    NormShape shape;
    shape.rows = 100;
    shape.hidden = 8192;
    const NormCase c(shape, rank.size, 1);
    rank.comm->register_memory({{rank.memory, rank.memory_bytes}});
    const NormBuffers b = prepare_norm(rank, c);
    CaseShape plain;
    plain.dtype = shape.dtype;
    plain.count = shape.rows * shape.hidden;
    EXPECT_EQ(rank.comm->explain(CollectiveCase(plain, rank.size, 1).call(b.input, b.output)), "registered");
    rank.comm->serving()->all_reduce_add_rms_norm(norm_call(shape, b), rank.stream);
    rank.comm->synchronize(rank.stream);
    verify_norm(rank, c, b, "registered memory");
    EXPECT_EQ(rank.comm->direct_calls(), 0u);
    rank.barrier->arrive_and_wait();
  });
}

// A difference that all_reduce would not see: the same number of elements in other rows. In one kernel, and in two.
TEST(Serving, OtherRowsAreAMismatch) {
  for (const std::size_t widest : {1024, 16384}) {
    GpuWorld world;
    run_gpu_ranks(world, [&](Rank& rank) {
      NormShape shape;
      shape.rows = rank.rank == 0 ? 2 : 4;
      shape.hidden = rank.rank == 0 ? widest : widest / 2;
      const NormBuffers b = prepare_norm(rank, NormCase(shape, rank.size, 1));
      rank.comm->serving()->all_reduce_add_rms_norm(norm_call(shape, b), rank.stream);
      std::string text;
      try {
        rank.comm->synchronize(rank.stream);
      } catch (const Error& error) {
        text = error.what();
      }
      const std::string mine =
          "all_reduce_add_rms_norm bf16[" + std::to_string(2 * widest) + "] in rows of " + std::to_string(shape.hidden);
      if (text.find("different calls") == std::string::npos || text.find(mine) == std::string::npos) {
        throw std::runtime_error("not the error that names the call: " + text);
      }
    });
  }
}

TEST(Serving, AMissingRankIsATimeout) {
  for (const char* algorithm : {"ll_one_shot", "ll128_two_shot", "bulk_two_shot"}) {
    GpuWorld world;
    world.size = 3;
    world.options.settings().cuda_algorithm = algorithm;
    run_gpu_ranks(world, [&](Rank& rank) {
      rank.comm->set_timeout(std::chrono::milliseconds(300));
      NormShape shape;
      shape.rows = 6;
      shape.hidden = 1024;
      const NormBuffers b = prepare_norm(rank, NormCase(shape, rank.size, 1));
      if (rank.rank != 1) {
        rank.comm->serving()->all_reduce_add_rms_norm(norm_call(shape, b), rank.stream);
        std::string text;
        try {
          rank.comm->synchronize(rank.stream);
        } catch (const Error& error) {
          text = error.what();
        }
        if (text.find("rank 1 did not come to all_reduce_add_rms_norm") == std::string::npos) {
          throw std::runtime_error(std::string(algorithm) + ": not the error that names the rank: " + text);
        }
      }
      rank.barrier->arrive_and_wait();
    });
  }
}

}  // namespace
}  // namespace tutti::cuda::test
