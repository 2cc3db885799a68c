// Cuts chunks into units and numbers the cells.
#include "plan/verifier/layout.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "plan/operations.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

constexpr int kIn = static_cast<int>(BufferKind::kInput);
constexpr int kOut = static_cast<int>(BufferKind::kOutput);
constexpr std::int64_t kMaxUnits = 4096;
constexpr std::int64_t kMaxCells = std::int64_t{1} << 24;

template <typename Visit>
void for_each_operation(const Plan& plan, const Visit& visit) {
  for (const Rank& rank : plan.ranks) {
    for (const ThreadBlock& block : rank.blocks) {
      for (const Operation& op : block.operations) visit(op);
    }
  }
}

std::int64_t largest_credit(const Plan& plan) {
  std::int32_t credit = 0;
  for (const Rank& rank : plan.ranks) {
    for (const std::int32_t initial : rank.semaphores) credit = std::max(credit, initial);
  }
  return credit;
}

bool loops(const Plan& plan) {
  bool any = false;
  for_each_operation(plan, [&any](const Operation& op) { any = any || op.kind == OpKind::kPipeline; });
  return any;
}

// How many iterations fit into a chunk of reused scratch, as far as that can matter: a ring longer than the credits
// lets no more happen than one of credits + 2. 0 if no message that the plan is for needs a ring.
std::int64_t ring_iterations(const Plan& plan) {
  const std::int64_t unit = plan.reuse_resources ? ring_unit(plan) : 0;
  if (unit == 0 || plan.max_message_bytes <= static_cast<std::uint64_t>(bytes_without_ring(plan))) return 0;
  std::int64_t most = 1;
  for (const Rank& rank : plan.ranks) most = std::max<std::int64_t>(most, rank.chunks_of(BufferKind::kScratch));
  const std::int64_t fits = kReusedScratchBytes / (plan.double_scratch ? 2 : 1) / most / unit;
  return std::clamp<std::int64_t>(fits, 1, largest_credit(plan) + 2);
}

}  // namespace

std::int64_t deciding_iterations(const Plan& plan) {
  if (!loops(plan)) return 1;
  return 2 * ring_iterations(plan) + largest_credit(plan) + 2;
}

Cut cut_for(const Plan& plan, std::int64_t iterations) {
  Cut cut;
  std::int64_t widest = 0;  // bytes an iteration
  std::int64_t fewest = 0;  // chunks of a loop
  std::int64_t parts = 1;   // every part of a group must begin on a unit
  for_each_operation(plan, [&](const Operation& op) {
    if (op.part && !op.sources.empty()) {
      const std::int64_t chunks = op.sources[0].size;
      parts = std::lcm(parts, op.part->size / std::gcd<std::int64_t>(op.part->size, chunks));
      if (parts > kMaxUnits) throw_error(ErrorKind::kUnsupported, "plan: its thread block groups cut too finely");
    }
    if (op.kind != OpKind::kPipeline) return;
    cut.tick_bytes = std::gcd(cut.tick_bytes, op.iteration.unit_bytes);
    widest = std::max(widest, op.iteration.unit_bytes);
    const std::int64_t chunks = op.iteration.chunks;
    fewest = fewest == 0 ? chunks : std::min(fewest, chunks);
  });
  if (cut.tick_bytes > 0) {
    const std::int64_t widest_ticks = widest / cut.tick_bytes;
    cut.units = std::max<std::int64_t>(1, (iterations * widest_ticks + fewest - 1) / fewest);
    if (iterations > 1 && ring_iterations(plan) > 0) cut.ring_units = ring_iterations(plan) * widest_ticks;
  }
  cut.units = (cut.units + parts - 1) / parts * parts;
  if (cut.ring_units >= cut.units) cut.ring_units = 0;
  if (cut.units > kMaxUnits) throw_error(ErrorKind::kUnsupported, "plan: its loops cut too finely to verify");
  return cut;
}

Layout::Layout(const Plan& plan, const Cut& cut)
    : plan_(plan), cut_(cut), shape_(shape_of(plan)), halves_(plan.double_scratch ? 2 : 1) {
  const auto ranks = static_cast<std::int32_t>(plan.ranks.size());
  user_.resize(plan.ranks.size());
  scratch_.resize(plan.ranks.size());
  // In place, the smaller buffer is a part of the larger one.
  const bool alias = plan.in_place && rules_of(plan.collective).defines_result;
  const int larger = shape_.blocks[kIn] > shape_.blocks[kOut] ? kIn : kOut;
  for (std::int32_t r = 0; r < ranks; ++r) {
    for (const int buffer : {kIn, kOut}) {
      const std::int64_t chunks = shape_.blocks[buffer] * std::int64_t{shape_.block_chunks[buffer]};
      if (!alias || buffer == larger) user_[r][buffer] = add(chunks, r, buffer == kIn ? "input" : "output");
    }
    if (!alias) continue;
    const bool part = shape_.blocks[larger] != shape_.blocks[1 - larger];
    user_[r][1 - larger] = user_[r][larger] + (part ? r * std::int64_t{shape_.block_chunks[larger]} * cut_.units : 0);
  }
  const ScratchUse use = scratch_use(plan);
  for (const int packets : {0, 1}) {
    if (packets == 1) first_packet_cell_ = cells_;
    const bool used = packets == 1 ? use.packets : use.plain;
    for (std::int32_t r = 0; r < ranks; ++r) {
      for (std::int32_t half = 0; half < halves_; ++half) {
        scratch_[r][packets][half] =
            add(used ? plan.ranks[r].chunks_of(BufferKind::kScratch) : 0, r, packets == 1 ? "packet slots" : "scratch");
      }
    }
  }
}

Layout::Cell Layout::add(std::int64_t chunks, std::int32_t rank, const char* what) {
  const Cell begin = cells_;
  regions_.push_back({begin, rank, what});
  cells_ += chunks * cut_.units;
  if (cells_ > kMaxCells) throw_error(ErrorKind::kUnsupported, "plan: too many chunks to verify");
  return begin;
}

Layout::Cell Layout::cell_of(std::int32_t rank, BufferKind buffer, std::int64_t chunk, std::int64_t unit) const {
  return user_[rank][static_cast<int>(buffer)] + chunk * cut_.units + unit;
}

Layout::Cell Layout::cell(const Run& run, std::int64_t unit) const {
  const std::int64_t chunk = run.first_chunk + unit / cut_.units;
  std::int64_t within = unit % cut_.units;
  if (run.buffer != BufferKind::kScratch) return cell_of(run.rank, run.buffer, chunk, within);
  if (cut_.ring_units > 0) within %= cut_.ring_units;
  return scratch_[run.rank][run.packets ? 1 : 0][run.half] + chunk * cut_.units + within;
}

std::int64_t Layout::position(BufferKind buffer, std::int64_t chunk) const {
  if (buffer == BufferKind::kScratch) return -1;
  return chunk % shape_.block_chunks[static_cast<int>(buffer)];
}

std::string Layout::name_of(Cell cell) const {
  const auto after =
      std::upper_bound(regions_.begin(), regions_.end(), cell, [](Cell at, const Region& r) { return at < r.begin; });
  const Region& region = *(after - 1);
  const std::int64_t within = cell - region.begin;
  std::string text =
      "chunk " + std::to_string(within / cut_.units) + " of rank " + std::to_string(region.rank) + "'s " + region.what;
  if (cut_.units > 1) {
    text += " (part " + std::to_string(within % cut_.units + 1) + " of " + std::to_string(cut_.units) + ")";
  }
  return text;
}

}  // namespace tutti::plan
