// What an interpreter is at, for who watches it: nothing here changes anything.
#include <algorithm>

#include "executor/cpu/interpreter.h"
#include "executor/program/packet_writers.h"
#include "plan/operations.h"

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

const plan::Operation& Interpreter::operation_of(const Instruction& instruction) const noexcept {
  const Position& position = program_->positions()[instruction.position];
  return plan::operation_at(tables_.plan().ranks[rank_], position.block, position.operation, position.inner);
}

// Who writes the packets that the instruction lacks; itself left out.
std::vector<std::int32_t> Interpreter::late_writers(const Instruction& instruction, const Task& task) const {
  std::uint32_t packets = 1;
  if (instruction.code == Code::kFold) {
    packets = instruction.sources - 1;
  } else if (instruction.code != Code::kForward && instruction.code != Code::kUnpack &&
             instruction.code != Code::kAwaitPackets) {
    return {};
  }
  const plan::Operation& op = operation_of(instruction);
  std::vector<const plan::Operand*> operands;
  for (std::size_t i = 0; i < op.sources.size(); ++i) {
    if (plan::source_rule(op, i).format == plan::Format::kPackets) operands.push_back(&op.sources[i]);
  }
  std::vector<std::int32_t> ranks;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands.size() == packets) {
      const std::int64_t rest = instruction.bytes - task.done;
      const auto pointer = instruction.pointers + static_cast<std::uint32_t>(i);
      if (count_packets(packets_at(address(pointer) + 2 * task.done), rest, flag_) >= rest) continue;
    }
    const auto writers = packet_writers(tables_.plan(), rank_, operands[i]->index, operands[i]->size);
    ranks.insert(ranks.end(), writers.begin(), writers.end());
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::erase(ranks, rank_);
  return ranks;
}

std::vector<std::int32_t> Interpreter::late_ranks() const {
  std::vector<std::int32_t> ranks;
  for (std::size_t b = 0; b < program_->blocks().size(); ++b) {
    const Task& task = blocks_[b];
    if (task.at == task.end) continue;
    if (task.at->code == Code::kWait) ranks.push_back(task.at->peer);
    const auto writers = late_writers(*task.at, task);
    ranks.insert(ranks.end(), writers.begin(), writers.end());
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace tutti::executor
