// What a collective leaves to the model, as CSV on standard output: the bandwidth of all-reduce by the number of its
// blocks (TUTTI_CUDA_MAX_BLOCKS), and how well it overlaps with a matrix multiplication.
//
//   cuda_sharing_bench [--ranks N] [--blocks 4,8,16,24,32,64] [--sizes 64M,256M] [--repeats 9] [--budget-s 60]
//
// Rows "bandwidth": through scratch ("scratch") and without copies ("direct"). Rows "overlap", through scratch: the
// multiplications alone, the all-reduces alone (as many as take about as long), both on two streams that start
// together. `hidden` is the part of the shorter one that the other hides: 1 is perfect, 0 is one after the other. Each
// time is the longest of all ranks; the median of the repetitions is reported. A rank is a thread with a GPU of its own
// (several on one GPU if there are fewer); bf16 sums, results checked first.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/memory_store.h"
#include "gpu_ranks.h"
#include "matmul.cuh"
#include "options.h"
#include "tutti/cuda/communicator.h"

namespace {

namespace bench = tutti::bench;
using bench::ok;
using tutti::CudaCommunicator;

constexpr int kOrder = 4096;  // of the matrices
constexpr int kProducts = 4;  // a repetition

struct Options {
  int ranks = 0, repeats = 9;
  double budget_s = 60;
  std::vector<std::size_t> blocks{4, 8, 16, 24, 32, 64};
  std::vector<std::size_t> sizes{std::size_t{64} << 20, std::size_t{256} << 20};
};

Options parse(int argc, char** argv) {
  Options o;
  bench::read_options(argc, argv,
                      {{"--ranks", &o.ranks},
                       {"--repeats", &o.repeats},
                       {"--budget-s", &o.budget_s},
                       {"--blocks", &o.blocks},
                       {"--sizes", &o.sizes}});
  return o;
}

struct Rank {
  int rank = 0;
  cudaStream_t compute = nullptr, collect = nullptr;  // the second of higher priority, as torch's groups have it
  cudaEvent_t start = nullptr, computed = nullptr, end = nullptr;
  float *a = nullptr, *b = nullptr, *c = nullptr;
  std::size_t most = 0;      // bytes of a buffer
  std::byte* own = nullptr;  // two buffers that nobody else maps
  std::map<std::size_t, std::shared_ptr<CudaCommunicator>> by_blocks;
  std::map<std::size_t, std::shared_ptr<tutti::CudaMemory>> mapped;  // of each
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), ranks_(options.ranks) {
    cudaDeviceProp prop{};
    ok(cudaGetDeviceProperties(&prop, 0), "cudaGetDeviceProperties");
    std::printf("# %d x %s, %d multiprocessors, %d ranks, bf16; fp32 products of order %d, %d a repetition\n",
                ranks_.devices(), prop.name, prop.multiProcessorCount, ranks_.size(), kOrder, kProducts);
    std::printf("mode,bytes,blocks,path,calls,all_reduce_us,algbw_gbs,busbw_gbs,products_us,both_us,hidden\n");
  }

  void run_all() {
    ranks_.run([this](int rank) { run_rank(rank); });
  }

