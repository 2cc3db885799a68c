#include "communicator/plan_trial.h"

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "algorithm/cuda/team.cuh"
#include "algorithm/plan/verdict_store.h"
#include "algorithm/user/algorithm_source.h"
#include "base/clock.h"
#include "base/rounding.h"
#include "base/thread.h"
#include "bootstrap/memory_store.h"
#include "communicator/device_entry.h"
#include "executor/cuda/device_plan.h"
#include "plan/structure.h"
#include "tutti/cuda/communicator.h"
#include "tutti/cuda/report.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using executor::LocalMessage;
using executor::LocalOptions;
using executor::LocalResult;

// One communicator a rank, and device memory for one message.
class GpuRanks {
 public:
  GpuRanks(const Config& config, UserAlgorithmPtr algorithm, const plan::Plan& plan,
           const executor::TrialRequest& request)
      : algorithm_(std::move(algorithm)),
        plan_(plan),
        size_(static_cast<int>(plan.ranks.size())),
        ranks_(plan.ranks.size()) {
    const int devices = std::max<int>(1, static_cast<int>(cuda_report().devices.size()));
    const plan::Shape shape = plan::shape_of(plan);
    for (std::size_t side = 0; side < 2; ++side) {
      bytes_[side] = static_cast<std::size_t>(shape.blocks[side] * request.block_bytes) + executor::kTrialGuard;
    }
    on_ranks([&](int r) {
      Rank& rank = ranks_[static_cast<std::size_t>(r)];
      CudaOptions options;
      options.device = r % devices;
      options.timeout = request.options.timeout;
      options.name = "tutti plan run";
      options.config = config;
      rank.communicator = CudaCommunicator::create(store_, "plan", r, size_, options);
      rank.communicator->prepare(algorithm_);
      rank.memory = rank.communicator->allocate("message", bytes_[0] + bytes_[1] + 2 * kAlignment);
    });
  }

  LocalResult run(const LocalMessage& message, const LocalOptions& options) {
    LocalResult result;
    std::barrier<> together(size_);
    try {
      on_ranks([&](int r) {
        try {
          run_rank(r, message, options, together, result.nanoseconds);
        } catch (...) {
          for (const Rank& rank : ranks_)
            rank.communicator->abort("rank " + std::to_string(r) + " of the trial failed");
          together.arrive_and_drop();
          throw;
        }
      });
    } catch (const Error& error) {
      if (refuses(error)) throw;
      result.outcome = {Status::kInternal, -1};
      result.waiting = error.what();
    }
    return result;
  }

 private:
  static constexpr std::size_t kAlignment = 256;

  struct Rank {
    std::shared_ptr<CudaCommunicator> communicator;
    std::shared_ptr<CudaMemory> memory;  // goes before it
  };

  // Where the input of a rank's message lies, its output, and what is copied.
  struct Places {
    std::byte* input = nullptr;
    std::byte* output = nullptr;
    struct Copy {
      std::byte* device;
      std::byte* host;
      std::size_t bytes;
    };
    std::vector<Copy> copies;
  };

  Places places_of(int r, const LocalMessage& message) const {
    const auto at = static_cast<std::size_t>(r);
    std::byte* const base = ranks_[at].memory->data(r);
    std::byte* const in = message.inputs[at];
    std::byte* const out = message.outputs[at];
    Places places;
    if (plan_.in_place) {
      std::byte* const low = std::min(in, out);
      places.input = base + (in - low);
      places.output = base + (out - low);
      places.copies.push_back({base, low, std::max(bytes_[0], bytes_[1])});
    } else {
      places.input = base;
      places.output = base + round_up(bytes_[0], kAlignment);
      places.copies = {{places.input, in, bytes_[0]}, {places.output, out, bytes_[1]}};
    }
    return places;
  }

  void run_rank(int r, const LocalMessage& message, const LocalOptions& options, std::barrier<>& together,
                std::vector<std::int64_t>& nanoseconds) {
    Rank& rank = ranks_[static_cast<std::size_t>(r)];
    const Places places = places_of(r, message);
    Call call;
    call.collective = *algorithm_->collective();
    call.dtype = message.dtype;
    call.op = message.op;
    call.root = plan_.root;
    const auto block = static_cast<std::size_t>(message.input_block_bytes);
    call.count = block / size_of(message.dtype);
    call.input = Blocks::single(places.input, block);
    call.output = Blocks::single(places.output, block);
    const AlgorithmChoice choice{algorithm_, {}};
    call.choice = &choice;
    Device& device = device_of_kind("cuda");
    for (const Places::Copy& copy : places.copies) device.copy(copy.device, copy.host, copy.bytes);
    CudaStream const stream = rank.communicator->own_stream();
    for (int i = 0; i < options.invocations; ++i) {
      together.arrive_and_wait();
      const std::int64_t start = now_ns();
      rank.communicator->run(call, stream, options.timeout);
      rank.communicator->synchronize(stream);
      if (r == 0) nanoseconds.push_back(now_ns() - start);
    }
    for (const Places::Copy& copy : places.copies) device.copy(copy.host, copy.device, copy.bytes);
  }

