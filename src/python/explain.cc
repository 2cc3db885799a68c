#include "python/explain.h"

#include <sys/mman.h>

#include <cerrno>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "bootstrap/memory_store.h"
#include "device/cpu/arena.h"
#include "tutti/call.h"
#include "tutti/communicator.h"
#include "tutti/config.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kTimeout{20'000};
constexpr int kMostRanks = 128;

// Address space for a call's tensors. It is never touched, so it costs no memory whatever the size.
class Buffer {
 public:
  Buffer(std::size_t bytes, bool mapped) : bytes_(bytes > 0 ? bytes : 1) {
    if (mapped) {
      Arena* arena = process_arena();
      data_ = arena != nullptr ? arena->allocate(bytes_) : nullptr;
      if (data_ == nullptr) throw_error(ErrorKind::kExhausted, "the arena of mapped tensors has no room for this size");
      arena_ = arena;
      return;
    }
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw_system_error(ErrorKind::kExhausted, "mmap", errno);
  }
  ~Buffer() {
    if (arena_ != nullptr) {
      arena_->deallocate(data_);
    } else {
      ::munmap(data_, bytes_);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const noexcept { return data_; }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
  Arena* arena_ = nullptr;
};

bool has_blocks_in(Collective c) noexcept {
  return c == Collective::kScatter || c == Collective::kReduceScatter || c == Collective::kAllToAll;
}
bool has_blocks_out(Collective c) noexcept {
  return c == Collective::kAllGather || c == Collective::kGather || c == Collective::kAllToAll;
}
bool is_rooted(Collective c) noexcept {
  return c == Collective::kReduce || c == Collective::kBroadcast || c == Collective::kGather ||
         c == Collective::kScatter;
}
bool in_place(Collective c) noexcept { return c == Collective::kAllReduce || c == Collective::kBroadcast; }

Call make_call(const ExplainRequest& request, const Buffer& input, const Buffer& output) {
  Call call;
  call.collective = request.collective;
  if (request.collective == Collective::kBarrier) return call;
  call.dtype = request.dtype;
  call.op = request.op;
  call.root = is_rooted(request.collective) ? 0 : -1;
  call.count = request.bytes / size_of(request.dtype);
  const std::size_t block = call.count * size_of(request.dtype);
  call.input = Blocks::single(input.data(), block);
  call.output = Blocks::single(in_place(request.collective) ? input.data() : output.data(), block);
  return call;
}

// One rank of the group: forms the communicator and, on rank 0, asks it.
std::string run_rank(MemoryStore& store, const ExplainRequest& request, const Call& call, int rank) {
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

std::string explain(const ExplainRequest& request) {
  if (request.ranks < 1 || request.ranks > kMostRanks) {
    throw_error(ErrorKind::kInvalidArgument, "ranks must be from 1 to " + std::to_string(kMostRanks));
  }
  const auto n = static_cast<std::size_t>(request.ranks);
  const Buffer input(request.bytes * (has_blocks_in(request.collective) ? n : 1), request.mapped);
  const Buffer output(request.bytes * (has_blocks_out(request.collective) ? n : 1), request.mapped);
  const Call call = make_call(request, input, output);

  MemoryStore store;
  std::vector<std::string> answers(n);
  std::vector<std::exception_ptr> failures(n);
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < n; ++r) {
    ranks.emplace_back([&, r] {
      try {
        answers[r] = run_rank(store, request, call, static_cast<int>(r));
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
