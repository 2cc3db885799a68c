#include "plan/explorer/cells.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "plan/operations.h"

namespace tutti::plan::explorer {
namespace {

constexpr int kIn = static_cast<int>(BufferKind::kInput);
constexpr int kOut = static_cast<int>(BufferKind::kOutput);

bool has_layout(const Plan& plan) {
  return plan.collective != PlanCollective::kTest && plan.collective != PlanCollective::kCustom;
}

// What the loops and groups of a plan ask for.
struct Needs {
  std::int64_t parts = 1;   // of a chunk, for groups of thread blocks
  std::int64_t unit = 0;    // bytes that divide every iteration
  std::int64_t widest = 0;  // … the widest one, and the narrowest
  std::int64_t narrowest = 0;
  std::int64_t shortest = 0;  // loop, in chunks
  std::int64_t credit = 0;
  std::int64_t given_ahead = 0;  // what one counter may get outside of loops
};

Needs needs_of(const Plan& plan) {
  Needs needs;
  for (const Rank& rank : plan.ranks) {
    for (const std::int32_t initial : rank.semaphores) needs.credit = std::max<std::int64_t>(needs.credit, initial);
    for (const ThreadBlock& block : rank.blocks) {
      std::int64_t given = 0;
      for (const Operation& op : block.operations) {
        const SyncKind sync = rules_of(op.kind).sync;
        if (sync == SyncKind::kSignal || sync == SyncKind::kRelaxedSignal || sync == SyncKind::kSemaphoreRelease) {
          ++given;
        }
        for (std::size_t i = 0; op.part && i < op.sources.size(); ++i) {
          const std::int64_t chunks = op.sources[i].size;
          needs.parts = std::lcm(needs.parts, op.part->size / std::gcd<std::int64_t>(op.part->size, chunks));
        }
        if (op.kind != OpKind::kPipeline) continue;
        const std::int64_t bytes = op.iteration.unit_bytes;
        needs.unit = std::gcd(needs.unit, bytes);
        needs.widest = std::max(needs.widest, bytes);
        needs.narrowest = needs.narrowest == 0 ? bytes : std::min(needs.narrowest, bytes);
        const std::int64_t chunks = op.iteration.chunks;
        needs.shortest = needs.shortest == 0 ? chunks : std::min(needs.shortest, chunks);
      }
      needs.given_ahead = std::max(needs.given_ahead, given);
    }
  }
  return needs;
}

// Without loops units do not depend on each other, so one a chunk shows all, or as many as groups divide it into.
std::vector<Setting> settings_without_loops(const Plan& plan, Setting whole) {
  std::vector<Setting> settings{whole};
  const std::int64_t chunks = has_layout(plan) ? shape_of(plan).block_chunks[kOut] : 1;
  for (std::int64_t filled = 1; filled < chunks; ++filled) {
    whole.filled = filled * whole.units;
    settings.push_back(whole);
  }
  return settings;
}

// Scratch of a fixed size, in units of a chunk: what fits without a ring, and how long the ring is then.
struct Reuse {
  std::int64_t fits = std::numeric_limits<std::int64_t>::max();
  std::int64_t ring = 0;  // 0: longer chunks cannot be
};

Reuse reuse_of(const Plan& plan, const Needs& needs, std::int64_t loop_bytes) {
  Reuse reuse;
  std::int64_t most = 0;
  for (const Rank& rank : plan.ranks) most = std::max<std::int64_t>(most, rank.chunks_of(BufferKind::kScratch));
  if (!plan.reuse_resources || most == 0 || scratch_use(plan).packets) return reuse;
  const std::int64_t bytes = kReusedScratchBytes / (plan.double_scratch ? 2 : 1) / most;
  const std::int64_t wraps_by = ring_unit(plan);
  reuse.fits = bytes / loop_bytes;
  const bool long_messages = plan.max_message_bytes > static_cast<std::uint64_t>(bytes_without_ring(plan));
  if (wraps_by == 0 || !long_messages) return reuse;
  // A ring that is longer than anything can run ahead is as good as any longer one.
  const std::int64_t rounds = std::min(bytes / wraps_by, needs.credit + needs.given_ahead + 2);
  if (rounds == 0) return reuse;
  reuse.ring = rounds * (wraps_by / loop_bytes);
  if (rounds < bytes / wraps_by) reuse.fits = reuse.ring;
  return reuse;
}

}  // namespace

std::string describe(const Setting& setting) {
  std::string text;
  if (setting.loop_bytes > 0)
    text += ", with chunks of " + std::to_string(setting.units * setting.loop_bytes) + " bytes";
  if (setting.ring > 0) text += " in a ring of " + std::to_string(setting.ring * setting.loop_bytes);
  if (setting.filled < 0) return text;
  return text + ", in a message that ends after " + std::to_string(setting.filled) + " of a rank block's units of " +
         std::to_string(setting.units) + " a chunk";
}

std::vector<Setting> settings_for(const Plan& plan) {
  const Needs needs = needs_of(plan);
  Setting setting;
  setting.calls = plan.double_scratch ? 3 : 2;
  setting.units = needs.parts;
  if (needs.unit == 0) return settings_without_loops(plan, setting);
  // Chunks are of at least 16 bytes, so only iterations of more can be longer than they.
  setting.loop_bytes = needs.unit > kChunkAlignment ? needs.unit / 2 : needs.unit;
  const std::int64_t widest = needs.widest / setting.loop_bytes;
  const std::int64_t narrowest = needs.narrowest / setting.loop_bytes;
  const Reuse reuse = reuse_of(plan, needs, setting.loop_bytes);
  const std::int64_t ahead = needs.credit + needs.given_ahead + 2;
  const std::int64_t most = (2 * reuse.ring + ahead * widest + needs.shortest - 1) / needs.shortest;
  std::set<std::int64_t> lengths{1, narrowest, widest, widest + 1, 2 * widest, 2 * widest + narrowest, most, most + 1};
  for (const std::int64_t of : {narrowest, widest}) lengths.insert({(of + 1) / 2, of + of / 2, 3 * of});
  lengths.insert(std::max(most, needs.parts));
  std::vector<Setting> settings;
  const std::int64_t chunks = has_layout(plan) ? shape_of(plan).block_chunks[kOut] : 1;
  for (const std::int64_t length : lengths) {
    setting.units = length;
    const bool wraps = setting.units > reuse.fits;
    if (wraps && reuse.ring == 0) continue;
    const auto bytes = [&](std::int64_t units) { return static_cast<std::uint64_t>(units * setting.loop_bytes); };
    if (plan.max_message_bytes <= bytes(chunks * (setting.units - 1))) continue;
    if (plan.min_message_bytes > bytes(chunks * setting.units)) continue;
    setting.ring = wraps ? reuse.ring : 0;
    settings.push_back(setting);
    if (setting.units > 1) continue;
    // Only chunks of a few bytes may be empty.
    for (setting.filled = 1; setting.filled < chunks; ++setting.filled) settings.push_back(setting);
    setting.filled = -1;
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

bool Cells::filled(const Spot& spot) const {
  if (spot.buffer == BufferKind::kScratch || setting_.filled < 0) return true;
  const std::int64_t in_block = spot.chunk % shape_.block_chunks[static_cast<int>(spot.buffer)];
  return in_block * setting_.units + spot.unit < setting_.filled;
}

}  // namespace tutti::plan::explorer
