// What an interpreter is at, for who watches it: nothing here changes anything.
#include <algorithm>

#include "executor/cpu/interpreter.h"

namespace tutti::executor {

std::uint64_t Interpreter::raised(std::size_t index) const noexcept {
  // acquire: as in wait(); who watches may go on to read what was published.
  return counter(rank_, tables_.first_counter(rank_) + static_cast<std::uint32_t>(index))
      .value.load(std::memory_order_acquire);
}

Interpreter::View Interpreter::view(std::size_t task) const noexcept {
  const std::size_t count = program_->blocks().size();
  if (task >= count) {
    const Agent& agent = agents_[task - count];
    if (agent.idle()) return {};
    return {agent.posts[agent.next], 0, true};
  }
  const Task& block = blocks_[task];
  if (block.at == block.end) return {};
  return {block.at, block.done, ready(*block.at, block)};
}

bool Interpreter::ready(const Instruction& instruction, const Task& task) const noexcept {
  const auto arrived = [&](std::uint32_t source) {
    const PacketWord* packets = packets_at(address(instruction.pointers + source) + 2 * task.done);
    return task.done == instruction.bytes || holds(*packets, flag_);
  };
  switch (instruction.code) {
    case Code::kWait: {
      const std::size_t index = instruction.counter - tables_.first_counter(rank_);
      return raised(index) > taken_[index];
    }
    case Code::kAcquire:
      return semaphores_[instruction.counter] != 0;
    case Code::kBarrier:
      return task.generation == 0 || barriers_[instruction.counter].generation + 1 != task.generation;
    case Code::kFlush:
      return agents_[instruction.agent].idle();
    case Code::kForward:
    case Code::kUnpack:
    case Code::kAwaitPackets:
      return arrived(0);
    case Code::kFold: {
      // A piece is folded when all its packets are there.
      const std::int64_t bytes = std::min(kPieceBytes, instruction.bytes - task.done);
      for (std::uint32_t i = 0; i + 1 < instruction.sources; ++i) {
        const PacketWord* packets = packets_at(address(instruction.pointers + i) + 2 * task.done);
        if (count_packets(packets, bytes, flag_) < bytes) return false;
      }
      return true;
    }
    default:
      return true;
  }
}

}  // namespace tutti::executor
