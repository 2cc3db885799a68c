#include "executor/program/tables.h"

#include <algorithm>
#include <utility>

#include "base/rounding.h"
#include "executor/program/inflow.h"
#include "plan/operations.h"
#include "plan/structure.h"
#include "tutti/error.h"

namespace tutti::executor {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;

// A checked plan's tables may be built; an unchecked one's may not even be looked at.
const plan::Plan& checked(const plan::Plan& plan) {
  plan::check_structure(plan);
  return plan;
}

}  // namespace

Tables::Tables(std::shared_ptr<const plan::Plan> plan, RankMap map)
    : plan_(std::move(plan)),
      links_(checked(*plan_)),
      shape_(plan::shape_of(*plan_)),
      scratch_(plan::scratch_use(*plan_)),
      map_(std::move(map)),
      reached_(static_cast<std::size_t>(map_.hosts())) {
  if (const std::string fault = one_host() ? "" : crossing_fault(*plan_, links_, map_); !fault.empty()) {
    throw_error(ErrorKind::kUnsupported, fault);
  }
  first_.push_back(0);
  for (const plan::Rank& rank : plan_->ranks) {
    const std::size_t own =
        rank.channels_of(plan::ChannelKind::kMemory).size() + rank.channels_of(plan::ChannelKind::kPort).size();
    first_.push_back(first_.back() + static_cast<std::uint32_t>(own));
  }
  note_reached();
}

void Tables::note_reached() {
  const auto note = [this](std::size_t rank, const plan::ThreadBlock& block, const plan::Operation& op) {
    for (const auto* side : {&op.sources, &op.destinations}) {
      for (const plan::Operand& operand : *side) {
        if (operand.place == plan::Operand::Place::kLocal) continue;
        plan::Place place{static_cast<std::int32_t>(rank), plan::BufferKind::kInput};
        if (operand.place == plan::Operand::Place::kGroup) {
          const std::int32_t channel = block.channels_of(plan::ChannelKind::kSwitch)[operand.id];
          place.buffer = plan_->ranks[rank].switch_channels[channel].buffer;
        } else {
          place = plan::place_of(*plan_, static_cast<std::int32_t>(rank), block, op, operand);
          if (!share_memory(static_cast<std::int32_t>(rank), place.rank)) continue;  // carried there by its own rank
        }
        reached_[host(place.rank)][static_cast<std::size_t>(place.buffer)] = true;
      }
    }
  };
  for (std::size_t rank = 0; rank < plan_->ranks.size(); ++rank) {
    for (const plan::ThreadBlock& block : plan_->ranks[rank].blocks) {
      for (const plan::Operation& op : block.operations) {
        note(rank, block, op);
        for (const plan::Operation& inner : op.body) note(rank, block, inner);
      }
    }
  }
}

std::uint32_t Tables::counter(plan::ChannelKind kind, std::int32_t rank, std::int32_t channel) const noexcept {
  const std::size_t before =
      kind == plan::ChannelKind::kPort ? plan_->ranks[rank].channels_of(plan::ChannelKind::kMemory).size() : 0;
  return first_counter(rank) + static_cast<std::uint32_t>(before) + static_cast<std::uint32_t>(channel);
}

std::int64_t Tables::plain_bytes(const plan::Sizes& sizes, std::int32_t rank) const {
  // Plain chunks take one byte for one, packets two: see Sizes::scratch_bytes().
  const std::int64_t all = sizes.scratch_bytes(rank);
  return !scratch_.plain ? 0 : scratch_.packets ? all / 3 : all;
}

std::int64_t Tables::packet_bytes(const plan::Sizes& sizes, std::int32_t rank) const {
  return sizes.scratch_bytes(rank) - plain_bytes(sizes, rank);
}

RankLayout Tables::layout(std::int32_t rank, std::int64_t input_bytes, std::int64_t output_bytes) const {
  const plan::Sizes sizes(*plan_, input_bytes, output_bytes);
  const std::size_t halves = plan_->double_scratch ? 2 : 1;
  RankLayout layout;
  const std::size_t counters = first_counter(rank + 1) - first_counter(rank);
  layout.packets = round_up(counters * sizeof(CounterWord), kPage);
  layout.packets_half = round_up(static_cast<std::size_t>(packet_bytes(sizes, rank)), kLine);
  layout.plain = round_up(layout.packets + halves * layout.packets_half, kLine);
  layout.plain_half = round_up(static_cast<std::size_t>(plain_bytes(sizes, rank)), kLine);
  layout.total = round_up(layout.plain + halves * layout.plain_half, kPage);
  return layout;
}

}  // namespace tutti::executor
