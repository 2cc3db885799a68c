// Numbers the cells.
#include "plan/verifier/layout.h"

#include <algorithm>
#include <string>

#include "plan/operations.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

constexpr std::int64_t kMaxCells = std::int64_t{1} << 24;

}  // namespace

Layout::Layout(const Plan& plan, const Cut& cut)
    : cut_(cut), shape_(shape_of(plan)), halves_(plan.double_scratch ? 2 : 1) {
  const auto ranks = static_cast<std::int32_t>(plan.ranks.size());
  user_.resize(plan.ranks.size());
  scratch_.resize(plan.ranks.size());
  // In place, the smaller buffer is a part of the larger one.
  const auto chunks_of = [&](int buffer) { return shape_.blocks[buffer] * std::int64_t{shape_.block_chunks[buffer]}; };
  const int larger = chunks_of(kIn) > chunks_of(kOut) ? kIn : kOut;
  for (std::int32_t r = 0; r < ranks; ++r) {
    for (const int buffer : {kIn, kOut}) {
      if (!plan.in_place || buffer == larger)
        user_[r][buffer] = add(chunks_of(buffer), r, buffer == kIn ? "input" : "output");
    }
    if (!plan.in_place) continue;
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
  if (cells_ > kMaxCells)
    throw_error(ErrorKind::kUnsupported,
                "not proven: its buffers have more than " + std::to_string(kMaxCells) + " chunks and parts of chunks");
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
