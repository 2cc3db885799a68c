// Plans on GPUs: interpreted, compiled, and beside them Tutti's own kernels and NCCL. Prints a table in CSV.
//
// cuda_plans_bench --plans FOLDER [--ranks N] [--sizes 1K,64K,1M] [--calls 20] [--repeats 20] [--buffers mapped]
//   [--nccl libnccl.so.2]
//
// FOLDER has plans (*.json) of all-reduces and all-gathers for N ranks (0: the GPUs there are; more ranks than GPUs
// share them); those that are made for calls in place are called so. --buffers: of allocate(), which peers reach into
// (mapped), or not (own); NCCL's are never registered. Elements are bf16, results are checked. A time is that of one
// call in a graph of --calls of them: the longest of all ranks, median of --repeats replays. A size is the whole
// message: of an all-gather, all that a rank has at the end.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/memory_store.h"
#include "gpu_ranks.h"
#include "nccl_peer.h"
#include "plan/operations.h"
#include "plan/reader.h"
#include "tutti/cuda/communicator.h"
#include "tutti/error.h"

namespace {

using tutti::Blocks;
using tutti::Call;
using tutti::Collective;
using tutti::CudaCommunicator;
using tutti::bench::ok;

struct Options {
  std::string plans, nccl, buffers = "mapped";
  std::vector<std::size_t> sizes{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
  int ranks = 0, calls = 20, repeats = 20;
};

std::vector<std::size_t> parse_sizes(const std::string& text) {
  std::vector<std::size_t> sizes;
  std::stringstream list(text);
  for (std::string one; std::getline(list, one, ',');) {
    const std::size_t unit = one.back() == 'K' ? 1UL << 10 : one.back() == 'M' ? 1UL << 20 : 1;
    sizes.push_back(std::stoull(one) * unit);
  }
  return sizes;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--plans") options.plans = value;
    if (name == "--nccl") options.nccl = value;
    if (name == "--buffers") options.buffers = value;
    if (name == "--sizes") options.sizes = parse_sizes(value);
    if (name == "--ranks") options.ranks = std::stoi(value);
    if (name == "--calls") options.calls = std::stoi(value);
    if (name == "--repeats") options.repeats = std::stoi(value);
  }
  if (options.plans.empty() || (options.buffers != "mapped" && options.buffers != "own")) {
    std::fprintf(stderr,
                 "usage: %s --plans FOLDER [--ranks N] [--sizes 1K,64K] [--buffers mapped|own] [--nccl LIBRARY]\n",
                 argv[0]);
    std::exit(2);
  }
  return options;
}

struct PlanFile {
  std::string path, name;
  Collective collective;
  bool in_place = false;
};

std::vector<PlanFile> plans_in(const std::string& folder, int ranks) {
  std::vector<PlanFile> list;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    try {
      const tutti::plan::Plan plan = tutti::plan::read_plan(text);
      const auto collective = tutti::plan::rules_of(plan.collective).call;
      if (static_cast<int>(plan.ranks.size()) != ranks ||
          (collective != Collective::kAllReduce && collective != Collective::kAllGather)) {
        continue;
      }
      list.push_back({entry.path(), plan.name, *collective, plan.in_place});
    } catch (const tutti::Error& error) {
      std::fprintf(stderr, "# skipped %s: %s\n", entry.path().c_str(), error.what());
    }
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return list;
}

// Small integers, so that sums of bf16 are exact.
int number(int rank, std::size_t i) { return static_cast<int>((i + static_cast<std::size_t>(rank) * 3) % 7); }
std::uint16_t bf16(int value) {
  const auto f = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &f, 4);
  return static_cast<std::uint16_t>(bits >> 16);
}

