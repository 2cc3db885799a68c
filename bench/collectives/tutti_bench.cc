// Tutti's communicator under the common benchmark loop: tutti_bench --ranks N [--hosts H] [--mapped 1] [options of
// harness.h]. With --hosts the ranks are divided among H hosts, joined by TCP over this machine's own network.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "bootstrap/tcp_store.h"
#include "device/cpu/arena.h"
#include "harness.h"
#include "tutti/communicator.h"

namespace {

class Tutti final : public bench::Implementation {
 public:
  Tutti(std::shared_ptr<tutti::Communicator> comm, bool mapped) : comm_(std::move(comm)), mapped_(mapped) {}
  std::string_view name() const override { return mapped_ ? "tutti-mapped" : "tutti"; }
  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }
  bool supports(std::string_view) const override { return true; }
  float* allocate(std::size_t count) override {
    if (!mapped_) return Implementation::allocate(count);
    return static_cast<float*>(tutti::process_arena()->allocate(count * sizeof(float)));
  }
  void run(std::string_view collective, const float* in, float* out, std::size_t count) override {
    comm_->run(call(collective, in, out, count));
  }
  void barrier() override { comm_->run(tutti::Call{}); }

 private:
  static tutti::Call call(std::string_view c, const float* in, float* out, std::size_t count) {
    using tutti::Collective;
    static constexpr std::pair<std::string_view, Collective> kNames[] = {{"all_reduce", Collective::kAllReduce},
                                                                         {"all_gather", Collective::kAllGather},
                                                                         {"reduce_scatter", Collective::kReduceScatter},
                                                                         {"all_to_all", Collective::kAllToAll},
                                                                         {"broadcast", Collective::kBroadcast},
                                                                         {"reduce", Collective::kReduce},
                                                                         {"gather", Collective::kGather},
                                                                         {"scatter", Collective::kScatter},
                                                                         {"barrier", Collective::kBarrier}};
    tutti::Call call;
    for (const auto& [name, collective] : kNames) {
      if (name == c) call.collective = collective;
    }
    call.dtype = tutti::DataType::kFloat32;
    call.count = count;
    call.root = 0;
    call.input = tutti::Blocks::single(c == "broadcast" ? out : in, count * 4);
    call.output = tutti::Blocks::single(out, count * 4);
    return call;
  }

  std::shared_ptr<tutti::Communicator> comm_;
  bool mapped_;
};

int value_of(int argc, char** argv, std::string_view key, int otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (key == argv[i]) return std::atoi(argv[i + 1]);
  }
  return otherwise;
}

// One core a rank where there are enough, as mpirun binds its ranks. After the communicator has formed: a rank that
// sees a single core would take the machine for a crowded one.
void bind_to_core(int rank, int ranks) {
  const int cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (ranks > cores) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(rank), &set);
  ::sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = value_of(argc, argv, "--ranks", 2);
  const int hosts = value_of(argc, argv, "--hosts", 1);
  const bool mapped = value_of(argc, argv, "--mapped", 0) != 0;
  int port_pipe[2];
  if (::pipe(port_pipe) != 0) return 2;
  int rank = 0;
  for (int r = 1; r < ranks && rank == 0; ++r) {
    if (::fork() == 0) rank = r;
  }
  try {
    tutti::TcpStoreOptions store_options;
    store_options.serve = rank == 0;
    if (rank != 0 && ::read(port_pipe[0], &store_options.port, sizeof(store_options.port)) < 1) return 2;
    tutti::TcpStore store(store_options);
    const std::uint16_t port = store.port();
    for (int r = 1; r < ranks && rank == 0; ++r) {
      if (::write(port_pipe[1], &port, sizeof(port)) < 1) return 2;
    }
    tutti::CommunicatorOptions options;
    options.timeout = std::chrono::seconds(60);
    options.config = tutti::config_from_environment();
    options.config.local_world_size = ranks;
    if (hosts > 1) options.config.host_id = "host" + std::to_string(rank * hosts / ranks);
    Tutti impl(tutti::Communicator::create(store, "bench", rank, ranks, options), mapped);
    bind_to_core(rank, ranks);
    bench::bench_main(impl, bench::parse(argc, argv));
    impl.barrier();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    return 1;
  }
  int status = 0;
  while (rank == 0 && ::wait(&status) > 0) {
    if (status != 0) return 1;
  }
  return 0;
}
