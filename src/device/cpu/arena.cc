// The arena of mapped tensors: one memfd, two range allocators, one lock.
//
// Blocks from 64 KiB up are whole pages of the file. Smaller ones are cut, in steps of 64 bytes, from chunks of
// 2 MiB, so that they never share the page bookkeeping; chunks stay with the small blocks, which bounds them by the
// most small bytes ever in use. Freed memory stays resident, as a cache, up to `cached_limit_`; then the units that
// have been free for longest are punched out of the file. Punching happens under the lock: a unit that another thread
// could take meanwhile would lose what was written to it.
#include "device/cpu/arena.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/process.h"
#include "base/rounding.h"
#include "device/cpu/loans.h"
#include "device/cpu/mapped_memory.h"
#include "device/cpu/range_allocator.h"
#include "device/cpu/resident_units.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kSmallGranule = 64;
constexpr std::size_t kSmallLimit = std::size_t{64} << 10;  // blocks from here up have pages of their own
constexpr std::size_t kChunkBytes = ResidentUnits::kUnitBytes;
constexpr std::uint32_t kCallsASweep = 64;
constexpr std::size_t kMostChosenBytes = std::size_t{256} << 30;
constexpr std::size_t kEnoughCached = std::size_t{256} << 20;

using Block = RangeAllocator::Block;

class MemfdArena final : public Arena, private ForkHandler {
 public:
  MemfdArena(UniqueFd fd, Mapping mapping, std::size_t cached_limit);
  ~MemfdArena() override { table_.remove_arena(*this); }

  int fd() const noexcept override { return fd_.get(); }
  std::size_t bytes() const noexcept override { return mapping_.bytes(); }
  std::uint64_t id() const noexcept override { return id_; }
  void* allocate(std::size_t bytes) noexcept override;
  void deallocate(void* data) noexcept override;
  bool contains(const void* data) const noexcept override;
  std::uint64_t offset_of(const void* data, std::size_t bytes) const noexcept override;
  std::uint64_t lend(const void* data, std::size_t bytes) noexcept override;
  void take_back(std::span<const std::span<std::byte>> lent, bool done) noexcept override;
  void quarantine(const void* data) noexcept override;
  void limit_cache(std::size_t bytes) noexcept override;
  std::size_t bytes_in_use() const noexcept override;
  std::size_t bytes_cached() const noexcept override;
  std::size_t bytes_quarantined() const noexcept override;

 private:
  struct HeldBlock {
    std::size_t offset;
    std::uint32_t born;  // children of forks numbered in (born, freed] may own it
    std::uint32_t freed;
  };

  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock(); }
  void after_fork_in_child() noexcept override;

  std::size_t offset(const void* data) const noexcept {
    return static_cast<std::size_t>(static_cast<const std::byte*>(data) - mapping_.data());
  }
  const Block* find(const void* data) const noexcept;
  std::uint64_t find_offset(const void* data, std::size_t bytes) const noexcept;
  ByteRange pages_of(std::size_t offset, std::size_t bytes) const noexcept;
  bool detached(const Block& block) const noexcept {
    return loans_.any_detached({block.offset, block.offset + block.bytes});
  }
  Block* find(const void* data) noexcept { return const_cast<Block*>(std::as_const(*this).find(data)); }
  Block* take(std::size_t bytes);
  Block* take_pages(std::size_t bytes);
  Block* take_small(std::size_t bytes);
  void recycle(Block* block) noexcept;
  void set_aside(Block* block) noexcept;
  void retire(Block* block) noexcept;
  void release_held() noexcept;
  void sweep_held() noexcept;
  void trim() noexcept;
  bool give_back(std::size_t offset, std::size_t bytes) noexcept;
  void settle() noexcept;
  void forget_inherited();

  MappedMemory& table_;
  UniqueFd fd_;  // closed in a forked child, so that nothing there can reach the parent's file
  Mapping mapping_;
  const std::uint64_t id_;
  const std::size_t page_;

  mutable std::mutex mutex_;  // guards what follows
  std::size_t cached_limit_;
  RangeAllocator pages_;
  RangeAllocator small_{kSmallGranule};
  ResidentUnits units_;
  std::vector<HeldBlock> held_;
  Loans loans_;
  std::uint32_t calls_with_held_ = 0;
  std::size_t in_use_ = 0;
  std::size_t quarantined_ = 0;
  bool can_punch_ = true;

  // In a forked child: everything is private, and only memory from inherited_end_ up is given out.
  bool private_ = false;
  bool forgot_inherited_ = false;
  std::size_t inherited_end_ = 0;
};

