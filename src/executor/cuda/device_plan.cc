#include "executor/cuda/device_plan.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/rounding.h"
#include "tutti/error.h"

namespace tutti::executor {
namespace {

constexpr std::size_t kMostInstructions = 1UL << 16;  // of a rank for one segment

[[noreturn]] void refuse(const plan::Plan& plan, const std::string& why) {
  throw_error(ErrorKind::kUnsupported, "plan \"" + plan.name + "\" on GPUs: " + why);
}

}  // namespace

DevicePlan::DevicePlan(std::shared_ptr<const plan::Plan> plan, std::int32_t rank, const DeviceLimits& limits)
    : tables_(std::move(plan)), rank_(rank) {
  if (tables_.ranks() > kUserBlocks) {
    refuse(this->plan(), "it has " + std::to_string(tables_.ranks()) + " ranks, and a group on GPUs has at most " +
                             std::to_string(kUserBlocks));
  }
  for (const plan::Rank& one : this->plan().ranks) blocks_ = std::max(blocks_, one.blocks.size());
  if (blocks_ > static_cast<std::size_t>(limits.blocks)) {
    refuse(this->plan(), "its " + std::to_string(blocks_) + " thread blocks wait for each other, and " +
                             (limits.why_blocks.empty()
                                  ? "a kernel of this group has at most " + std::to_string(limits.blocks) + " at once"
                                  : limits.why_blocks));
  }
  blocks_ = std::max<std::size_t>(1, this->plan().ranks[static_cast<std::size_t>(rank)].blocks.size());
  segment_bytes_ = choose_segment(limits.bytes);
  shorten_segment();
  memory_bytes_ = memory_for(segment_bytes_);
  for (std::int32_t r = 0; r < tables_.ranks(); ++r) {
    const auto bytes = static_cast<std::int64_t>(segment_bytes_);
    layouts_.push_back(tables_.layout(r, bytes, bytes));
  }
  // Channels, semaphores and barriers are the same at every size.
  const auto least = static_cast<std::int64_t>(std::min(segment_bytes_, choose_segment(0)));
  any_size_ = !plan::has_loops(this->plan());
  for (std::int32_t r = 0; r < tables_.ranks(); ++r) {
    const RankLayout& layout = layouts_[static_cast<std::size_t>(r)];
    any_size_ = any_size_ && tables_.layout(r, least, least).total == layout.total && layout.plain_half == 0 &&
                layout.packets_half == 0;
  }
  for (std::int32_t r = 0; r < tables_.ranks(); ++r) {
    const Program program(tables_, r, least, least);
    check_reductions(program);  // of all ranks, so that all refuse alike
    if (r == rank) note_uses(program);
  }
}

void DevicePlan::check_reductions(const Program& program) const {
  for (const auto& block : program.blocks()) {
    for (const Instruction& one : block) {
      if ((one.code == Code::kReduce || one.code == Code::kFold) && one.sources > device::kMaxRanks) {
        refuse(plan(), "an operation reduces " + std::to_string(one.sources) + " ranges, and kernels take at most " +
                           std::to_string(device::kMaxRanks));
      }
    }
  }
}

std::size_t DevicePlan::memory_for(std::size_t bytes) const {
  std::size_t most = 0;
  for (std::int32_t r = 0; r < tables_.ranks(); ++r) {
    const auto block = static_cast<std::int64_t>(bytes);
    most = std::max(most, tables_.layout(r, block, block).total);
  }
  return most + shadow_bytes(bytes);
}

// Segments end where chunks end. `most` 0: the least.
std::size_t DevicePlan::choose_segment(std::size_t most) const {
  const plan::Shape& shape = tables_.shape();
  const auto unit = static_cast<std::size_t>(std::max(shape.block_chunks[0], shape.block_chunks[1])) * 64;
  if (most == 0) return unit;
  if (const std::size_t least = memory_for(unit); least > most) {
    refuse(plan(), "it needs " + std::to_string(least) + " bytes of memory that peers map, and a plan has at most " +
                       std::to_string(most));
  }
  std::size_t units = 1;
  while (memory_for(2 * units * unit) <= most) units *= 2;
  for (std::size_t step = units / 2; step > 0; step /= 2) {
    if (memory_for((units + step) * unit) <= most) units += step;
  }
  return units * unit;
}

// A rank's own input that overlaps its output takes a shadow, which peers know nothing of, unless both are compared.
std::size_t DevicePlan::segment_bytes(const DeviceVariant& variant) const noexcept {
  const bool all_mapped = plan().in_place ? variant.mapped_output : variant.mapped_input && variant.mapped_output;
  return any_size_ && all_mapped ? std::numeric_limits<std::size_t>::max() : segment_bytes_;
}

// Until what every rank decodes of it stays small: at a call it would be too late to say so, and one rank's alone.
void DevicePlan::shorten_segment() {
  if (!plan::has_loops(plan())) return;  // as many instructions at every size
  const auto decodes = [this] {
    const auto bytes = static_cast<std::int64_t>(segment_bytes_);
    for (std::int32_t r = 0; r < tables_.ranks(); ++r) {
      std::size_t instructions = 0;
      try {
        const Program program(tables_, r, bytes, bytes);
        for (const auto& block : program.blocks()) instructions += block.size();
      } catch (const Error&) {
        return false;
      }
      if (instructions > kMostInstructions) return false;
    }
    return true;
  };
  const std::size_t unit = choose_segment(0);
  while (!decodes()) {
    if (segment_bytes_ <= unit) {
      refuse(plan(), "its loops make more than " + std::to_string(kMostInstructions) + " operations of " +
                         std::to_string(unit) + " bytes: a larger unit makes fewer");
    }
    segment_bytes_ = std::max(unit, segment_bytes_ / 2 / unit * unit);
  }
}

int DevicePlan::threads_of(const plan::Plan& plan) noexcept {
  return std::clamp(plan.threads_per_block / 32 * 32, 32, kMostThreads);
}

void DevicePlan::add_slot(const SlotKey& key, std::uint64_t initial) {
  if (slots_.try_emplace(key, static_cast<std::uint32_t>(initial_slots_.size())).second) {
    initial_slots_.push_back(initial);
  }
}

void DevicePlan::add_word(Use use, std::uint32_t id, std::uint32_t block, std::uint64_t initial) {
  if (words_.try_emplace({use, id, block}, static_cast<std::uint32_t>(initial_words_.size())).second) {
    initial_words_.push_back(initial);
  }
}

void DevicePlan::note_uses(const Program& program) {
  meets_.resize(program.barriers());
  for (std::uint32_t b = 0; b < program.blocks().size(); ++b) {
    for (const Instruction& one : program.blocks()[b]) {
      switch (one.code) {
        case Code::kSignal:
          add_slot({b, Use::kSignal, one.agent, 0});
          break;
        case Code::kPostSignal:
          add_slot({b, Use::kPostSignal, one.agent, 0});
          break;
        case Code::kWait:
          add_slot({b, Use::kWait, one.counter, 0});
          break;
        case Code::kRelease:
        case Code::kAcquire: {
          // A semaphore begins with what it begins with, and every invocation returns it to that.
          const auto initial = static_cast<std::uint64_t>(
              plan().ranks[static_cast<std::size_t>(rank_)].semaphores[static_cast<std::size_t>(one.counter)]);
          add_word(Use::kRelease, one.counter, 0, initial);
          if (one.code == Code::kRelease) add_slot({b, Use::kRelease, one.counter, 0}, initial);
          if (one.code == Code::kAcquire) add_slot({b, Use::kAcquire, one.counter, 0});
          break;
        }
        case Code::kBarrier:
          if (std::find(meets_[one.counter].begin(), meets_[one.counter].end(), b) == meets_[one.counter].end()) {
            meets_[one.counter].push_back(b);
          }
          break;
        default:
          break;
      }
    }
  }
  if (maps_input() || maps_output()) {
    add_word(Use::kAgree, 0, 0);
    for (std::uint32_t b = 0; b < blocks_; ++b) add_slot({b, Use::kAgree, 0, 0});
  }
  std::vector<std::uint32_t>& all = meets_.emplace_back(blocks_);
  std::iota(all.begin(), all.end(), 0);
  for (std::uint32_t id = 0; id < meets_.size(); ++id) {
    for (const std::uint32_t b : meets_[id]) {
      add_word(Use::kArrive, id, b);
      add_slot({b, Use::kArrive, id, 0});
      for (const std::uint32_t other : meets_[id]) add_slot({b, Use::kMeet, id, other});
    }
  }
}

std::size_t DevicePlan::slots_offset() const noexcept { return round_up(blocks_ * sizeof(std::uint64_t), kLine); }
std::size_t DevicePlan::words_offset() const noexcept {
  return slots_offset() + round_up(initial_slots_.size() * sizeof(std::uint64_t), kLine);
}

std::vector<std::byte> DevicePlan::state() const {
  std::vector<std::byte> image(words_offset() + initial_words_.size() * kLine);
  const auto put = [&image](std::size_t at, std::uint64_t value) { std::memcpy(&image[at], &value, sizeof value); };
  for (std::size_t i = 0; i < initial_slots_.size(); ++i) put(slots_offset() + 8 * i, initial_slots_[i]);
  for (std::size_t i = 0; i < initial_words_.size(); ++i) put(words_offset() + kLine * i, initial_words_[i]);
  return image;
}

}  // namespace tutti::executor
