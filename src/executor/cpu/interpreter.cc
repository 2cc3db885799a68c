#include "executor/cpu/interpreter.h"

#include <algorithm>
#include <limits>

#include "device/cpu/kernels.h"
#include "executor/program/serves.h"
#include "plan/operations.h"

namespace tutti::executor {
namespace {

constexpr std::uint32_t kUnlimited = std::numeric_limits<std::uint32_t>::max();

template <class Vector>
void grow(Vector& vector, std::size_t size) {
  if (vector.size() < size) vector.resize(size);
}

}  // namespace

Interpreter::Interpreter(const Tables& tables, std::int32_t rank, const std::vector<RankMemory>& memory,
                         Doorbell* doorbell, FarPorts* far)
    : tables_(tables),
      rank_(rank),
      memory_(memory),
      doorbell_(doorbell),
      far_(far),
      memory_channels_(tables.plan().ranks[rank].channels_of(plan::ChannelKind::kMemory).size()) {
  const std::size_t channels = tables.first_counter(rank + 1) - tables.first_counter(rank);
  sent_.assign(channels, 0);
  taken_.assign(channels, 0);
  semaphores_.resize(tables.plan().ranks[rank].semaphores.size());
}

void Interpreter::prepare(const Program& program) {
  grow(bases_, program.bases().size());
  grow(blocks_, program.blocks().size());
  grow(agents_, program.agents());
  for (Agent& agent : agents_) agent.posts.reserve(program.most_posts());
  grow(barriers_, program.barriers());
  grow(source_list_, program.most_operands());
  grow(target_list_, program.most_operands());
  grow(pieces_, program.most_operands() * static_cast<std::size_t>(kPieceBytes));
  if (far_ != nullptr) far_->prepare(program);
}

void Interpreter::reset(const Program& program, DataType dtype, ReduceOp op) noexcept {
  program_ = &program;
  pointers_ = program.pointers().data();
  dtype_ = dtype;
  element_ = size_of(dtype);
  op_ = op == ReduceOp::kAvg || op == ReduceOp::kPremulSum ? ReduceOp::kSum : op;
  // Never zero, and not the same again while an old packet of it may lie about: each slot is either written at every
  // second invocation or, if messages differ in size, long before 2^32 invocations have passed.
  flag_ = static_cast<std::uint32_t>(invocations_ % std::numeric_limits<std::uint32_t>::max()) + 1;
  half_ = tables_.plan().double_scratch ? invocations_ % 2 : 0;
  ++invocations_;
  for (std::size_t b = 0; b < program.blocks().size(); ++b) {
    const auto& list = program.blocks()[b];
    blocks_[b] = {list.data(), list.data() + list.size(), 0, nullptr, 0};
  }
  for (Agent& agent : agents_) {
    agent.posts.clear();
    agent.next = 0;
  }
  const auto& initial = tables_.plan().ranks[rank_].semaphores;
  for (std::size_t i = 0; i < initial.size(); ++i) semaphores_[i] = static_cast<std::uint64_t>(initial[i]);
  std::fill(barriers_.begin(), barriers_.end(), Barrier{});
  tasks_ = program.blocks().size() + program.agents();
  running_ = program.blocks().size();
  for (std::size_t b = 0; b < program.blocks().size(); ++b) running_ -= program.blocks()[b].empty() ? 1 : 0;
}

std::byte* Interpreter::scratch_of(const BaseRef& ref) const noexcept {
  const RankMemory& memory = memory_[static_cast<std::size_t>(ref.rank)];
  return ref.area == Area::kPackets ? memory.base + memory.layout.packets + half_ * memory.layout.packets_half
                                    : memory.base + memory.layout.plain + half_ * memory.layout.plain_half;
}

Step Interpreter::pass() noexcept { return pass(kUnlimited); }

Step Interpreter::pass(std::uint32_t budget) noexcept {
  const std::uint64_t before = progress_;
  const std::size_t count = program_->blocks().size();
  if (far_ != nullptr && far_->advance()) ++progress_;
  for (std::size_t b = 0; b < count; ++b) {
    if (blocks_[b].at != blocks_[b].end) run_block(blocks_[b], budget);
  }
  for (Agent& agent : agents_) {
    if (!agent.idle()) run_agent(agent, budget);
  }
  if (ended()) return Step::kEnded;
  return progress_ != before ? Step::kRan : Step::kBlocked;
}

Step Interpreter::step(std::size_t task, std::uint32_t budget) noexcept {
  const std::size_t count = program_->blocks().size();
  return task < count ? run_block(blocks_[task], budget) : run_agent(agents_[task - count], budget);
}

Step Interpreter::run_block(Task& task, std::uint32_t budget) noexcept {
  while (task.at != task.end) {
    if (budget-- == 0) return Step::kRan;
    if (!execute(*task.at, task)) return Step::kBlocked;
    ++progress_;
    if (++task.at == task.end) --running_;
  }
  return Step::kEnded;
}

Step Interpreter::run_agent(Agent& agent, std::uint32_t budget) noexcept {
  while (!agent.idle()) {
    if (budget-- == 0) return Step::kRan;
    if (!carry_out(*agent.posts[agent.next])) return Step::kBlocked;
    ++progress_;
    ++agent.next;
    if (agent.idle()) --running_;
  }
  return Step::kEnded;
}

bool Interpreter::carry_out(const Instruction& post) noexcept {
  if (post.far) return carry_far(post);
  if (post.code == Code::kPostSignal) {
    signal(post, memory_channels_ + post.agent);
  } else if (post.packets) {
    copy_packets(packets_at(address(post.pointers + 1)), packets_at(address(post.pointers)), packets_of(post.bytes));
    ring(post.peer);
  } else {
    cpu::copy(address(post.pointers + 1), address(post.pointers), static_cast<std::size_t>(post.bytes));
  }
  return true;
}

// False while too many messages of the channel are under way.
bool Interpreter::carry_far(const Instruction& post) noexcept {
  if (post.rides) return true;
  if (!far_->ready(post.agent)) return false;
  const bool bare = post.code == Code::kPostSignal;
  far_->send(post.agent, post.peer, post.counter, bare ? nullptr : address(post.pointers), bare ? 0 : wire_bytes(post));
  return true;
}

bool Interpreter::execute(const Instruction& instruction, Task& task) noexcept {
  switch (instruction.code) {
    case Code::kSignal:
      signal(instruction, instruction.agent);
      return true;
    case Code::kWait:
      return wait(instruction);
    case Code::kRelease:
      ++semaphores_[instruction.counter];
      return true;
    case Code::kAcquire:
      if (semaphores_[instruction.counter] == 0) return false;
      --semaphores_[instruction.counter];
      return true;
    case Code::kBarrier:
      return meet(instruction, task);
    case Code::kCopy:
      copy(instruction);
      return true;
    case Code::kReduce:
      reduce(instruction);
      return true;
    case Code::kPack:
      pack(instruction);
      return true;
    case Code::kPad:
      pad(instruction);
      return true;
    case Code::kForward:
      return forward(instruction, task);
    case Code::kUnpack:
      return unpack(instruction, task);
    case Code::kFold:
      return fold(instruction, task);
    case Code::kAwaitPackets:
      return await_packets(instruction, task);
    case Code::kPost:
    case Code::kPostSignal:
      post(instruction);
      return true;
    case Code::kFlush:
      return agents_[instruction.agent].idle() && (far_ == nullptr || far_->drained(instruction.agent));
  }
  return false;
}

void Interpreter::signal(const Instruction& instruction, std::size_t channel) noexcept {
  // release: publishes what this rank has written, and says that its reads are done; pairs with the acquire in wait().
  counter(instruction.peer, instruction.counter).value.store(++sent_[channel], std::memory_order_release);
  ring(instruction.peer);
}

bool Interpreter::wait(const Instruction& instruction) noexcept {
  std::uint64_t& taken = taken_[instruction.counter - tables_.first_counter(rank_)];
  // acquire: pairs with the release in signal() of the peer.
  if (counter(rank_, instruction.counter).value.load(std::memory_order_acquire) <= taken) return false;
  ++taken;
  return true;
}

bool Interpreter::meet(const Instruction& instruction, Task& task) noexcept {
  Barrier& barrier = barriers_[instruction.counter];
  if (task.generation == 0) {
    ++progress_;  // to have come is something done, also if the others have not
    if (++barrier.arrived == instruction.agent) {
      barrier.arrived = 0;
      ++barrier.generation;
      return true;
    }
    task.generation = barrier.generation + 1;
  }
  if (barrier.generation + 1 == task.generation) return false;
  task.generation = 0;
  return true;
}

void Interpreter::post(const Instruction& instruction) noexcept {
  Agent& agent = agents_[instruction.agent];
  if (agent.idle()) ++running_;
  agent.posts.push_back(&instruction);  // within what prepare() has reserved
}

void Interpreter::copy(const Instruction& instruction) const noexcept {
  const std::byte* from = address(instruction.pointers);
  for (std::uint32_t i = 0; i < instruction.targets; ++i) {
    std::byte* to = address(instruction.pointers + 1 + i);
    if (to != from) cpu::copy(to, from, static_cast<std::size_t>(instruction.bytes));
  }
}

void Interpreter::reduce(const Instruction& instruction) noexcept {
  std::uint32_t pointer = instruction.pointers;
  for (std::uint32_t i = 0; i < instruction.sources; ++i) source_list_[i] = address(pointer++);
  for (std::uint32_t i = 0; i < instruction.targets; ++i) target_list_[i] = address(pointer++);
  cpu::reduce(target_list_.data(), static_cast<int>(instruction.targets), source_list_.data(),
              static_cast<int>(instruction.sources), static_cast<std::size_t>(instruction.bytes) / element_, dtype_,
              op_of(instruction.reduce, op_));
}

void Interpreter::pack(const Instruction& instruction) const noexcept {
  const std::byte* from = address(instruction.pointers);
  for (std::uint32_t i = 0; i < instruction.targets; ++i) {
    write_packets(packets_at(address(instruction.pointers + 1 + i)), from, instruction.bytes, flag_);
  }
  ring_targets(instruction, 0);
}

void Interpreter::pad(const Instruction& instruction) const noexcept {
  for (std::uint32_t i = 0; i < instruction.targets; ++i) {
    fill_packets(packets_at(address(instruction.pointers + i)), packets_of(instruction.bytes), flag_);
  }
  ring_targets(instruction, 0);
}

bool Interpreter::ended(const Instruction& instruction, Task& task) noexcept {
  if (task.done < instruction.bytes) return false;
  task.done = 0;
  return true;
}

// Packets of the i-th target, at payload offset `done`, lie at 2 · done.
bool Interpreter::forward(const Instruction& instruction, Task& task) noexcept {
  const std::int64_t before = task.done;
  while (task.done < instruction.bytes) {
    const std::int64_t piece = std::min(kPieceBytes, instruction.bytes - task.done);
    const PacketWord* from = packets_at(address(instruction.pointers) + 2 * task.done);
    const std::int64_t got = read_packets(pieces_.data(), from, piece, flag_);
    for (std::uint32_t i = 0; i < instruction.targets; ++i) {
      std::byte* to = address(instruction.pointers + 1 + i) + 2 * task.done;
      write_packets(packets_at(to), pieces_.data(), got, flag_);
    }
    task.done += got;
    if (got < piece) break;
  }
  if (task.done != before) {
    ++progress_;
    ring_targets(instruction, 0);
  }
  return ended(instruction, task);
}

bool Interpreter::unpack(const Instruction& instruction, Task& task) noexcept {
  const PacketWord* from = packets_at(address(instruction.pointers) + 2 * task.done);
  std::byte* to = address(instruction.pointers + 1) + task.done;
  const std::int64_t got = read_packets(to, from, instruction.bytes - task.done, flag_);
  task.done += got;
  if (got != 0) ++progress_;
  return ended(instruction, task);
}

bool Interpreter::await_packets(const Instruction& instruction, Task& task) noexcept {
  const PacketWord* from = packets_at(address(instruction.pointers) + 2 * task.done);
  const std::int64_t got = count_packets(from, instruction.bytes - task.done, flag_);
  task.done += got;
  if (got != 0) ++progress_;
  return ended(instruction, task);
}

bool Interpreter::fold(const Instruction& instruction, Task& task) noexcept {
  const std::int64_t before = task.done;
  while (task.done < instruction.bytes) {
    const std::int64_t piece = std::min(kPieceBytes, instruction.bytes - task.done);
    if (!fold_piece(instruction, task, piece)) break;
    task.done += piece;
  }
  if (task.done != before) {
    ++progress_;
    ring_targets(instruction, 1);
  }
  return ended(instruction, task);
}

// Packets stay where they are until the invocation's half of scratch is used again, so a piece that is not complete is
// begun anew; until its missing packet is there that costs one look.
bool Interpreter::fold_piece(const Instruction& instruction, Task& task, std::int64_t bytes) noexcept {
  if (task.awaited != nullptr && !holds(*task.awaited, flag_)) return false;
  task.awaited = nullptr;
  const std::uint32_t packets = instruction.sources - 1;
  for (std::uint32_t i = 0; i < packets; ++i) {
    const PacketWord* from = packets_at(address(instruction.pointers + i) + 2 * task.done);
    std::byte* piece = pieces_.data() + i * static_cast<std::size_t>(kPieceBytes);
    const std::int64_t got = read_packets(piece, from, bytes, flag_);
    if (got < bytes) {
      task.awaited = from + got / kPayload;
      return false;
    }
    source_list_[i] = piece;
  }
  source_list_[packets] = address(instruction.pointers + packets) + task.done;
  void* plain = address(instruction.pointers + instruction.sources) + task.done;
  cpu::reduce(&plain, 1, source_list_.data(), static_cast<int>(instruction.sources),
              static_cast<std::size_t>(bytes) / element_, dtype_, op_of(instruction.reduce, op_));
  for (std::uint32_t i = 1; i < instruction.targets; ++i) {
    std::byte* to = address(instruction.pointers + instruction.sources + i) + 2 * task.done;
    write_packets(packets_at(to), static_cast<const std::byte*>(plain), bytes, flag_);
  }
  return true;
}

void Interpreter::ring_targets(const Instruction& instruction, std::uint32_t first) const noexcept {
  if (doorbell_ == nullptr) return;
  for (std::uint32_t i = first; i < instruction.targets; ++i) {
    const std::uint32_t base = pointers_[instruction.pointers + instruction.sources + i].base;
    const std::int32_t rank = program_->bases()[base].rank;
    if (rank != rank_) doorbell_->ring(rank);
  }
}

std::int32_t Interpreter::awaited() const noexcept {
  for (std::size_t b = 0; b < program_->blocks().size(); ++b) {
    const Task& task = blocks_[b];
    if (task.at != task.end && task.at->code == Code::kWait) return task.at->peer;
  }
  return far_ != nullptr ? far_->awaited() : -1;
}

std::string Interpreter::describe(const Task& task) const {
  const Instruction& instruction = *task.at;
  const Position& position = program_->positions()[instruction.position];
  const plan::Operation& op = operation_of(instruction);
  std::string text =
      "thread block " + std::to_string(position.block) + ", operation " + std::to_string(position.operation);
  if (position.inner >= 0) text += "." + std::to_string(position.inner);
  text += " (" + std::string(plan::to_string(op.kind)) + ")";
  if (!op.origin.empty()) text += " at " + op.origin;
  if (instruction.code == Code::kWait) text += " for a signal of rank " + std::to_string(instruction.peer);
  const std::vector<std::int32_t> writers = late_writers(instruction, task);
  for (std::size_t i = 0; i < writers.size(); ++i) {
    const char* const first = writers.size() == 1 ? " for packets of rank " : " for packets of ranks ";
    text += (i == 0 ? first : i + 1 == writers.size() ? " and " : ", ") + std::to_string(writers[i]);
  }
  return text;
}

std::string Interpreter::describe_blocked() const {
  constexpr int kMost = 4;
  std::string text;
  int waiting = 0;
  for (std::size_t b = 0; b < program_->blocks().size(); ++b) {
    const Task& task = blocks_[b];
    if (task.at == task.end) continue;
    if (++waiting > kMost) continue;
    text += (waiting > 1 ? "; " : "") + describe(task);
  }
  if (waiting > kMost) text += " and " + std::to_string(waiting - kMost) + " more";
  if (waiting != 0) return "rank " + std::to_string(rank_) + " waits in " + text;
  const std::string far = far_ != nullptr ? far_->describe() : "";
  return far.empty() ? "" : "rank " + std::to_string(rank_) + " waits " + far;
}

}  // namespace tutti::executor
