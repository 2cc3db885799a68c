// Runs the programs of one rank: its thread blocks, and an agent for each port channel that carries out what the blocks
// hand to it. All of them are tasks that run until they block and resume where they were, also between the packets of
// an operation, so one thread runs any number of them.
//
// An invocation is one run of a plan on one message (or one segment of a message). Counters, flags and the half of
// scratch in use go on from one invocation to the next; all ranks must make the same invocations in the same order.
//
// Memory order of counters. A signal is a release store and a wait an acquire load of a word that only the signaller
// writes: all that its rank wrote before is visible to the rank that waited. Relaxed signals and waits are the same
// instructions. What they promise is less, but not nothing: the reads before a relaxed signal are done when the peer
// passes its wait, so that it may overwrite what they have read, and a relaxed store of C++ does not promise that. On
// x86 there is no difference in cost; on ARM it is one instruction (stlr).
// Semaphores and barriers join blocks of one rank. Those run on one thread, so they are plain integers.
//
// Thread rule: an interpreter belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "executor/cpu/far_ports.h"
#include "executor/cpu/packet_operations.h"
#include "executor/program/program.h"
#include "executor/program/tables.h"
#include "tutti/types.h"

namespace tutti::executor {

// Wakes a rank that may sleep until something of its plan arrives.
class Doorbell {
 public:
  virtual ~Doorbell() = default;
  virtual void ring(std::int32_t rank) noexcept = 0;
};

// A rank's memory as this process sees it (RankLayout); zero-filled before its first use. Null for a rank of another
// host.
struct RankMemory {
  std::byte* base = nullptr;
  RankLayout layout;
};

enum class Step : std::uint8_t {
  kEnded,
  kBlocked,  // waits for another task or rank
  kRan,      // has used up its budget
};

class Interpreter {
 public:
  // Refers to all of them for life. `doorbell` may be null.
  // `far` is needed if the ranks lie on several hosts; who runs an invocation has opened it.
  Interpreter(const Tables& tables, std::int32_t rank, const std::vector<RankMemory>& memory, Doorbell* doorbell,
              FarPorts* far = nullptr);
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::int32_t rank() const noexcept { return rank_; }

  // Makes room for a program. To be called once before the first begin() with it.
  void prepare(const Program& program);

  // Begins an invocation. `user_buffer(const BaseRef&)` gives the address here of a rank block of some rank's input or
  // output. Averages are summed; dividing is the caller's part. Allocates nothing.
  template <class UserBuffer>
  void begin(const Program& program, DataType dtype, ReduceOp op, const UserBuffer& user_buffer) noexcept {
    reset(program, dtype, op);
    for (std::size_t i = 0; i < program.bases().size(); ++i) {
      const BaseRef& ref = program.bases()[i];
      if (!tables_.share_memory(ref.rank, rank_)) continue;  // carried there by its own rank
      bases_[i] = ref.area == Area::kInput || ref.area == Area::kOutput ? user_buffer(ref) : scratch_of(ref);
    }
    if (far_ != nullptr) far_->begin(program, bases_.data(), &counter(rank_, tables_.first_counter(rank_)));
  }

  // Thread blocks first, then agents.
  std::size_t tasks() const noexcept { return tasks_; }
  // Runs one task for at most `budget` instructions.
  Step step(std::size_t task, std::uint32_t budget) noexcept;
  // Runs each task until it blocks, or for at most `budget` instructions. kBlocked: none could do anything. kRan:
  // something was done.
  Step pass() noexcept;
  Step pass(std::uint32_t budget) noexcept;
  // The invocation is over: all blocks have ended, all agents have done all they were given, all messages of other
  // hosts are here.
  bool ended() const noexcept { return running_ == 0 && (far_ == nullptr || far_->idle()); }

  // What a task is about to do, for who watches an invocation that has begun; nothing changes (interpreter_view.cc).
  struct View {
    const Instruction* at = nullptr;  // null: it has nothing to do (any more)
    std::int64_t done = 0;            // bytes of the operation at hand
    bool ready = false;               // a step would get somewhere
  };
  View view(std::size_t task) const noexcept;
  const Program& program() const noexcept { return *program_; }
  // Of own counter `index`, memory channels first: how often it was raised for this rank, and taken from by it.
  std::uint64_t raised(std::size_t index) const noexcept;
  std::uint64_t taken(std::size_t index) const noexcept { return taken_[index]; }
  std::uint64_t semaphore(std::size_t index) const noexcept { return semaphores_[index]; }
  std::uint32_t flag() const noexcept { return flag_; }
  // This rank's half of plain scratch or of packets.
  const std::byte* scratch(Area area) const noexcept { return scratch_of({rank_, area, 0}); }

