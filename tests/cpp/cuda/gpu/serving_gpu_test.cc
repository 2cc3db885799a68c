// The calls of inference engines on a GPU: bits, bounds, graphs, faults.
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

class NormOnGpu : public testing::TestWithParam<std::string> {};

TEST_P(NormOnGpu, GivesTheBitsOfTheReference) {
  const bool chosen = GetParam().empty();
  for (const int size : chosen ? std::vector{1, 2, 4, 8} : std::vector{2, 3}) {
    GpuWorld world;
    world.size = size;
    world.options.algorithm = GetParam();
    run_gpu_ranks(world, [&](Rank& rank) {
      std::uint64_t seed = static_cast<std::uint64_t>(size);
      for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16, DataType::kFloat32}) {
        for (const auto& [rows, hidden] : {std::pair{1, 8}, {1, 4096}, {5, 5120}, {3, 264}, {70, 1032}, {260, 512}}) {
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
          rank.comm->all_reduce_add_rms_norm(norm_call(shape, b), rank.stream);
          rank.comm->synchronize(rank.stream);
          verify_norm(rank, c, b, GetParam());
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Serving, NormOnGpu,
                         testing::Values("", "ll_one_shot", "ll128_one_shot", "ll_two_shot", "ll128_two_shot",
                                         "bulk_two_shot"),
                         [](const auto& which) { return which.param.empty() ? std::string("chosen") : which.param; });

TEST(Quantized, TheErrorStaysInItsBoundAndTheBitsAreEqual) {
  for (const int size : {2, 3}) {
    for (const char* algorithm : {"ll_one_shot", "ll_two_shot", "bulk_two_shot"}) {
      GpuWorld world;
      world.size = size;
      world.options.algorithm = algorithm;
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
              rank.comm->all_reduce_quantized(quantized_call(shape, in, out), rank.stream);
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

// Both calls beside an all-reduce in a graph that is replayed with other data, eager calls between.
TEST(Serving, GraphsAndEagerCalls) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    NormShape shape;
    shape.rows = 4;
    shape.hidden = 4096;
    QuantizedShape codes;
    codes.count = 10'000;
    CaseShape sum;
    sum.dtype = DataType::kUint32;
    sum.count = 3000;
    const NormBuffers norm = prepare_norm(rank, NormCase(shape, rank.size, 0));
    const Buffers plain = prepare(rank, CollectiveCase(sum, rank.size, 0), rank.stream);
    std::byte* in = rank.allocate(2 * codes.count);
    std::byte* out = rank.allocate(2 * codes.count);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    const auto issue = [&] {
      rank.comm->all_reduce_add_rms_norm(norm_call(shape, norm), rank.stream);
      rank.comm->run(plain.call, rank.stream);
      rank.comm->all_reduce_quantized(quantized_call(codes, in, out), rank.stream);
    };
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    TUTTI_CUDA_OK(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    issue();
    TUTTI_CUDA_OK(cudaStreamEndCapture(rank.stream, &graph));
    TUTTI_CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    TUTTI_CUDA_OK(cudaGraphDestroy(graph));
    TUTTI_CUDA_OK(cudaGraphUpload(executable, rank.stream));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    for (std::uint64_t round = 1; round <= 10; ++round) {
      const NormCase c(shape, rank.size, round);
      const CollectiveCase p(sum, rank.size, round);
      const QuantizedCase q(codes, rank.size, round);
      rank.upload(norm.input, c.input(rank.rank), rank.stream);
      rank.upload(norm.residual, c.residual(), rank.stream);
      rank.upload(norm.weight, c.weight(), rank.stream);
      rank.upload(plain.input, p.input(rank.rank), rank.stream);
      rank.upload(in, q.input(rank.rank), rank.stream);
      if (round % 3 == 0) {
        issue();
      } else {
        TUTTI_CUDA_OK(cudaGraphLaunch(executable, rank.stream));
      }
      rank.comm->synchronize(rank.stream);
      verify_norm(rank, c, norm, "graph");
      verify(rank, p, plain, "graph");
      const std::string complaint = q.complaint(rank.download(out, 2 * codes.count).data());
      if (!complaint.empty()) throw std::runtime_error("round " + std::to_string(round) + ": " + complaint);
    }
    TUTTI_CUDA_OK(cudaGraphExecDestroy(executable));
  });
}

// A difference that all_reduce would not see: the same number of elements in other rows.
TEST(Serving, OtherRowsAreAMismatch) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    NormShape shape;
    shape.rows = rank.rank == 0 ? 2 : 4;
    shape.hidden = rank.rank == 0 ? 1024 : 512;
    const NormBuffers b = prepare_norm(rank, NormCase(shape, rank.size, 1));
    rank.comm->all_reduce_add_rms_norm(norm_call(shape, b), rank.stream);
    std::string text;
    try {
      rank.comm->synchronize(rank.stream);
    } catch (const Error& error) {
      text = error.what();
    }
    const std::string mine = "all_reduce_add_rms_norm bf16[2048] in rows of " + std::to_string(shape.hidden);
    if (text.find("different calls") == std::string::npos || text.find(mine) == std::string::npos) {
      throw std::runtime_error("not the error that names the call: " + text);
    }
  });
}

TEST(Serving, AMissingRankIsATimeout) {
  for (const char* algorithm : {"ll_one_shot", "ll128_two_shot", "bulk_two_shot"}) {
    GpuWorld world;
    world.size = 3;
    world.options.algorithm = algorithm;
    run_gpu_ranks(world, [&](Rank& rank) {
      rank.comm->set_timeout(std::chrono::milliseconds(300));
      NormShape shape;
      shape.rows = 6;
      shape.hidden = 1024;
      const NormBuffers b = prepare_norm(rank, NormCase(shape, rank.size, 1));
      if (rank.rank != 1) {
        rank.comm->all_reduce_add_rms_norm(norm_call(shape, b), rank.stream);
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
