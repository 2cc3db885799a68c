#include "algorithm/plan/plan_buffers.h"

#include "algorithm/built_in_algorithm.h"
#include "base/collective_traits.h"
#include "device/cpu/kernels.h"

namespace tutti {
namespace {

bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) noexcept {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

PlanBuffers::PlanBuffers(const PlanGeometry& geometry, const PlanMemory& memory, const Call& call,
                         CallContext& context) noexcept
    : geometry_(geometry),
      memory_(memory),
      call_(call),
      context_(context),
      in_place_(geometry.tables->plan().in_place),
      block_bytes_(traits_of(call.collective).takes_a_block() ? call.output.size(0) : call.input.size(0)) {
  if (in_place_) {
    place_one_buffer();
  } else {
    place_two_buffers();
  }
}

void PlanBuffers::place_one_buffer() noexcept {
  const executor::Tables& tables = *geometry_.tables;
  whole_ = geometry_.blocks(kOut) >= geometry_.blocks(kIn) ? kOut : kIn;
  const bool reached = tables.reached(plan::BufferKind::kInput, context_.rank) ||
                       tables.reached(plan::BufferKind::kOutput, context_.rank);
  const auto whole = static_cast<std::size_t>(whole_);
  shadow_all_[whole] = whole_ == kIn || (reached && !mapped_everywhere(kOut));
  may_shadow_mine_ = !reached && rooted(whole_);
  shadow_mine_[whole] = !reached && !has(whole_);
}

void PlanBuffers::place_two_buffers() noexcept {
  const executor::Tables& tables = *geometry_.tables;
  for (const int side : {kIn, kOut}) {
    const auto s = static_cast<std::size_t>(side);
    const bool copied = side == kIn && tables.plan().writes_input;
    if (tables.reached(static_cast<plan::BufferKind>(side), context_.rank)) {
      shadow_all_[s] = copied || !mapped_everywhere(side) || (side == kIn && overlaps_anywhere());
    } else {
      may_shadow_mine_ = may_shadow_mine_ || side == kIn || rooted(side);
      shadow_mine_[s] = copied || !has(side) || (side == kIn && overlaps_here());
    }
  }
}

// Whether the root alone has this side.
bool PlanBuffers::rooted(int side) const noexcept {
  const CollectiveTraits& traits = traits_of(call_.collective);
  return side == kIn ? traits.root_reads : traits.root_writes;
}

std::uint64_t PlanBuffers::place(int side, int rank) const noexcept {
  const CallRecord& record = context_.host->peer_record(rank);
  return side == kIn ? record.mapped_input : record.mapped_output;
}

bool PlanBuffers::mapped_everywhere(int side) const noexcept {
  if (context_.host == nullptr) return false;  // several hosts: nobody has told
  for (int rank = 0; rank < context_.size; ++rank) {
    if (place(side, rank) == kNotMapped) return false;
  }
  return true;
}

// Only asked where all inputs are mapped.
bool PlanBuffers::overlaps_anywhere() const noexcept {
  const std::size_t input = geometry_.blocks(kIn) * block_bytes_;
  const std::size_t output = geometry_.blocks(kOut) * block_bytes_;
  for (int rank = 0; rank < context_.size; ++rank) {
    const std::uint64_t from = place(kIn, rank);
    const std::uint64_t to = place(kOut, rank);
    if (to != kNotMapped && from < to + output && to < from + input) return true;
  }
  return false;
}

bool PlanBuffers::overlaps_here() const noexcept {
  if (!has(kIn) || !has(kOut) || call_.collective == Collective::kAllToAll) return false;
  for (std::size_t i = 0; i < geometry_.blocks(kIn); ++i) {
    for (std::size_t o = 0; o < geometry_.blocks(kOut); ++o) {
      if (overlap(user(kIn, static_cast<int>(i)), block_bytes_, user(kOut, static_cast<int>(o)), block_bytes_)) {
        return true;
      }
    }
  }
  return false;
}

std::byte* PlanBuffers::at(int side, int rank, int block) const noexcept {
  const auto s = static_cast<std::size_t>(side);
  const bool own = rank == context_.rank;
  if (shadow_all_[s] || (own && shadow_mine_[s])) {
    const std::size_t before = side == kIn ? 0 : geometry_.blocks(kIn);
    return memory_.shadow(rank) + shadow_ + (before + static_cast<std::size_t>(block)) * PlanGeometry::stride(bytes_);
  }
  if (own) return user(side, block);
  return context_.host->arena(rank) + place(side, rank) + static_cast<std::size_t>(block) * block_bytes_ + begin_;
}

std::byte* PlanBuffers::address(const executor::BaseRef& ref) const noexcept {
  int side = ref.area == executor::Area::kInput ? kIn : kOut;
  int block = ref.block;
  if (in_place_) {
    // The smaller buffer is the rank's own block of the larger.
    if (geometry_.blocks(side) < geometry_.blocks(whole_)) block = ref.rank;
    side = whole_;
  }
  return at(side, ref.rank, block);
}

void PlanBuffers::load(std::size_t begin, std::size_t bytes, std::size_t shadow) noexcept {
  begin_ = begin;
  bytes_ = bytes;
  shadow_ = shadow;
  if (!has(kIn)) return;
  const int side = in_place_ ? whole_ : kIn;
  const bool one = in_place_ && geometry_.blocks(kIn) < geometry_.blocks(kOut);
  for (std::size_t b = 0; b < geometry_.blocks(kIn); ++b) {
    const int block = static_cast<int>(b);
    std::byte* to = at(side, context_.rank, one ? context_.rank : block);
    if (to != user(kIn, block)) context_.stage_writer.copy(to, user(kIn, block), bytes);
  }
}

void PlanBuffers::store() noexcept {
  if (!has(kOut)) return;
  const int side = in_place_ ? whole_ : kOut;
  const bool one = in_place_ && whole_ == kIn;
  const bool divides = call_.op == ReduceOp::kAvg && reduces(call_.collective);
  for (std::size_t b = 0; b < geometry_.blocks(kOut); ++b) {
    const int block = static_cast<int>(b);
    const std::byte* from = at(side, context_.rank, one ? context_.rank : block);
    void* to = user(kOut, block);
    if (divides) {
      const void* source = from;
      cpu::reduce(&to, 1, &source, 1, bytes_ / size_of(call_.dtype), call_.dtype, ReduceOp::kAvg, context_.size);
    } else {
      copy_unless_same(to, from, bytes_);
    }
  }
}

}  // namespace tutti
