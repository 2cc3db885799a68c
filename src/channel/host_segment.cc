#include "channel/host_segment.h"

#include <algorithm>

#include "base/rounding.h"
#include "transport/shm/ring.h"

namespace tutti {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

SegmentLayout::SegmentLayout(const SegmentShape& shape) noexcept : shape_(shape) {
  const auto n = static_cast<std::size_t>(shape.ranks);
  shape_.slot_bytes = round_up(shape.slot_bytes, 128);
  // The pipelines take at least eight places with a cache line for each rank.
  shape_.stage_bytes = round_up(std::max(shape.stage_bytes, 8 * 64 * n), kPage);
  control_ = round_up(sizeof(SegmentHeader), kPage);
  sizes_ = round_up(sizeof(RankControl), 128);
  control_stride_ = round_up(sizes_ + kWindow * n * sizeof(std::uint64_t), kPage);
  slots_ = control_ + n * control_stride_;
  stages_ = round_up(slots_ + n * kWindow * shape_.slot_bytes, kPage);
  rings_ = stages_ + n * shape_.stage_bytes;
  ring_stride_ = round_up(ring_bytes(shape.ring_capacity), 128);
  total_ = round_up(rings_ + n * n * ring_stride_, kPage);
}

}  // namespace tutti
