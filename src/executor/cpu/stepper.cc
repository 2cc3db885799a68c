#include "executor/cpu/stepper.h"

#include <algorithm>
#include <cstring>

#include "base/rounding.h"
#include "executor/cpu/packet_operations.h"
#include "plan/sizes.h"

namespace tutti::executor {
namespace {

using plan::BufferKind;

constexpr std::int32_t kRanksPerWord = 15;

void add_up(plan::Operation& op) {
  op.reduce = plan::ReduceKind::kSum;
  for (plan::Operation& inner : op.body) add_up(inner);
}

std::shared_ptr<const plan::Plan> with_sums(plan::Plan plan) {
  for (plan::Rank& rank : plan.ranks) {
    for (plan::ThreadBlock& block : rank.blocks) {
      for (plan::Operation& op : block.operations) add_up(op);
    }
  }
  plan.reduce = plan::ReduceKind::kSum;
  return std::make_shared<const plan::Plan>(std::move(plan));
}

}  // namespace

Stepper::Stepper(const plan::Plan& plan, std::int64_t cells) {
  const auto ranks = static_cast<std::int64_t>(plan.ranks.size());
  cell_bytes_ = round_up(8 * (1 + (ranks + kRanksPerWord - 1) / kRanksPerWord), plan::kChunkAlignment);
  chunk_bytes_ = cells * cell_bytes_;
  const plan::Shape shape = plan::shape_of(plan);
  message_.input_block_bytes = shape.block_chunks[0] * chunk_bytes_;
  message_.output_block_bytes = shape.block_chunks[1] * chunk_bytes_;
  message_.dtype = DataType::kInt64;
  world_ = std::make_unique<LocalWorld>(with_sums(plan), message_.input_block_bytes, message_.output_block_bytes);
  const auto in = static_cast<std::size_t>(shape.blocks[0] * message_.input_block_bytes);
  const auto out = static_cast<std::size_t>(shape.blocks[1] * message_.output_block_bytes);
  inputs_.assign(plan.ranks.size(), std::vector<std::byte>(in));
  outputs_.assign(plan.ranks.size(), std::vector<std::byte>(out));
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    std::byte* input = inputs_[rank].data();
    std::byte* output = outputs_[rank].data();
    // The smaller is this rank's block of the larger; of plans without rank blocks both begin together.
    const std::size_t block = shape.blocks[0] == shape.blocks[1] ? 0 : rank;
    if (plan.in_place && out >= in) {
      input = output + block * static_cast<std::size_t>(message_.input_block_bytes);
    } else if (plan.in_place) {
      output = input + block * static_cast<std::size_t>(message_.output_block_bytes);
    }
    message_.inputs.push_back(input);
    message_.outputs.push_back(output);
  }
}

void Stepper::fill() {
  const plan::Shape& shape = tables().shape();
  const std::int64_t chunks = std::int64_t{shape.blocks[0]} * shape.block_chunks[0];
  for (std::size_t rank = 0; rank < inputs_.size(); ++rank) {
    std::fill(outputs_[rank].begin(), outputs_[rank].end(), std::byte{});
    for (std::int64_t cell = 0; cell < chunks * chunk_bytes_ / cell_bytes_; ++cell) {
      std::vector<std::int64_t> words(static_cast<std::size_t>(cell_bytes_) / sizeof(std::int64_t));
      words[0] = (calls_ << 32) + cell * cell_bytes_ / chunk_bytes_ + 1;
      words[1 + rank / kRanksPerWord] = std::int64_t{1} << (4 * (rank % kRanksPerWord));
      std::memcpy(message_.inputs[rank] + cell * cell_bytes_, words.data(), static_cast<std::size_t>(cell_bytes_));
    }
  }
}

void Stepper::begin() {
  fill();
  world_->begin(message_);
  ++calls_;
}

Step Stepper::step(std::int32_t rank, std::size_t task) noexcept {
  Interpreter& own = world_->interpreter(rank);
  const Interpreter::View before = own.view(task);
  if (before.at == nullptr) return Step::kEnded;
  if (!before.ready) return Step::kBlocked;
  // An agent's next item is one step.
  const bool agent = task >= own.program().blocks().size();
  const bool looped = own.program().positions()[before.at->position].inner >= 0;
  for (;;) {
    const Step step = own.step(task, 1);
    const Interpreter::View now = own.view(task);
    if (agent || looped || step == Step::kBlocked || now.at == nullptr) return Step::kRan;
    if (now.at->position != before.at->position) return Step::kRan;
  }
}

std::vector<std::byte> Stepper::chunk(std::int32_t rank, BufferKind buffer, std::int32_t index, bool packets) const {
  const auto r = static_cast<std::size_t>(rank);
  const auto size = static_cast<std::size_t>(chunk_bytes_);
  if (buffer != BufferKind::kScratch) {
    const std::byte* base = buffer == BufferKind::kInput ? message_.inputs[r] : message_.outputs[r];
    return {base + index * chunk_bytes_, base + index * chunk_bytes_ + size};
  }
  const plan::Sizes sizes(tables().plan(), message_.input_block_bytes, message_.output_block_bytes);
  const std::int64_t chunks = tables().plan().ranks[r].chunks_of(BufferKind::kScratch);
  if (!packets) {
    const std::int64_t stride = tables().plain_bytes(sizes, rank) / chunks;
    const std::byte* at = interpreter(rank).scratch(Area::kPlain) + index * stride;
    return {at, at + std::min(stride, chunk_bytes_)};
  }
  const std::int64_t stride = tables().packet_bytes(sizes, rank) / chunks;
  const std::byte* at = interpreter(rank).scratch(Area::kPackets) + index * stride;
  std::vector<std::byte> payload(static_cast<std::size_t>(std::min(stride / 2, chunk_bytes_)));
  // The memory is the interpreter's own; packets are only read.
  const PacketWord* words = reinterpret_cast<const PacketWord*>(at);
  const auto bytes = static_cast<std::int64_t>(payload.size());
  payload.resize(static_cast<std::size_t>(read_packets(payload.data(), words, bytes, interpreter(rank).flag())));
  return payload;
}

}  // namespace tutti::executor