struct Rank {
  int rank = 0, size = 1;
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, end = nullptr;
  std::byte *in = nullptr, *out = nullptr;  // those that calls use now
  std::byte *own_in = nullptr, *own_out = nullptr;
  std::vector<std::uint16_t> data;  // of the input
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), ranks_(options.ranks), plans_(plans_in(options.plans, ranks_.size())) {
    if (!options_.nccl.empty() && ranks_.devices() >= ranks_.size()) {
      nccl_ = std::make_unique<tutti::bench::Nccl>(options_.nccl);
      nccl_comms_ = nccl_->init(ranks_.size());
    }
    cudaDeviceProp prop{};
    ok(cudaGetDeviceProperties(&prop, 0), "cudaGetDeviceProperties");
    std::printf("# %d x %s, %d ranks, bf16, graphs of %d calls, median of %d, NCCL %d\n", ranks_.devices(), prop.name,
                ranks_.size(), options_.calls, options_.repeats, nccl_ ? nccl_->version() : 0);
    std::printf("collective,bytes,implementation,algorithm,median_us,min_us\n");
  }

  void run_all() {
    ranks_.run([this](int index) { run_rank(index); });
  }

 private:
  void run_rank(int index) {
    Rank rank;
    rank.rank = index;
    rank.size = ranks_.size();
    ok(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), "cudaStreamCreate");
    ok(cudaEventCreate(&rank.start), "cudaEventCreate");
    ok(cudaEventCreate(&rank.end), "cudaEventCreate");
    const std::size_t most = *std::max_element(options_.sizes.begin(), options_.sizes.end()) + 4096;
    ok(cudaMalloc(&rank.own_in, most), "cudaMalloc");
    ok(cudaMalloc(&rank.own_out, most), "cudaMalloc");
    rank.data.resize(most / 2);
    for (std::size_t i = 0; i < rank.data.size(); ++i) rank.data[i] = bf16(number(index, i));
    for (const Collective c : {Collective::kAllReduce, Collective::kAllGather}) {
      run_nccl(rank, c);
      run_group(rank, {"", "", c}, "native", "off");
    }
    for (const PlanFile& plan : plans_) {
      for (const char* compile : {"off", "wait"}) {
        run_group(rank, plan, std::string(compile) == "off" ? "interpreted" : "compiled", compile);
      }
    }
    ranks_.meet();
  }

  static Call call_of(const Rank& rank, const PlanFile& plan, std::size_t bytes) {
    Call call;
    call.collective = plan.collective;
    call.dtype = tutti::DataType::kBfloat16;
    const bool gathers = plan.collective == Collective::kAllGather;
    call.count = bytes / 2 / (gathers ? static_cast<std::size_t>(rank.size) : 1);
    call.output = Blocks::single(rank.out, call.count * 2);
    const std::byte* own = gathers ? call.output.data(rank.rank) : rank.out;
    call.input = Blocks::single(plan.in_place ? own : rank.in, call.count * 2);
    return call;
  }

  // All sizes eagerly first, a rank after another, three times: what is compiled is loaded then, while all is quiet.
  void run_group(Rank& rank, const PlanFile& plan, const std::string& implementation, const std::string& compile) {
    tutti::CudaOptions o;
    o.device = ranks_.device_of(rank.rank);
    o.timeout = std::chrono::seconds(20);
    o.settings().plan_path = plan.path;
    o.settings().cuda_compile = compile;
    ranks_.meet();
    if (rank.rank == 0) ++groups_;
    ranks_.meet();
    auto comm = CudaCommunicator::create(store_, "bench " + std::to_string(groups_), rank.rank, rank.size, o);
    const std::size_t most = *std::max_element(options_.sizes.begin(), options_.sizes.end()) + 4096;
    std::shared_ptr<tutti::CudaMemory> mapped;
    if (options_.buffers == "mapped") {
      mapped = comm->allocate("buffers", 2 * most);
      rank.in = mapped->data(rank.rank);
      rank.out = rank.in + most;
    } else {
      use_own(rank);
    }
    for (const std::size_t bytes : options_.sizes) {
      for (int round = 0; round < 3; ++round) {
        for (int r = 0; r < rank.size; ++r) {
          ranks_.meet();
          if (r == rank.rank) comm->run(call_of(rank, plan, bytes), rank.stream);
        }
        comm->synchronize(rank.stream);
      }
    }
    for (const std::size_t bytes : options_.sizes) {
      const Call call = call_of(rank, plan, bytes);
      comm->reset_metrics();
      measure(
          rank, plan.collective, bytes, implementation + (plan.in_place ? " in place" : ""), call,
          [&] { comm->run(call, rank.stream); },
          [&] {
            comm->synchronize(rank.stream);
            return comm->metrics().rows.front().algorithm;
          });
    }
    // Its memory goes before anybody's next kernel waits for this rank: freeing waits for the kernels of all devices.
    ranks_.meet();
    mapped.reset();
    comm.reset();
    ranks_.meet();
  }

  static void use_own(Rank& rank) {
    rank.in = rank.own_in;
    rank.out = rank.own_out;
  }

  void run_nccl(Rank& rank, Collective c) {
    if (nccl_ == nullptr) return;
    use_own(rank);
    void* comm = nccl_comms_[static_cast<std::size_t>(rank.rank)];
    for (const std::size_t bytes : options_.sizes) {
      const Call call = call_of(rank, {"", "", c}, bytes);
      measure(
          rank, c, bytes, "nccl", call,
          [&] { nccl_->run(std::string(tutti::to_string(c)), rank.in, rank.out, call.count, comm, rank.stream); },
          [] { return std::string("default"); });
    }
  }

  template <class Issue, class Name>
  void measure(Rank& rank, Collective c, std::size_t bytes, const std::string& implementation, const Call& call,
               Issue issue, Name algorithm) {
    ok(cudaMemsetAsync(rank.out, 0xa5, bytes, rank.stream), "cudaMemset");
    ok(cudaMemcpyAsync(const_cast<std::byte*>(call.input.data(0)), rank.data.data(), call.count * 2,
                       cudaMemcpyHostToDevice, rank.stream),
       "cudaMemcpy");
    ok(cudaStreamSynchronize(rank.stream), "the input");
    ranks_.meet();
    issue();
    ok(cudaStreamSynchronize(rank.stream), "the first call");
    if (!right(rank, c, bytes)) {
      std::fprintf(stderr, "rank %d: %s of %zu bytes, %s, is wrong\n", rank.rank,
                   std::string(tutti::to_string(c)).c_str(), bytes, algorithm().c_str());
      std::exit(1);
    }
    const cudaGraphExec_t graph = tutti::bench::capture(rank.stream, options_.calls, issue);
    ok(cudaStreamSynchronize(rank.stream), "synchronize");
    const std::vector<double> times = ranks_.measure(rank.rank, options_.repeats, [&] {
      ok(cudaEventRecord(rank.start, rank.stream), "cudaEventRecord");
      ok(cudaGraphLaunch(graph, rank.stream), "cudaGraphLaunch");
      ok(cudaEventRecord(rank.end, rank.stream), "cudaEventRecord");
      ok(cudaStreamSynchronize(rank.stream), "a replay");
      return tutti::bench::elapsed_us(rank.start, rank.end) / options_.calls;
    });
    const std::string ran = algorithm();
    if (rank.rank == 0) {
      std::printf("%s,%zu,%s,%s,%.2f,%.2f\n", std::string(tutti::to_string(c)).c_str(), bytes, implementation.c_str(),
                  ran.c_str(), tutti::bench::median(times), times.front());
      std::fflush(stdout);
    }
    ok(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
  }

  static bool right(const Rank& rank, Collective c, std::size_t bytes) {
    std::vector<std::uint16_t> got(bytes / 2);
    ok(cudaMemcpy(got.data(), rank.out, got.size() * 2, cudaMemcpyDeviceToHost), "cudaMemcpy");
    const std::size_t block = got.size() / static_cast<std::size_t>(c == Collective::kAllGather ? rank.size : 1);
    for (std::size_t i = 0; i < block; ++i) {
      int sum = 0;
      for (int r = 0; r < rank.size; ++r) {
        sum += number(r, i);
        if (c == Collective::kAllGather && got[static_cast<std::size_t>(r) * block + i] != bf16(number(r, i))) {
          return false;
        }
      }
      if (c == Collective::kAllReduce && got[i] != bf16(sum)) return false;
    }
    return true;
  }

  const Options options_;
  tutti::bench::GpuRanks ranks_;
  const std::vector<PlanFile> plans_;
  std::unique_ptr<tutti::bench::Nccl> nccl_;
  std::vector<tutti::bench::Nccl::Comm> nccl_comms_;
  const std::shared_ptr<tutti::MemoryStore> store_ = std::make_shared<tutti::MemoryStore>();
  int groups_ = 0;  // written by rank 0 between barriers
};

}  // namespace

int main(int argc, char** argv) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  Bench(parse(argc, argv)).run_all();
  return 0;
}
