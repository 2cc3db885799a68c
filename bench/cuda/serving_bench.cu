// The calls of inference engines beside what they replace, in CUDA graphs, bf16. CSV to standard output.
//
//   cuda_serving_bench [--ranks N] [--hidden 2048,4096,8192] [--rows 1,8,64,512] [--calls 20] [--repeats 15]
//
//   fused      all_reduce_add_rms_norm
//   one_kernel the same, kept to its one kernel where that takes the rows
//   composed   all_reduce, then a kernel of this program that adds the residual and normalises, a block a row
//   sum        all_reduce; sum_fp8, sum_int8: all_reduce_quantized in blocks of 128
//
// A rank is a thread with a GPU of its own (several on one GPU if there are fewer). A repetition is `calls` calls in a
// graph between two events; its time is the longest of all ranks; the median and the minimum are reported, a call. The
// fused result is compared with the composed one before anything is measured; a difference of more than a step of bf16
// ends the program.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/memory_store.h"
#include "gpu_ranks.h"
#include "options.h"
#include "tutti/cuda/communicator.h"

namespace {

namespace bench = tutti::bench;
using bench::ok;
using tutti::Blocks;
using tutti::Call;
using tutti::CudaCommunicator;
using Bf16 = __nv_bfloat16;

struct Options {
  int ranks = 0, calls = 20, repeats = 15;
  std::vector<std::size_t> hidden{2048, 4096, 8192}, rows{1, 8, 64, 512};
};

Options parse(int argc, char** argv) {
  Options o;
  bench::read_options(argc, argv,
                      {{"--ranks", &o.ranks},
                       {"--calls", &o.calls},
                       {"--repeats", &o.repeats},
                       {"--hidden", &o.hidden},
                       {"--rows", &o.rows}});
  return o;
}

// sum += residual, residual = sum, out = rms_norm(sum) * weight: two elements a thread, a block a row.
__global__ void add_rms_norm_kernel(const Bf16* sum, Bf16* residual, const Bf16* weight, Bf16* out, int hidden) {
  __shared__ float parts[32];
  const auto* x = reinterpret_cast<const __nv_bfloat162*>(sum + std::size_t{blockIdx.x} * hidden);
  auto* r = reinterpret_cast<__nv_bfloat162*>(residual + std::size_t{blockIdx.x} * hidden);
  auto* y = reinterpret_cast<__nv_bfloat162*>(out + std::size_t{blockIdx.x} * hidden);
  const auto* w = reinterpret_cast<const __nv_bfloat162*>(weight);
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < hidden / 2; i += static_cast<int>(blockDim.x)) {
    const __nv_bfloat162 s = __hadd2(x[i], r[i]);
    r[i] = s;
    const float2 f = __bfloat1622float2(s);
    squares += f.x * f.x + f.y * f.y;
  }
  for (int d = 16; d > 0; d /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, d);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = squares;
  __syncthreads();
  float total = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) total += parts[i];
  const float inverse = rsqrtf(total / static_cast<float>(hidden) + 1e-6f);
  for (int i = static_cast<int>(threadIdx.x); i < hidden / 2; i += static_cast<int>(blockDim.x)) {
    const float2 f = __bfloat1622float2(r[i]);
    y[i] = __hmul2(__floats2bfloat162_rn(f.x * inverse, f.y * inverse), w[i]);
  }
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), ranks_(options.ranks) {
    std::printf("what,ranks,rows,hidden,bytes,median_us,min_us\n");
  }
  void run() {
    ranks_.run([this](int rank) { run_rank(rank); });
  }

 private:
  struct Rank {
    int rank = 0;
    cudaStream_t stream = nullptr;
    cudaEvent_t start = nullptr, end = nullptr;
    std::shared_ptr<CudaCommunicator> comm, one_shot;
    Bf16 *x = nullptr, *residual = nullptr, *weight = nullptr, *sum = nullptr, *out = nullptr;
    std::size_t rows = 0, hidden = 0;
  };

  Bf16* filled(std::size_t count, int seed) const {
    std::vector<Bf16> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = __float2bfloat16(static_cast<float>((i * 37 + static_cast<std::size_t>(seed) * 11) % 101) / 50 - 1);
    }
    void* memory = nullptr;
    ok(cudaMalloc(&memory, count * 2), "cudaMalloc");
    ok(cudaMemcpy(memory, values.data(), count * 2, cudaMemcpyHostToDevice), "cudaMemcpy");
    return static_cast<Bf16*>(memory);
  }

  void run_rank(int index) {
    Rank r;
    r.rank = index;
    ok(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking), "cudaStreamCreate");
    // Loaded now: loading it beside a kernel that waits for a peer would wait for that kernel.
    cudaFuncAttributes attributes{};
    ok(cudaFuncGetAttributes(&attributes, add_rms_norm_kernel), "cudaFuncGetAttributes");
    ok(cudaEventCreate(&r.start), "cudaEventCreate");
    ok(cudaEventCreate(&r.end), "cudaEventCreate");
    const std::size_t widest = *std::max_element(options_.hidden.begin(), options_.hidden.end());
    const std::size_t most = *std::max_element(options_.rows.begin(), options_.rows.end()) * widest;
    r.x = filled(most, index);
    r.residual = filled(most, 100);
    r.weight = filled(widest, 101);
    r.sum = filled(most, 0);
    r.out = filled(most, 0);
    tutti::CudaOptions o;
    o.lasting_streams = true;
    o.device = ranks_.device_of(index);
    o.timeout = std::chrono::seconds(10);
    r.comm = CudaCommunicator::create(store_, "serving", index, ranks_.size(), o);
    o.settings().cuda_algorithm = "ll_one_shot";
    r.one_shot = CudaCommunicator::create(store_, "one shot", index, ranks_.size(), o);
    for (const std::size_t hidden : options_.hidden) {
      for (const std::size_t rows : options_.rows) {
        r.hidden = hidden;
        r.rows = rows;
        measure_all(r);
      }
    }
    ranks_.meet();
  }

  static void fused(const Rank& r, CudaCommunicator& comm, Bf16* residual_output) {
    tutti::AddRmsNorm call;
    call.rows = r.rows;
    call.hidden = r.hidden;
    call.input = r.x;
    call.residual = r.residual;
    call.weight = r.weight;
    call.residual_output = residual_output;
    call.output = r.out;
    comm.serving()->all_reduce_add_rms_norm(call, r.stream);
  }
  static void plain_sum(const Rank& r) {
    Call call;
    call.collective = tutti::Collective::kAllReduce;
    call.dtype = tutti::DataType::kBfloat16;
    call.count = r.rows * r.hidden;
    call.input = Blocks::single(r.x, call.count * 2);
    call.output = Blocks::single(r.sum, call.count * 2);
    r.comm->run(call, r.stream);
  }
  static void composed(const Rank& r) {
    plain_sum(r);
    add_rms_norm_kernel<<<static_cast<unsigned>(r.rows), 512, 0, r.stream>>>(r.sum, r.residual, r.weight, r.out,
                                                                             static_cast<int>(r.hidden));
  }
  static void code_sum(const Rank& r, tutti::DataType code) {
    tutti::QuantizedAllReduce call;
    call.code = code;
    call.count = r.rows * r.hidden;
    call.input = r.x;
    call.output = r.sum;
    r.comm->serving()->all_reduce_quantized(call, r.stream);
  }

  void check(const Rank& r) const {
    const std::size_t count = r.rows * r.hidden;
    std::vector<Bf16> one(count), two(count);
    fused(r, *r.comm, r.sum);  // the residual stays as it is
    ok(cudaMemcpyAsync(one.data(), r.out, count * 2, cudaMemcpyDeviceToHost, r.stream), "copy");
    r.comm->synchronize(r.stream);
    composed(r);
    ok(cudaMemcpyAsync(two.data(), r.out, count * 2, cudaMemcpyDeviceToHost, r.stream), "copy");
    r.comm->synchronize(r.stream);
    for (std::size_t i = 0; i < count; ++i) {
      const float a = __bfloat162float(one[i]), b = __bfloat162float(two[i]);
      if (!(std::abs(a - b) <= std::abs(b) / 64 + 1e-6f)) {
        std::fprintf(stderr, "rank %d: element %zu of %zu x %zu is %g fused, %g composed\n", r.rank, i, r.rows,
                     r.hidden, a, b);
        std::exit(1);
      }
    }
  }

  void measure_all(Rank& r) {
    check(r);
    measure(r, "fused", [&] { fused(r, *r.comm, r.residual); });
    // A block holds 8 KB, and there are at most 64.
    if (r.hidden * 2 <= 8192 && r.rows * r.hidden * 2 <= 64 * 8192) {
      measure(r, "one_kernel", [&] { fused(r, *r.one_shot, r.residual); });
    }
    measure(r, "composed", [&] { composed(r); });
    measure(r, "sum", [&] { plain_sum(r); });
    measure(r, "sum_fp8", [&] { code_sum(r, tutti::DataType::kFloat8E4M3fn); });
    measure(r, "sum_int8", [&] { code_sum(r, tutti::DataType::kInt8); });
    // Many additions have made the residual large: start the next size afresh.
    ok(cudaMemsetAsync(r.residual, 0, r.rows * r.hidden * 2, r.stream), "cudaMemset");
    ok(cudaStreamSynchronize(r.stream), "synchronize");
  }

  void measure(Rank& r, const char* what, const std::function<void()>& issue) {
    const cudaGraphExec_t graph = bench::capture(r.stream, options_.calls, issue);
    ok(cudaStreamSynchronize(r.stream), "synchronize");
    const std::vector<double> times = ranks_.measure(r.rank, options_.repeats, [&] {
      ok(cudaEventRecord(r.start, r.stream), "cudaEventRecord");
      ok(cudaGraphLaunch(graph, r.stream), "cudaGraphLaunch");
      ok(cudaEventRecord(r.end, r.stream), "cudaEventRecord");
      r.comm->synchronize(r.stream);
      return bench::elapsed_us(r.start, r.end) / options_.calls;
    });
    ok(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
    if (r.rank != 0) return;
    std::printf("%s,%d,%zu,%zu,%zu,%.2f,%.2f\n", what, ranks_.size(), r.rows, r.hidden, r.rows * r.hidden * 2,
                bench::median(times), times.front());
    std::fflush(stdout);
  }

  const Options options_;
  bench::GpuRanks ranks_;
  const std::shared_ptr<tutti::MemoryStore> store_ = std::make_shared<tutti::MemoryStore>();
};

}  // namespace

int main(int argc, char** argv) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  Bench(parse(argc, argv)).run();
  return 0;
}