  // For a blocked invocation: the rank it waits for (-1: none alone), and in words which thread blocks wait where.
  std::int32_t awaited() const noexcept;
  std::string describe_blocked() const;
  // The ranks whose signals or packets it lacks, ascending, this one not among them. Slow: for messages.
  std::vector<std::int32_t> late_ranks() const;

 private:
  struct Task {
    const Instruction* at = nullptr;
    const Instruction* end = nullptr;
    std::int64_t done = 0;                // bytes of the operation at hand
    const PacketWord* awaited = nullptr;  // kFold: the packet that was missing
    std::uint64_t generation = 0;         // kBarrier: of the barrier when this block came, plus one
  };
  struct Agent {
    std::vector<const Instruction*> posts;  // in order; reserved by prepare()
    std::size_t next = 0;
    bool idle() const noexcept { return next == posts.size(); }
  };
  struct Barrier {
    std::uint32_t arrived = 0;
    std::uint64_t generation = 0;
  };

  void reset(const Program& program, DataType dtype, ReduceOp op) noexcept;
  std::byte* scratch_of(const BaseRef& ref) const noexcept;
  std::byte* address(std::uint32_t pointer) const noexcept {
    const Pointer& p = pointers_[pointer];
    return bases_[p.base] + p.offset;
  }
  CounterWord& counter(std::int32_t rank, std::uint32_t index) const noexcept {
    return reinterpret_cast<CounterWord*>(
        memory_[static_cast<std::size_t>(rank)].base)[index - tables_.first_counter(rank)];
  }

  // Payload of packets that is unpacked and reduced at a time: stays in the first cache for a few tens of sources.
  static constexpr std::int64_t kPieceBytes = 1024;

  bool ready(const Instruction& instruction, const Task& task) const noexcept;
  Step run_block(Task& task, std::uint32_t budget) noexcept;
  Step run_agent(Agent& agent, std::uint32_t budget) noexcept;
  bool carry_out(const Instruction& post) noexcept;
  bool carry_far(const Instruction& post) noexcept;
  bool execute(const Instruction& instruction, Task& task) noexcept;
  void signal(const Instruction& instruction, std::size_t channel) noexcept;
  bool wait(const Instruction& instruction) noexcept;
  bool meet(const Instruction& instruction, Task& task) noexcept;
  void post(const Instruction& instruction) noexcept;
  void copy(const Instruction& instruction) const noexcept;
  void reduce(const Instruction& instruction) noexcept;
  void pack(const Instruction& instruction) const noexcept;
  void pad(const Instruction& instruction) const noexcept;
  static bool ended(const Instruction& instruction, Task& task) noexcept;
  bool forward(const Instruction& instruction, Task& task) noexcept;
  bool unpack(const Instruction& instruction, Task& task) noexcept;
  bool await_packets(const Instruction& instruction, Task& task) noexcept;
  bool fold(const Instruction& instruction, Task& task) noexcept;
  bool fold_piece(const Instruction& instruction, Task& task, std::int64_t bytes) noexcept;
  void ring_targets(const Instruction& instruction, std::uint32_t first) const noexcept;
  void ring(std::int32_t rank) const noexcept {
    if (doorbell_ != nullptr) doorbell_->ring(rank);
  }
  const plan::Operation& operation_of(const Instruction& instruction) const noexcept;
  std::vector<std::int32_t> late_writers(const Instruction& instruction, const Task& task) const;
  std::string describe(const Task& task) const;

  const Tables& tables_;
  const std::int32_t rank_;
  const std::vector<RankMemory>& memory_;
  Doorbell* const doorbell_;
  FarPorts* const far_;
  const std::size_t memory_channels_;
  std::vector<std::uint64_t> sent_;   // by own channel, memory channels first
  std::vector<std::uint64_t> taken_;  // by own counter
  std::uint64_t invocations_ = 0;     // begun

  // Of the invocation at hand.
  const Program* program_ = nullptr;
  const Pointer* pointers_ = nullptr;
  std::uint32_t flag_ = 0;
  std::size_t half_ = 0;
  DataType dtype_ = DataType::kByte;
  ReduceOp op_ = ReduceOp::kSum;
  std::size_t element_ = 1;
  std::vector<std::byte*> bases_;
  std::vector<Task> blocks_;
  std::vector<Agent> agents_;
  std::vector<std::uint64_t> semaphores_;
  std::vector<Barrier> barriers_;
  std::size_t tasks_ = 0;
  std::size_t running_ = 0;     // blocks that have not ended, agents with posts
  std::uint64_t progress_ = 0;  // rises whenever something is done

  std::vector<const void*> source_list_;
  std::vector<void*> target_list_;
  std::vector<std::byte> pieces_;  // unpacked packets of kForward and kFold, a piece for each source
};

}  // namespace tutti::executor
