#include "executor/cpu/local_world.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/interruption.h"
#include "base/spin.h"
#include "base/thread.h"
#include "device/cpu/kernels.h"
#include "tutti/error.h"

namespace tutti::executor {
namespace {

constexpr std::size_t kAlignment = 4096;
constexpr std::uint32_t kInstructionsBetweenLooks = 64;  // for what a handler of a signal has raised

bool averages(const plan::Plan& plan, std::int32_t rank) {
  switch (plan.collective) {
    case plan::PlanCollective::kAllReduce:
    case plan::PlanCollective::kReduceScatter:
      return true;
    case plan::PlanCollective::kReduce:
      return rank == plan.root;
    default:
      return false;
  }
}

}  // namespace

void LocalWorld::Free::operator()(std::byte* memory) const noexcept { std::free(memory); }

LocalWorld::LocalWorld(std::shared_ptr<const plan::Plan> plan, std::int64_t input_block_bytes,
                       std::int64_t output_block_bytes)
    : tables_(std::move(plan)), most_input_(input_block_bytes), most_output_(output_block_bytes) {
  for (std::int32_t rank = 0; rank < tables_.ranks(); ++rank) {
    const RankLayout layout = tables_.layout(rank, input_block_bytes, output_block_bytes);
    const std::size_t bytes = layout.total + kAlignment;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes));
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, bytes);
    owned_.emplace_back(memory);
    memory_.push_back({memory, layout});
  }
  for (std::int32_t rank = 0; rank < tables_.ranks(); ++rank) {
    interpreters_.push_back(std::make_unique<Interpreter>(tables_, rank, memory_, nullptr));
  }
}

LocalWorld::~LocalWorld() = default;

const std::vector<Program>& LocalWorld::programs(std::int64_t input_bytes, std::int64_t output_bytes) {
  const auto found = programs_.find({input_bytes, output_bytes});
  if (found != programs_.end()) return found->second;
  std::vector<Program> made;
  for (std::int32_t rank = 0; rank < tables_.ranks(); ++rank) {
    made.emplace_back(tables_, rank, input_bytes, output_bytes);
    interpreters_[static_cast<std::size_t>(rank)]->prepare(made.back());
  }
  return programs_.emplace(std::pair{input_bytes, output_bytes}, std::move(made)).first->second;
}

void LocalWorld::begin(std::int32_t rank, const std::vector<Program>& programs, const LocalMessage& message) noexcept {
  const auto address = [&message](const BaseRef& ref) {
    const auto& buffers = ref.area == Area::kInput ? message.inputs : message.outputs;
    const std::int64_t bytes = ref.area == Area::kInput ? message.input_block_bytes : message.output_block_bytes;
    return buffers[static_cast<std::size_t>(ref.rank)] + ref.block * bytes;
  };
  const auto r = static_cast<std::size_t>(rank);
  interpreters_[r]->begin(programs[r], message.dtype, message.op, address);
}

// A sum becomes an average when nobody reads the output any more: after the end of this rank's invocation.
void LocalWorld::finish(std::int32_t rank, const LocalMessage& message) const noexcept {
  if (message.op != ReduceOp::kAvg || !averages(tables_.plan(), rank)) return;
  void* output = message.outputs[static_cast<std::size_t>(rank)];
  const void* source = output;
  const std::size_t bytes = static_cast<std::size_t>(message.output_block_bytes);
  cpu::reduce(&output, 1, &source, 1, bytes / size_of(message.dtype), message.dtype, ReduceOp::kAvg, tables_.ranks());
}

void LocalWorld::check(const LocalMessage& message) const {
  if (message.input_block_bytes > most_input_ || message.output_block_bytes > most_output_) {
    throw_error(ErrorKind::kInvalidArgument, "the message is larger than this world was made for");
  }
}

void LocalWorld::begin(const LocalMessage& message) {
  check(message);
  const std::vector<Program>& ready = programs(message.input_block_bytes, message.output_block_bytes);
  for (std::int32_t rank = 0; rank < tables_.ranks(); ++rank) begin(rank, ready, message);
}

LocalResult LocalWorld::run(const LocalMessage& message, const LocalOptions& options) {
  check(message);
  const std::vector<Program>& ready = programs(message.input_block_bytes, message.output_block_bytes);
  LocalResult result;
  if (options.thread_per_rank) {
    run_on_threads(ready, message, options, result);
    return result;
  }
  for (int i = 0; i < options.invocations; ++i) {
    const std::int64_t start = now_ns();
    for (std::int32_t rank = 0; rank < tables_.ranks(); ++rank) begin(rank, ready, message);
    const bool ended = options.seed ? run_at_random(*options.seed + static_cast<std::uint64_t>(i)) : run_in_turn();
    if (!ended) {
      result.outcome = {Status::kTimeout, -1};
      result.waiting = describe_waiting();
      return result;
    }
    for (std::int32_t rank = 0; rank < tables_.ranks(); ++rank) finish(rank, message);
    result.nanoseconds.push_back(now_ns() - start);
  }
  return result;
}

