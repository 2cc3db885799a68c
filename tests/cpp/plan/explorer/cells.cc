#include "plan/explorer/cells.h"

#include <algorithm>
#include <numeric>

namespace tutti::plan::explorer {
namespace {

constexpr int kIn = static_cast<int>(BufferKind::kInput);
constexpr int kOut = static_cast<int>(BufferKind::kOutput);

bool has_layout(const Plan& plan) {
  return plan.collective != PlanCollective::kTest && plan.collective != PlanCollective::kCustom;
}

// What the loops and groups of a plan ask for.
struct Needs {
  std::int64_t parts = 1;  // of a chunk, for groups of thread blocks
  std::int64_t step = 0;   // bytes that divide every iteration
  std::int64_t widest = 0;
  std::int64_t shortest = 0;  // loop, in chunks
  std::int64_t credit = 0;
};

Needs needs_of(const Plan& plan) {
  Needs needs;
  for (const Rank& rank : plan.ranks) {
    for (const std::int32_t initial : rank.semaphores) needs.credit = std::max<std::int64_t>(needs.credit, initial);
    for (const ThreadBlock& block : rank.blocks) {
      for (const Operation& op : block.operations) {
        if (op.part && !op.sources.empty()) {
          const std::int64_t chunks = op.sources[0].size;
          needs.parts = std::lcm(needs.parts, op.part->size / std::gcd<std::int64_t>(op.part->size, chunks));
        }
        if (op.kind != OpKind::kPipeline) continue;
        needs.step = std::gcd(needs.step, op.iteration.unit_bytes);
        needs.widest = std::max(needs.widest, op.iteration.unit_bytes);
        const std::int64_t chunks = op.iteration.chunks;
        needs.shortest = needs.shortest == 0 ? chunks : std::min(needs.shortest, chunks);
      }
    }
  }
  return needs;
}

}  // namespace

std::vector<Setting> settings_for(const Plan& plan) {
  const Needs needs = needs_of(plan);
  Setting whole;
  whole.calls = plan.double_scratch ? 3 : 2;
  whole.units = needs.parts;
  if (needs.step == 0) {
    std::vector<Setting> settings{whole};
    const std::int64_t chunks = has_layout(plan) ? shape_of(plan).block_chunks[kOut] : 1;
    for (whole.filled = 1; whole.filled < chunks; ++whole.filled) settings.push_back(whole);
    return settings;
  }
  std::vector<Setting> settings;
  const bool long_messages = plan.max_message_bytes > static_cast<std::uint64_t>(bytes_without_ring(plan));
  const bool wraps = plan.reuse_resources && ring_unit(plan) > 0 && long_messages;
  const std::int64_t ring = wraps ? needs.credit + 2 : 0;
  const std::int64_t widest = needs.widest / needs.step;
  for (const std::int64_t rounds : {std::int64_t{1}, 2 * ring + needs.credit + 2}) {
    Setting setting = whole;
    setting.loop_bytes = needs.step;
    setting.units = std::max<std::int64_t>(1, (rounds * widest + needs.shortest - 1) / needs.shortest);
    setting.units = (setting.units + needs.parts - 1) / needs.parts * needs.parts;
    if (rounds > 1 && ring * widest < setting.units) setting.ring = ring * widest;
    settings.push_back(setting);
  }
  return settings;
}

Cells::Cells(const Plan& plan, const Setting& setting) : setting_(setting), shape_(shape_of(plan)) {
  const bool alias = plan.in_place && has_layout(plan);
  const int larger = shape_.blocks[kIn] > shape_.blocks[kOut] ? kIn : kOut;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    std::array<std::int32_t, 2> user{};
    for (const int buffer : {kIn, kOut}) {
      if (!alias || buffer == larger)
        user[buffer] = take(std::int64_t{shape_.blocks[buffer]} * shape_.block_chunks[buffer]);
    }
    if (alias) {
      // The smaller buffer is the rank's own block of the larger one.
      const bool part = shape_.blocks[larger] != shape_.blocks[1 - larger];
      const std::int64_t before = part ? static_cast<std::int64_t>(r) * shape_.block_chunks[larger] * setting.units : 0;
      user[1 - larger] = user[larger] + static_cast<std::int32_t>(before);
    }
    user_.push_back(user);
    auto& scratch = scratch_.emplace_back();
    for (auto& region : scratch) {
      for (std::int32_t& half : region) half = take(plan.ranks[r].chunks_of(BufferKind::kScratch));
    }
  }
}

std::int32_t Cells::take(std::int64_t chunks) {
  const std::int32_t begin = count_;
  count_ += static_cast<std::int32_t>(chunks * setting_.units);
  return begin;
}

std::int32_t Cells::cell_of(const Spot& spot) const {
  const bool scratch = spot.buffer == BufferKind::kScratch;
  const std::int64_t unit = scratch && setting_.ring > 0 ? spot.unit % setting_.ring : spot.unit;
  const std::int32_t begin =
      scratch ? scratch_[spot.rank][spot.packets ? 1 : 0][spot.half] : user_[spot.rank][static_cast<int>(spot.buffer)];
  return begin + static_cast<std::int32_t>(spot.chunk * setting_.units + unit);
}

bool Cells::filled(BufferKind buffer, std::int64_t chunk) const {
  if (buffer == BufferKind::kScratch || setting_.filled < 0) return true;
  return chunk % shape_.block_chunks[static_cast<int>(buffer)] < setting_.filled;
}

}  // namespace tutti::plan::explorer