  // Throws the cause_among() what they have thrown.
  void on_ranks(const std::function<void(int)>& body) const {
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size_));
    std::vector<std::thread> threads;
    for (int r = 0; r < size_; ++r) {
      threads.push_back(start_joined_thread("of a rank of a trial", [&, r] {
        try {
          body(r);
        } catch (...) {
          failures[static_cast<std::size_t>(r)] = std::current_exception();
        }
      }));
    }
    for (std::thread& thread : threads) thread.join();
    if (const std::exception_ptr cause = cause_among(failures)) std::rethrow_exception(cause);
  }

  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  const UserAlgorithmPtr algorithm_;
  const plan::Plan& plan_;
  const int size_;
  std::size_t bytes_[2] = {0, 0};
  std::vector<Rank> ranks_;
};

// The less, the nearer it is to what went wrong first.
int distance_from_cause(const std::exception_ptr& failure) noexcept {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    if (refuses(error)) return 0;
    if (error.kind() == ErrorKind::kAborted) return 3;
    return error.kind() == ErrorKind::kPeerLost || error.kind() == ErrorKind::kTimeout ? 2 : 1;
  } catch (...) {
    return 1;
  }
}

}  // namespace

bool refuses(const Error& error) noexcept {
  return error.kind() == ErrorKind::kInvalidArgument || error.kind() == ErrorKind::kUnsupported;
}

std::exception_ptr cause_among(const std::vector<std::exception_ptr>& failures) noexcept {
  const std::exception_ptr* cause = nullptr;
  int nearest = 0;
  for (const std::exception_ptr& failure : failures) {
    if (!failure) continue;
    const int distance = distance_from_cause(failure);
    if (cause != nullptr && distance >= nearest) continue;
    cause = &failure;
    nearest = distance;
  }
  return cause != nullptr ? *cause : nullptr;
}

DeviceFit fit_on_gpu(const std::shared_ptr<const plan::Plan>& plan, int blocks) {
  DeviceFit fit;
  try {
    const auto ranks = static_cast<std::int32_t>(plan->ranks.size());
    for (std::int32_t r = 0; r < ranks; ++r) {
      const executor::DevicePlan device(plan, r, {.blocks = blocks});
      executor::DeviceVariant full;
      full.bytes = device.segment_bytes();
      executor::DeviceMemory nowhere;  // of which no byte is touched
      nowhere.state = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
      nowhere.ranks.assign(plan->ranks.size(), nowhere.state);
      fit.blocks = std::max(fit.blocks, device.blocks());
      fit.threads = std::max(fit.threads, device.threads() + cuda::kControlThreads);
      fit.segment_bytes = device.segment_bytes();
      fit.memory_bytes = device.memory_bytes();
      fit.records = std::max(fit.records, device.records(full, nowhere).ops.size());
    }
  } catch (const Error& error) {
    fit.refused = error.what();
  }
  return fit;
}

executor::TrialReport try_plan_on_gpus(const std::string& text, const executor::TrialRequest& request) {
  Config config = config_from_environment();
  config.plan_path.clear();
  const UserAlgorithmPtr algorithm = plan_algorithm(text, "a trial", {}, cache_folder(config));
  if (!algorithm->collective()) {
    throw_error(ErrorKind::kUnsupported, "plan \"" + algorithm->name() + "\" is for the collective \"" +
                                             algorithm->collective_name() + "\", which GPUs have no call for");
  }
  const auto* const source = dynamic_cast<const AlgorithmSource*>(algorithm.get());
  const std::shared_ptr<const plan::Plan> plan = source->plan_file()->plan;
  executor::check_request(*plan, request);
  GpuRanks ranks(config, algorithm, *plan, request);
  return executor::try_plan(*plan, request, [&ranks](const LocalMessage& message, const LocalOptions& options) {
    return ranks.run(message, options);
  });
}

}  // namespace tutti
