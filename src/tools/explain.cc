#include "tools/explain.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "base/thread.h"
#include "bootstrap/memory_store.h"
#include "tutti/call.h"
#include "tutti/communicator.h"
#include "tutti/config.h"
#include "tutti/cuda/communicator.h"
#include "tutti/cuda/report.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kAnswerTime{20'000};
constexpr int kMostRanks = 128;

// One rank of the group: forms the communicator and, on rank 0, asks it.
std::string run_rank(MemoryStore& store, const Config& config, const SampleShape& request, const Call& call, int rank) {
  CommunicatorOptions options;
  options.timeout = kAnswerTime;
  options.config = config;
  options.name = "explain";
  const auto communicator = Communicator::create(store, "explain", rank, request.ranks, options);
  std::string answer;
  if (rank == 0) {
    communicator->check(call);
    answer = communicator->explain(call);
  }
  communicator->shutdown();
  return answer;
}

// The same on GPUs, which several ranks may share.
std::string run_rank_on_gpu(const std::shared_ptr<MemoryStore>& store, const Config& config, const SampleShape& request,
                            const Call& call, int rank, int devices) {
  CudaOptions options;
  options.config = config;
  options.timeout = kAnswerTime;
  options.device = rank % devices;
  options.name = "explain";
  const auto communicator = CudaCommunicator::create(store, "explain", rank, request.ranks, options);
  return rank == 0 ? communicator->candidates(call) : "";
}

}  // namespace

std::string explain(const SampleShape& request, bool on_gpu) {
  if (request.ranks < 1 || request.ranks > kMostRanks) {
    throw_error(ErrorKind::kInvalidArgument, "ranks must be from 1 to " + std::to_string(kMostRanks));
  }
  const auto n = static_cast<std::size_t>(request.ranks);
  const SampleCall sample(request);
  const Config config = config_from_environment();

  const int devices = on_gpu ? std::max<int>(1, static_cast<int>(cuda_report().devices.size())) : 0;
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::string> answers(n);
  std::vector<std::exception_ptr> failures(n);
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < n; ++r) {
    ranks.push_back(start_joined_thread("of a rank that explains", [&, r] {
      try {
        const int rank = static_cast<int>(r);
        answers[r] = on_gpu ? run_rank_on_gpu(store, config, request, sample.call(), rank, devices)
                            : run_rank(*store, config, request, sample.call(), rank);
      } catch (...) {
        failures[r] = std::current_exception();
      }
    }));
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return answers[0];
}

}  // namespace tutti
