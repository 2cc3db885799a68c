#include "python/explain.h"

#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "bootstrap/memory_store.h"
#include "tutti/call.h"
#include "tutti/communicator.h"
#include "tutti/config.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kTimeout{20'000};
constexpr int kMostRanks = 128;

// One rank of the group: forms the communicator and, on rank 0, asks it.
std::string run_rank(MemoryStore& store, const SampleShape& request, const Call& call, int rank) {
  CommunicatorOptions options;
  options.timeout = kTimeout;
  options.config = config_from_environment();
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

}  // namespace

std::string explain(const SampleShape& request) {
  if (request.ranks < 1 || request.ranks > kMostRanks) {
    throw_error(ErrorKind::kInvalidArgument, "ranks must be from 1 to " + std::to_string(kMostRanks));
  }
  const auto n = static_cast<std::size_t>(request.ranks);
  const SampleCall sample(request);

  MemoryStore store;
  std::vector<std::string> answers(n);
  std::vector<std::exception_ptr> failures(n);
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < n; ++r) {
    ranks.emplace_back([&, r] {
      try {
        answers[r] = run_rank(store, request, sample.call(), static_cast<int>(r));
      } catch (...) {
        failures[r] = std::current_exception();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return answers[0];
}

}  // namespace tutti
