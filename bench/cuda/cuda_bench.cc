// Sweeps collectives on GPUs: algorithm x blocks x threads x size, in CUDA graphs and eagerly, with NCCL beside it in
// the same run. CSV to standard output.
//
//   cuda_bench [--ranks N] [--collectives a,b] [--algorithms x,y] [--sizes 1K,64K,16M] [--modes graph,eager]
//              [--calls 20] [--repeats 15] [--nccl libnccl.so.2] [--windows yes|no] [--budget-s 400]
//
// A rank is a thread with a GPU of its own (several on one GPU if there are fewer). A repetition is `calls` calls
// between two events of the rank's stream; its time is the longest of all ranks; the median and the minimum of the
// repetitions are reported, a call. `bytes` is what nccl-tests calls the size: the whole of what is gathered or
// scattered. All calls use one pair of bf16 buffers; NCCL is measured twice, on them ("default") and on buffers of its
// own that are registered as symmetric windows ("windows"). Results are checked before each measurement; a wrong one
// ends the program.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "bootstrap/memory_store.h"
#include "gpu_ranks.h"
#include "nccl_peer.h"
#include "options.h"
#include "tutti/cuda/communicator.h"

namespace {

namespace bench = tutti::bench;
using bench::ok;
using tutti::Blocks;
using tutti::Call;
using tutti::Collective;
using tutti::CudaCommunicator;

struct Options {
  int ranks = 0;
  std::vector<std::string> collectives{"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
  std::vector<std::string> algorithms{""};
  std::vector<std::size_t> sizes;
  std::vector<std::string> modes{"graph", "eager"};
  int calls = 20, repeats = 15;
  std::string nccl, windows = "yes";
  double budget_s = 500;
};

Options parse(int argc, char** argv) {
  Options o;
  bench::read_options(argc, argv,
                      {{"--ranks", &o.ranks},
                       {"--collectives", &o.collectives},
                       {"--algorithms", &o.algorithms},
                       {"--modes", &o.modes},
                       {"--calls", &o.calls},
                       {"--repeats", &o.repeats},
                       {"--nccl", &o.nccl},
                       {"--windows", &o.windows},
                       {"--budget-s", &o.budget_s},
                       {"--sizes", &o.sizes}});
  std::replace(o.algorithms.begin(), o.algorithms.end(), std::string("auto"), std::string());
  if (o.sizes.empty()) {
    for (std::size_t size = 1024; size <= (std::size_t{256} << 20); size *= 4) o.sizes.push_back(size);
  }
  return o;
}

Collective collective_of(const std::string& name) {
  for (int c = 0; c < tutti::kCollectiveCount; ++c) {
    if (tutti::to_string(static_cast<Collective>(c)) == name) return static_cast<Collective>(c);
  }
  std::fprintf(stderr, "no collective %s\n", name.c_str());
  std::exit(1);
}

bool many_in(Collective c) { return c == Collective::kReduceScatter || c == Collective::kAllToAll; }
bool many_out(Collective c) { return c == Collective::kAllGather || c == Collective::kAllToAll; }

// One rank's side of a measurement.
struct Rank {
  int rank = 0, size = 1;
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, end = nullptr;
  std::byte *in = nullptr, *out = nullptr;
  std::byte* window = nullptr;  // as much as both, registered with NCCL
  std::size_t capacity = 0;
  std::map<std::string, std::shared_ptr<tutti::CudaMemory>> mapped;  // of the algorithms that copy nothing
};

// "direct@16": without copies, with so many blocks.
bool is_direct(const std::string& algorithm) { return algorithm.rfind("direct", 0) == 0; }
// These run on memory that all ranks map, from their own communicator.
bool is_mapped(const std::string& algorithm) { return is_direct(algorithm) || algorithm.rfind("copy_engine", 0) == 0; }
void force(const std::string& algorithm, tutti::Config& config) {
  if (!is_direct(algorithm)) {
    config.cuda_algorithm = algorithm;
  } else if (algorithm.size() > 7) {
    config.cuda_max_blocks = std::stoi(algorithm.substr(7));
  }
}

// Small whole numbers of bf16, different by rank and place; sums of them are exact.
std::uint16_t pattern(int rank, std::size_t i) {
  const float f = static_cast<float>((i + static_cast<std::size_t>(rank) * 3) % 11);
  std::uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return static_cast<std::uint16_t>(bits >> 16);
}
float value_of(std::uint16_t b) {
  const std::uint32_t bits = static_cast<std::uint32_t>(b) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// Looks at the first and last 64 elements of each block of the output.
bool right(const Rank& r, Collective c, std::size_t count) {
  const std::size_t blocks = many_out(c) ? static_cast<std::size_t>(r.size) : 1;
  const std::size_t edge = std::min<std::size_t>(64, count);
  std::vector<std::uint16_t> got(edge);
  for (std::size_t b = 0; b < blocks; ++b) {
    for (const std::size_t at : {std::size_t{0}, count - edge}) {
      ok(cudaMemcpyAsync(got.data(), r.out + (b * count + at) * 2, edge * 2, cudaMemcpyDeviceToHost, r.stream), "copy");
      ok(cudaStreamSynchronize(r.stream), "synchronize");
      for (std::size_t i = 0; i < edge; ++i) {
        const std::size_t place = (many_in(c) ? static_cast<std::size_t>(r.rank) * count : 0) + at + i;
        float want = 0;
        if (many_out(c)) {
          want = value_of(pattern(static_cast<int>(b), place));
        } else {
          for (int p = 0; p < r.size; ++p) want += value_of(pattern(p, place));
        }
        if (value_of(got[i]) != want) return false;
      }
    }
  }
  return true;
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), ranks_(options.ranks) {
    if (!options_.nccl.empty() && ranks_.devices() >= ranks_.size()) {
      nccl_ = std::make_unique<bench::Nccl>(options_.nccl);
      nccl_comms_ = nccl_->init(ranks_.size());
    }
    cudaDeviceProp prop{};
    ok(cudaGetDeviceProperties(&prop, 0), "cudaGetDeviceProperties");
    std::printf("# %d x %s, %d ranks, bf16, %d calls a repetition, %d repetitions, NCCL %d\n", ranks_.devices(),
                prop.name, ranks_.size(), options_.calls, options_.repeats, nccl_ ? nccl_->version() : 0);
    std::printf("mode,collective,ranks,bytes,implementation,algorithm,median_us,min_us,algbw_gbs,busbw_gbs\n");
  }

  void run_all() {
    ranks_.run([this](int rank) { run_rank(rank); });
  }

 private:
  void run_rank(int index) {
    Rank rank;
    rank.rank = index;
    rank.size = ranks_.size();
    ok(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), "cudaStreamCreate");
    ok(cudaEventCreate(&rank.start), "cudaEventCreate");
    ok(cudaEventCreate(&rank.end), "cudaEventCreate");
    rank.capacity = *std::max_element(options_.sizes.begin(), options_.sizes.end()) / 256 * 256 + 4096;
    std::map<std::string, std::shared_ptr<CudaCommunicator>> comms;
    for (const std::string& algorithm : options_.algorithms) {
      tutti::CudaOptions o;
      o.lasting_streams = true;
      o.device = ranks_.device_of(index);
      force(algorithm, o.settings());
      o.timeout = std::chrono::seconds(10);
      comms[algorithm] = CudaCommunicator::create(store_, "bench " + algorithm, index, ranks_.size(), o);
    }
    ok(cudaMalloc(&rank.in, 2 * rank.capacity), "cudaMalloc");
    rank.out = rank.in + rank.capacity;
    if (index == 0) std::printf("# transport: %s\n", comms.begin()->second->transport().c_str());
    std::vector<std::uint16_t> data(rank.capacity / 2);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = pattern(index, i);
    ok(cudaMemcpy(rank.in, data.data(), rank.capacity, cudaMemcpyHostToDevice), "cudaMemcpy");
    for (const auto& [algorithm, comm] : comms) {
      if (!is_mapped(algorithm)) continue;
      auto& memory = rank.mapped[algorithm] = comm->allocate("buffers", 2 * rank.capacity);
      ok(cudaMemcpy(memory->data(index), data.data(), rank.capacity, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    if (nccl_ && options_.windows == "yes") {
      rank.window =
          static_cast<std::byte*>(nccl_->window(2 * rank.capacity, nccl_comms_[static_cast<std::size_t>(index)]));
      if (rank.window != nullptr) {
        ok(cudaMemcpy(rank.window, data.data(), rank.capacity, cudaMemcpyHostToDevice), "cudaMemcpy");
      }
    }
    for (const std::string& name : options_.collectives) {
      for (const std::size_t bytes : options_.sizes) {
        for (const std::string& mode : options_.modes) measure_all(rank, comms, name, bytes, mode);
      }
    }
    ranks_.meet();
    rank.mapped.clear();
  }

  void measure_all(Rank& rank, std::map<std::string, std::shared_ptr<CudaCommunicator>>& comms, const std::string& name,
                   std::size_t bytes, const std::string& mode) {
    const Collective c = collective_of(name);
    const auto n = static_cast<std::size_t>(rank.size);
    const std::size_t count = std::max<std::size_t>(1, bytes / 2 / (many_in(c) || many_out(c) ? n : 1));
    Call call;
    call.collective = c;
    call.dtype = tutti::DataType::kBfloat16;
    call.count = count;
    call.input = Blocks::single(rank.in, count * 2);
    call.output = Blocks::single(rank.out, count * 2);
    std::string last;
    for (const std::string& algorithm : options_.algorithms) {
      CudaCommunicator& comm = *comms[algorithm];
      if (is_mapped(algorithm)) {
        std::byte* const usual_in = std::exchange(rank.in, rank.mapped.at(algorithm)->data(rank.rank));
        std::byte* const usual_out = std::exchange(rank.out, rank.in + rank.capacity);
        Call mapped = call;
        mapped.input = Blocks::single(rank.in, count * 2);
        mapped.output = Blocks::single(rank.out, count * 2);
        // What cannot run this call falls back, and is measured under its own name.
        if (comm.explain(mapped) == (is_direct(algorithm) ? "registered" : "copy_engine")) {
          measure(rank, c, count, mode, "tutti", algorithm, [&] { comm.run(mapped, rank.stream); });
        }
        rank.in = usual_in;
        rank.out = usual_out;
        continue;
      }
      const std::string chosen = comm.explain(call);
      // A forced algorithm that cannot run this call falls back to the table: measured once.
      if (!algorithm.empty() && chosen.rfind(algorithm.substr(0, algorithm.find('@')), 0) != 0) continue;
      // A forced piece is no part of what explain() says.
      const bool pieces = std::count(algorithm.begin(), algorithm.end(), 'x') > 1;
      const std::string label = pieces ? algorithm : chosen;
      if (label == last) continue;
      last = label;
      measure(rank, c, count, mode, "tutti", label, [&] { comm.run(call, rank.stream); });
      if (const auto failure = comm.failure()) {
        std::fprintf(stderr, "%s\n", failure->what());
        std::exit(1);
      }
    }
    if (nccl_ && name != "all_to_all") {
      void* comm = nccl_comms_[static_cast<std::size_t>(rank.rank)];
      measure(rank, c, count, mode, "nccl", "default",
              [&] { nccl_->run(name, rank.in, rank.out, count, comm, rank.stream); });
      if (rank.window == nullptr) return;
      std::byte* const usual = std::exchange(rank.out, rank.window + rank.capacity);
      measure(rank, c, count, mode, "nccl", "windows",
              [&] { nccl_->run(name, rank.window, rank.out, count, comm, rank.stream); });
      rank.out = usual;
    }
  }

  void measure(Rank& rank, Collective c, std::size_t count, const std::string& mode, const char* implementation,
               const std::string& algorithm, const std::function<void()>& issue) {
    if (ranks_.out_of_time(rank.rank, options_.budget_s)) return;
    const std::size_t total = count * 2 * (many_in(c) || many_out(c) ? static_cast<std::size_t>(rank.size) : 1);
    ok(cudaMemsetAsync(rank.out, 0xa5, std::min(rank.capacity, total), rank.stream), "cudaMemset");
    issue();
    ok(cudaStreamSynchronize(rank.stream), "the first call");
    if (!right(rank, c, count)) {
      std::fprintf(stderr, "rank %d: %s of %zu elements by %s %s is wrong\n", rank.rank,
                   std::string(tutti::to_string(c)).c_str(), count, implementation, algorithm.c_str());
      std::exit(1);
    }
    const int calls = total >= (std::size_t{64} << 20) ? std::max(1, options_.calls / 5) : options_.calls;
    const cudaGraphExec_t graph = mode == "graph" ? bench::capture(rank.stream, calls, issue) : nullptr;
    ok(cudaStreamSynchronize(rank.stream), "synchronize");
    const std::vector<double> times = ranks_.measure(rank.rank, options_.repeats, [&] {
      ok(cudaEventRecord(rank.start, rank.stream), "cudaEventRecord");
      if (graph != nullptr) {
        ok(cudaGraphLaunch(graph, rank.stream), "cudaGraphLaunch");
      } else {
        for (int i = 0; i < calls; ++i) issue();
      }
      ok(cudaEventRecord(rank.end, rank.stream), "cudaEventRecord");
      ok(cudaStreamSynchronize(rank.stream), "a repetition");
      return bench::elapsed_us(rank.start, rank.end) / calls;
    });
    if (rank.rank == 0) report(c, total, mode, implementation, algorithm, times);
    if (graph != nullptr) ok(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
  }

  void report(Collective c, std::size_t bytes, const std::string& mode, const char* implementation,
              const std::string& algorithm, const std::vector<double>& times) const {
    const double median = bench::median(times), n = ranks_.size();
    const double bandwidth = static_cast<double>(bytes) / median / 1e3;
    const double factor = c == Collective::kAllReduce ? 2 * (n - 1) / n : (n - 1) / n;
    std::printf("%s,%s,%d,%zu,%s,%s,%.2f,%.2f,%.2f,%.2f\n", mode.c_str(), std::string(tutti::to_string(c)).c_str(),
                ranks_.size(), bytes, implementation, algorithm.c_str(), median, times.front(), bandwidth,
                bandwidth * factor);
    std::fflush(stdout);
  }

  const Options options_;
  bench::GpuRanks ranks_;
  std::unique_ptr<bench::Nccl> nccl_;
  std::vector<bench::Nccl::Comm> nccl_comms_;
  const std::shared_ptr<tutti::MemoryStore> store_ = std::make_shared<tutti::MemoryStore>();
};

}  // namespace

int main(int argc, char** argv) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  Bench(parse(argc, argv)).run_all();
  return 0;
}