// False if nobody can go on any more, as on one thread nothing else could change that, or is to: a handler of a signal
// has raised.
bool LocalWorld::run_in_turn() noexcept {
  for (;;) {
    bool ended = true;
    bool moved = false;
    for (const auto& interpreter : interpreters_) {
      if (interpreter->ended()) continue;
      const Step step = interpreter->pass(kInstructionsBetweenLooks);
      ended = ended && step == Step::kEnded;
      moved = moved || step != Step::kBlocked;
      if (!go_on_waiting()) return false;
    }
    if (ended) return true;
    if (!moved) return false;
  }
}

bool LocalWorld::run_at_random(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::pair<std::size_t, std::size_t>> tasks;  // (rank, task)
  for (std::size_t r = 0; r < interpreters_.size(); ++r) {
    for (std::size_t t = 0; t < interpreters_[r]->tasks(); ++t) tasks.emplace_back(r, t);
  }
  // Long enough that a task which can run has almost surely been picked; then the turn decides.
  const std::size_t patience = 8 * tasks.size();
  std::uint32_t steps = 0;
  for (std::size_t idle = 0; idle < patience && !tasks.empty();) {
    if (++steps % kInstructionsBetweenLooks == 0 && !go_on_waiting()) return false;
    const auto [rank, task] = tasks[random() % tasks.size()];
    const auto budget = static_cast<std::uint32_t>(1 + random() % 3);
    const Step step = interpreters_[rank]->step(task, budget);
    idle = step == Step::kRan ? 0 : idle + 1;
  }
  return run_in_turn();
}

void LocalWorld::run_on_threads(const std::vector<Program>& programs, const LocalMessage& message,
                                const LocalOptions& options, LocalResult& result) {
  std::atomic<bool> failed{false};
  const auto run_rank = [&](std::int32_t rank) {
    Interpreter& own = *interpreters_[static_cast<std::size_t>(rank)];
    for (int i = 0; i < options.invocations; ++i) {
      if (failed.load(std::memory_order_relaxed)) return;  // relaxed: a late look costs another invocation
      const std::int64_t start = now_ns();
      Deadline deadline = Deadline::after(options.timeout);
      begin(rank, programs, message);
      for (std::uint32_t idle = 0; !own.ended();) {
        if (own.pass() != Step::kBlocked) {
          idle = 0;
          continue;
        }
        cpu_relax();
        if (++idle < 256) continue;
        sched_yield();
        // relaxed: a late look costs another turn; the joins below order all else.
        if (deadline.expired() || failed.load(std::memory_order_relaxed)) {
          failed.store(true, std::memory_order_relaxed);
          return;
        }
      }
      finish(rank, message);
      if (rank == 0) result.nanoseconds.push_back(now_ns() - start);
    }
  };
  std::mutex mutex;
  std::condition_variable ended;
  std::int32_t running = tables_.ranks();  // under mutex
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < tables_.ranks(); ++rank) {
    threads.push_back(start_joined_thread("of a rank of a plan", [&, rank] {
      run_rank(rank);
      const std::lock_guard lock(mutex);
      if (--running == 0) ended.notify_one();
    }));
  }
  for (std::unique_lock lock(mutex); running > 0;) {
    if (ended.wait_for(lock, std::chrono::milliseconds(kAskEveryMs), [&] { return running == 0; })) break;
    lock.unlock();
    if (!go_on_waiting()) failed.store(true, std::memory_order_relaxed);  // relaxed: as above
    lock.lock();
  }
  for (std::thread& thread : threads) thread.join();
  if (!failed.load(std::memory_order_relaxed)) return;  // relaxed: the threads have been joined
  result.outcome = {Status::kTimeout, -1};
  result.waiting = describe_waiting();
}

std::string LocalWorld::describe_waiting() const {
  constexpr int kMost = 8;
  std::string text;
  int waiting = 0;
  for (const auto& interpreter : interpreters_) {
    const std::string one = interpreter->describe_blocked();
    if (one.empty() || ++waiting > kMost) continue;
    text += (text.empty() ? "" : "\n") + one;
  }
  if (waiting > kMost) text += "\nand " + std::to_string(waiting - kMost) + " more ranks";
  return text;
}

}  // namespace tutti::executor
