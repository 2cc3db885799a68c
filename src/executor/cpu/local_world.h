// All ranks of a plan in one process: for tests, `tutti plan run` and the tutorial. Either one thread runs them all, or
// each has its own.
//
// With one thread a plan that cannot go on is found at once; a seed makes the thread pick tasks and how far they run at
// random, the same way each time, which shakes out orders that no real machine shows often. Thread rule: one caller.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/outcome.h"
#include "executor/cpu/interpreter.h"
#include "executor/program/program.h"
#include "executor/program/tables.h"
#include "tutti/types.h"

namespace tutti::executor {

// One message. Rank blocks of a buffer lie one after another.
struct LocalMessage {
  std::vector<std::byte*> inputs;  // by rank
  std::vector<std::byte*> outputs;
  std::int64_t input_block_bytes = 0;
  std::int64_t output_block_bytes = 0;
  DataType dtype = DataType::kByte;
  ReduceOp op = ReduceOp::kSum;
};

struct LocalOptions {
  bool thread_per_rank = false;
  std::chrono::milliseconds timeout{10'000};
  std::optional<std::uint64_t> seed;  // of a random schedule; one thread only
  int invocations = 1;                // back to back
};

struct LocalResult {
  Outcome outcome;
  std::string waiting;                    // if it did not end: who waits where
  std::vector<std::int64_t> nanoseconds;  // of each invocation, on rank 0
};

class LocalWorld {
 public:
  // Scratch for messages of up to these rank blocks. Throws what Tables and Sizes throw.
  LocalWorld(std::shared_ptr<const plan::Plan> plan, std::int64_t input_block_bytes, std::int64_t output_block_bytes);
  ~LocalWorld();

  const Tables& tables() const noexcept { return tables_; }

  // Throws InvalidArgument if the message is larger than was said. After a failure the world is of no more use.
  LocalResult run(const LocalMessage& message, const LocalOptions& options = {});

  // For who runs the tasks himself: begins an invocation on all ranks. Throws as run() does.
  void begin(const LocalMessage& message);
  Interpreter& interpreter(std::int32_t rank) noexcept { return *interpreters_[static_cast<std::size_t>(rank)]; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  const std::vector<Program>& programs(std::int64_t input_bytes, std::int64_t output_bytes);
  void check(const LocalMessage& message) const;
  void begin(std::int32_t rank, const std::vector<Program>& programs, const LocalMessage& message) noexcept;
  void finish(std::int32_t rank, const LocalMessage& message) const noexcept;
  bool run_in_turn() noexcept;
  bool run_at_random(std::uint64_t seed);
  void run_on_threads(const std::vector<Program>& programs, const LocalMessage& message, const LocalOptions& options,
                      LocalResult& result);
  std::string describe_waiting() const;

  const Tables tables_;
  std::int64_t most_input_, most_output_;
  std::vector<std::unique_ptr<std::byte, Free>> owned_;
  std::vector<RankMemory> memory_;
  std::vector<std::unique_ptr<Interpreter>> interpreters_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Program>> programs_;
};

}  // namespace tutti::executor