std::uint64_t random_id() {
  std::random_device random;
  const std::uint64_t high = random();
  return (high << 32) | random();
}

MemfdArena::MemfdArena(UniqueFd fd, Mapping mapping, std::size_t cached_limit)
    : table_(MappedMemory::instance()),
      fd_(std::move(fd)),
      mapping_(std::move(mapping)),
      id_(random_id()),
      page_(std::max<std::size_t>(4096, page_bytes())),
      cached_limit_(cached_limit),
      pages_(page_) {
  advise_huge_pages(mapping_.data(), mapping_.bytes());
  exclude_from_core_dump(mapping_.data(), mapping_.bytes());
  pages_.add(0, mapping_.bytes());
  table_.add_arena(*this);
}

void* MemfdArena::allocate(std::size_t bytes) noexcept {
  if (bytes > mapping_.bytes()) return nullptr;  // also keeps the rounding from overflowing
  const std::lock_guard lock(mutex_);
  try {
    if (private_ && !forgot_inherited_) forget_inherited();
    sweep_held();
    Block* block = take(bytes);
    if (block == nullptr && !held_.empty()) {
      release_held();
      block = take(bytes);
    }
    if (block == nullptr) return nullptr;
    block->born = table_.children().forks();
    in_use_ += block->bytes;
    return mapping_.data() + block->offset;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// By the rounded size, so that the size of a block tells which allocator it came from.
Block* MemfdArena::take(std::size_t bytes) {
  return small_.rounded(bytes) < kSmallLimit ? take_small(bytes) : take_pages(bytes);
}

Block* MemfdArena::take_pages(std::size_t bytes) {
  Block* const block = pages_.take(bytes);
  if (block == nullptr) return nullptr;
  try {
    units_.cover(block->offset + block->bytes);
  } catch (const std::bad_alloc&) {
    pages_.give(block);
    throw;
  }
  units_.use(block->offset, block->bytes);
  return block;
}

Block* MemfdArena::take_small(std::size_t bytes) {
  while (Block* const block = small_.take(bytes)) {
    if (!detached(*block)) return block;
    set_aside(block);  // beside a block of a failed call
    block->state = BlockState::kRetired;
  }
  Block* const chunk = take_pages(std::min(kChunkBytes, mapping_.bytes()));
  if (chunk == nullptr) return nullptr;
  try {
    small_.add(chunk->offset, chunk->bytes);
  } catch (const std::bad_alloc&) {
    recycle(chunk);
    throw;
  }
  chunk->state = BlockState::kChunk;
  return small_.take(bytes);
}

const Block* MemfdArena::find(const void* data) const noexcept {
  if (!contains(data)) return nullptr;
  const Block* const block = pages_.find(offset(data));
  return block != nullptr && block->state == BlockState::kChunk ? small_.find(offset(data)) : block;
}

void MemfdArena::deallocate(void* data) noexcept {
  if (data == nullptr) return;
  const std::lock_guard lock(mutex_);
  Block* const block = find(data);
  if (block == nullptr || block->state != BlockState::kUsed || block->offset != offset(data)) {
    Logger().error("arena: freed a pointer that is not the start of a block in use; ignored");
    return;
  }
  in_use_ -= block->bytes;
  if (detached(*block)) set_aside(block);
  ForkedChildren& children = table_.children();
  if (block->quarantined || (private_ && block->offset < inherited_end_)) {
    retire(block);
  } else if (!private_ && block->born != children.forks() && children.may_live(block->born, children.forks())) {
    block->state = BlockState::kHeld;
    try {
      held_.push_back({block->offset, block->born, children.forks()});
    } catch (const std::bad_alloc&) {
      // Unlisted, it stays held for ever: a leak in place of a child's garbage.
    }
  } else {
    recycle(block);
  }
  sweep_held();
}

// Makes a block available again.
void MemfdArena::recycle(Block* block) noexcept {
  if (block->bytes < kSmallLimit) {
    small_.give(block);
    return;
  }
  const std::size_t offset = block->offset;
  const std::size_t bytes = block->bytes;
  pages_.give(block);
  units_.release(offset, bytes);
  if (units_.cached_bytes() > cached_limit_) trim();
}

// Never maps the block nor gives it out again.
void MemfdArena::set_aside(Block* block) noexcept {
  if (block->quarantined || block->state == BlockState::kRetired) return;
  block->quarantined = true;
  quarantined_ += block->bytes;
  if (block->state != BlockState::kHeld) return;
  std::erase_if(held_, [block](const HeldBlock& held) { return held.offset == block->offset; });
  retire(block);
}

// Keeps a block's addresses for ever and gives its memory back: a stopped peer that resumes and writes there finds
// an empty page of nobody's.
void MemfdArena::retire(Block* block) noexcept {
  block->state = BlockState::kRetired;
  if (block->bytes < kSmallLimit) return;
  give_back(block->offset, block->bytes);
  if (detached(*block)) drop_private_pages(mapping_.data() + block->offset, block->bytes);
}

// Recycles the blocks whose last possible reader among the forked children has ended.
void MemfdArena::release_held() noexcept {
  if (private_) {
    held_.clear();  // the parent's business: inherited, and so never given out here
    return;
  }
  table_.children().refresh();
  std::erase_if(held_, [this](const HeldBlock& held) {
    if (table_.children().may_live(held.born, held.freed)) return false;
    recycle(find(mapping_.data() + held.offset));
    return true;
  });
}

// The same, but only now and then: asking costs a system call a child.
void MemfdArena::sweep_held() noexcept {
  if (!held_.empty() && ++calls_with_held_ % kCallsASweep == 0) release_held();
}

// A little below the limit, so that not every later free comes here.
void MemfdArena::trim() noexcept {
  const std::size_t wanted = cached_limit_ - cached_limit_ / 16;
  while (can_punch_ && units_.cached_bytes() > wanted) {
    const auto run = units_.oldest_free(units_.cached_bytes() - wanted);
    if (!run) return;
    can_punch_ = give_back(run->first, run->second);
    if (can_punch_) units_.given_back(run->first, run->second);
  }
}

bool MemfdArena::give_back(std::size_t offset, std::size_t bytes) noexcept {
  if (!private_) return punch_hole(fd_.get(), offset, bytes);
  drop_private_pages(mapping_.data() + offset, bytes);
  return true;
}

bool MemfdArena::contains(const void* data) const noexcept {
  return std::less_equal<>{}(static_cast<const void*>(mapping_.data()), data) &&
         std::less<>{}(data, static_cast<const void*>(mapping_.data() + mapping_.bytes()));
}

std::uint64_t MemfdArena::offset_of(const void* data, std::size_t bytes) const noexcept {
  if (!contains(data)) return kNotMapped;
  const std::lock_guard lock(mutex_);
  return find_offset(data, bytes);
}

std::uint64_t MemfdArena::find_offset(const void* data, std::size_t bytes) const noexcept {
  const Block* const block = find(data);
  if (private_ || block == nullptr || block->state != BlockState::kUsed || block->quarantined) return kNotMapped;
  const std::size_t begin = offset(data);
  if (bytes > block->offset + block->bytes - begin) return kNotMapped;
  return loans_.any_detached(pages_of(begin, bytes)) ? kNotMapped : begin;
}

ByteRange MemfdArena::pages_of(std::size_t offset, std::size_t bytes) const noexcept {
  return {offset / page_ * page_, round_up(offset + bytes, page_)};
}

std::uint64_t MemfdArena::lend(const void* data, std::size_t bytes) noexcept {
  if (!contains(data)) return kNotMapped;
  const std::lock_guard lock(mutex_);
  const std::uint64_t begin = find_offset(data, bytes);
  if (begin == kNotMapped) return kNotMapped;
  try {
    return loans_.begin(pages_of(begin, bytes)) ? begin : kNotMapped;
  } catch (const std::bad_alloc&) {
    return kNotMapped;
  }
}

void MemfdArena::take_back(std::span<const std::span<std::byte>> lent, bool done) noexcept {
  const std::lock_guard lock(mutex_);
  if (private_) return;
  for (const std::span<std::byte>& range : lent) {
    if (range.data() == nullptr) continue;
    loans_.end(pages_of(offset(range.data()), range.size()), !done);
    if (done) continue;
    if (Block* const block = find(range.data())) set_aside(block);
  }
  settle();
  for (const std::span<std::byte>& range : lent) {
    if (range.data() == nullptr || !loans_.any_lost(pages_of(offset(range.data()), range.size()))) continue;
    Logger().warning("arena: " + std::to_string(range.size()) +
                     " bytes of a failed call stay shared until the calls of other groups that lend them, too, have "
                     "ended: a stopped rank that resumes before may change them");
  }
}

// Makes the process's own what is lost and lent by no call any more.
void MemfdArena::settle() noexcept {
  while (const std::optional<ByteRange> lost = loans_.next_lost()) {
    bool own = true;
    while (const std::optional<ByteRange> part = loans_.first_shared(*lost)) {
      std::byte* const data = mapping_.data() + part->begin;
      const std::size_t bytes = part->end - part->begin;
      own = keep_writes_private(data, bytes, fd_.get(), part->begin);
      if (!own) break;
      loans_.detach(*part);
      own = take_own_pages(data, bytes);
    }
    if (own) continue;
    Logger().error("arena: " + std::to_string(lost->end - lost->begin) +
                   " bytes of a failed call stay shared, for there is no memory for pages of their own: a stopped rank "
                   "that resumes may change them. End the process, or do not use them");
  }
}

void MemfdArena::quarantine(const void* data) noexcept {
  const std::lock_guard lock(mutex_);
  if (Block* const block = find(data)) set_aside(block);
}

void MemfdArena::limit_cache(std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  cached_limit_ = std::min(cached_limit_, bytes);
  if (units_.cached_bytes() > cached_limit_) trim();
}

std::size_t MemfdArena::bytes_in_use() const noexcept {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

std::size_t MemfdArena::bytes_cached() const noexcept {
  const std::lock_guard lock(mutex_);
  return units_.cached_bytes() + small_.free_bytes();
}

std::size_t MemfdArena::bytes_quarantined() const noexcept {
  const std::lock_guard lock(mutex_);
  return quarantined_;
}

// What the parent ever gave out becomes a private copy. The rest becomes plain memory: touching a hole of a private
// view would allocate the page in the parent's file first.
void MemfdArena::after_fork_in_child() noexcept {
  if (!private_) {
    private_ = true;
    inherited_end_ = std::min(round_up(pages_.high_water(), ResidentUnits::kUnitBytes), mapping_.bytes());
    // What is this process's alone the child has a copy of already.
    for (ByteRange rest{0, inherited_end_}; const std::optional<ByteRange> part = loans_.first_shared(rest);) {
      replace_by_private_copy(mapping_.data() + part->begin, part->end - part->begin, fd_.get(), part->begin);
      rest.begin = part->end;
    }
    if (!replace_by_private_memory(mapping_.data() + inherited_end_, mapping_.bytes() - inherited_end_)) {
      inherited_end_ = mapping_.bytes();  // nothing to give out
    }
    advise_huge_pages(mapping_.data() + inherited_end_, mapping_.bytes() - inherited_end_);
    exclude_from_core_dump(mapping_.data(), mapping_.bytes());
    fd_.reset();
  }
  mutex_.unlock();
}

// The part of becoming a child that allocates: done at the first allocation, outside the fork handler.
void MemfdArena::forget_inherited() {
  pages_.retire_free_below(inherited_end_);
  small_.retire_free_below(inherited_end_);
  units_.restart_at(inherited_end_);
  held_.clear();
  forgot_inherited_ = true;
}

}  // namespace

std::size_t chosen_cache_bytes(std::size_t memory, int processes) noexcept {
  const auto n = static_cast<std::size_t>(std::max(1, processes));
  return std::max(memory / 8 / n, std::min(kEnoughCached, memory / 4 / n));
}

std::unique_ptr<Arena> Arena::create(std::size_t bytes, std::size_t cached_limit) {
  const std::size_t memory = physical_memory_bytes();
  if (bytes == 0) bytes = std::min(2 * memory, kMostChosenBytes);
  if (cached_limit == 0) cached_limit = chosen_cache_bytes(usable_memory_bytes(), 1);
  const std::size_t most = std::size_t{1} << 46;  // more than any address space; keeps the rounding from overflowing
  bytes = round_up(std::min(bytes, most), ResidentUnits::kUnitBytes);
  // Limits on address space or file sizes are met by a smaller arena; one that could hold nothing large is of no use.
  const std::size_t least = std::min(bytes, std::size_t{64} << 20);
  while (true) {
    try {
      UniqueFd fd = create_memfd("tutti-arena", bytes);
      Mapping mapping = Mapping::shared(fd.get(), bytes);
      return std::make_unique<MemfdArena>(std::move(fd), std::move(mapping), cached_limit);
    } catch (const Error&) {
      if (bytes / 2 < least) throw;
      bytes = round_up(bytes / 2, ResidentUnits::kUnitBytes);
    }
  }
}

}  // namespace tutti