 private:
  void prepare(Rank& rank) {
    int least = 0, greatest = 0;
    ok(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    ok(cudaStreamCreateWithPriority(&rank.compute, cudaStreamNonBlocking, least), "cudaStreamCreate");
    ok(cudaStreamCreateWithPriority(&rank.collect, cudaStreamNonBlocking, greatest), "cudaStreamCreate");
    for (cudaEvent_t* event : {&rank.start, &rank.computed, &rank.end}) ok(cudaEventCreate(event), "cudaEventCreate");
    const std::size_t bytes = sizeof(float) * kOrder * kOrder;
    for (float** matrix : {&rank.a, &rank.b, &rank.c}) ok(cudaMalloc(matrix, bytes), "cudaMalloc");
    const std::vector<float> ones(static_cast<std::size_t>(kOrder) * kOrder, 1.0F);
    for (float* matrix : {rank.a, rank.b}) ok(cudaMemcpy(matrix, ones.data(), bytes, cudaMemcpyHostToDevice), "copy");
    for (const std::size_t blocks : options_.blocks) {
      tutti::CudaOptions o;
      o.lasting_streams = true;
      o.device = ranks_.device_of(rank.rank);
      o.settings().cuda_max_blocks = static_cast<int>(blocks);
      o.timeout = std::chrono::seconds(10);
      rank.by_blocks[blocks] =
          CudaCommunicator::create(store_, "blocks " + std::to_string(blocks), rank.rank, ranks_.size(), o);
    }
    const std::size_t most = *std::max_element(options_.sizes.begin(), options_.sizes.end());
    rank.most = most;
    ok(cudaMalloc(&rank.own, 2 * most), "cudaMalloc");
    const std::vector<std::uint16_t> two(most / 2, 0x4000);  // 2.0 in bf16
    ok(cudaMemcpy(rank.own, two.data(), most, cudaMemcpyHostToDevice), "copy");
    for (const auto& [blocks, comm] : rank.by_blocks) {
      auto& memory = rank.mapped[blocks] = comm->allocate("buffers", 2 * most);
      ok(cudaMemcpy(memory->data(rank.rank), two.data(), most, cudaMemcpyHostToDevice), "copy");
    }
  }

  void run_rank(int index) {
    Rank rank;
    rank.rank = index;
    prepare(rank);
    ranks_.meet();
    multiply(rank, 1);
    float product = 0;
    ok(cudaMemcpyAsync(&product, rank.c + 7, sizeof(product), cudaMemcpyDeviceToHost, rank.compute), "copy");
    ok(cudaStreamSynchronize(rank.compute), "the first product");
    if (product != static_cast<float>(kOrder)) {
      std::fprintf(stderr, "the product is wrong: %f\n", static_cast<double>(product));
      std::exit(1);
    }
    for (const std::size_t bytes : options_.sizes) {
      for (const std::size_t blocks : options_.blocks) {
        for (const bool direct : {false, true}) bandwidth(rank, bytes, blocks, direct);
        overlap(rank, bytes, blocks);
      }
    }
    ranks_.meet();
    rank.mapped.clear();
  }

  static void multiply(const Rank& rank, int times) {
    for (int i = 0; i < times; ++i) {
      bench::matmul<<<dim3(kOrder / bench::kTile, kOrder / bench::kTile), bench::kMatmulThreads, 0, rank.compute>>>(
          rank.a, rank.b, rank.c, kOrder);
      ok(cudaGetLastError(), "matmul");
    }
  }
  void all_reduce(const Rank& rank, std::size_t bytes, std::size_t blocks, bool direct, int times) const {
    tutti::Call call;
    call.collective = tutti::Collective::kAllReduce;
    call.dtype = tutti::DataType::kBfloat16;
    call.count = bytes / 2;
    std::byte* const buffers = buffers_of(rank, blocks, direct);
    call.input = tutti::Blocks::single(buffers, bytes);
    call.output = tutti::Blocks::single(buffers + rank.most, bytes);
    CudaCommunicator& comm = *rank.by_blocks.at(blocks);
    for (int i = 0; i < times; ++i) comm.run(call, rank.collect);
  }

  // Median over repetitions of the longest of all ranks, in microseconds: from a start that both streams wait for to
  // the end of both.
  double measure(Rank& rank, const std::function<void()>& issue) {
    return bench::median(ranks_.measure(rank.rank, options_.repeats, [&] {
      ok(cudaEventRecord(rank.start, rank.collect), "cudaEventRecord");
      ok(cudaStreamWaitEvent(rank.compute, rank.start, 0), "cudaStreamWaitEvent");
      issue();
      ok(cudaEventRecord(rank.computed, rank.compute), "cudaEventRecord");
      ok(cudaStreamWaitEvent(rank.collect, rank.computed, 0), "cudaStreamWaitEvent");
      ok(cudaEventRecord(rank.end, rank.collect), "cudaEventRecord");
      ok(cudaStreamSynchronize(rank.collect), "a repetition");
      return bench::elapsed_us(rank.start, rank.end);
    }));
  }

  // Of this way of calling; a communicator copies nothing in memory of its own.
  static std::byte* buffers_of(const Rank& rank, std::size_t blocks, bool direct) {
    return direct ? rank.mapped.at(blocks)->data(rank.rank) : rank.own;
  }

  void check(const Rank& rank, std::size_t bytes, const std::byte* output) const {
    std::uint16_t got[64];
    const std::byte* out = output + bytes - sizeof(got);
    ok(cudaMemcpyAsync(got, out, sizeof(got), cudaMemcpyDeviceToHost, rank.collect), "copy");
    ok(cudaStreamSynchronize(rank.collect), "the first call");
    for (const std::uint16_t element : got) {
      // 2 a rank, exact in bf16: 0x4000 is 2.0.
      const std::uint32_t bits = static_cast<std::uint32_t>(element) << 16;
      float value = 0;
      std::memcpy(&value, &bits, sizeof(value));
      if (value != 2.0F * static_cast<float>(ranks_.size())) {
        std::fprintf(stderr, "rank %d: an all-reduce of %zu bytes is wrong\n", rank.rank, bytes);
        std::exit(1);
      }
    }
  }

  void print(const char* mode, std::size_t bytes, std::size_t blocks, const char* path, int calls, double us,
             const std::string& rest) const {
    const double n = ranks_.size(), algbw = static_cast<double>(bytes) * calls / us / 1e3;
    std::printf("%s,%zu,%zu,%s,%d,%.2f,%.2f,%.2f,%s\n", mode, bytes, blocks, path, calls, us / calls, algbw,
                algbw * 2 * (n - 1) / n, rest.c_str());
    std::fflush(stdout);
  }

  void bandwidth(Rank& rank, std::size_t bytes, std::size_t blocks, bool direct) {
    if (ranks_.out_of_time(rank.rank, options_.budget_s)) return;
    std::byte* const output = buffers_of(rank, blocks, direct) + rank.most;
    ok(cudaMemsetAsync(output, 0xa5, bytes, rank.collect), "memset");
    all_reduce(rank, bytes, blocks, direct, 1);
    check(rank, bytes, output);
    constexpr int kCalls = 4;
    const double us = measure(rank, [&] { all_reduce(rank, bytes, blocks, direct, kCalls); });
    if (rank.rank == 0) print("bandwidth", bytes, blocks, direct ? "direct" : "scratch", kCalls, us, ",,");
  }

  void overlap(Rank& rank, std::size_t bytes, std::size_t blocks) {
    if (ranks_.out_of_time(rank.rank, options_.budget_s)) return;
    const double products = measure(rank, [&] { multiply(rank, kProducts); });
    const double one = measure(rank, [&] { all_reduce(rank, bytes, blocks, false, 1); });
    const int calls = std::max(1, static_cast<int>(std::lround(products / one)));
    const double collectives = measure(rank, [&] { all_reduce(rank, bytes, blocks, false, calls); });
    const double both = measure(rank, [&] {
      multiply(rank, kProducts);
      all_reduce(rank, bytes, blocks, false, calls);
    });
    if (rank.rank != 0) return;
    char rest[96];
    std::snprintf(rest, sizeof(rest), "%.2f,%.2f,%.2f", products, both,
                  (products + collectives - both) / std::min(products, collectives));
    print("overlap", bytes, blocks, "scratch", calls, collectives, rest);
  }

  const Options options_;
  bench::GpuRanks ranks_;
  const std::shared_ptr<tutti::MemoryStore> store_ = std::make_shared<tutti::MemoryStore>();
};

}  // namespace

int main(int argc, char** argv) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  Bench(parse(argc, argv)).run_all();
  return 0;
}
