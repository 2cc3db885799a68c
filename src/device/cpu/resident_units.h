// Which parts of the arena may hold memory, in units of one huge page: how much of it is cached, and which units
// have been free for longest and can be given back.
//
// A unit is resident from its first use until it is given back. Units partly in use stay: their free rest counts as
// cached but cannot be given back before the last block in them is freed.
//
// Thread rule: the owner's lock guards every member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/mapping.h"

namespace tutti {

class ResidentUnits {
 public:
  static constexpr std::size_t kUnitBytes = kHugePageBytes;

  // Makes room to account for offsets below `end`. Throws std::bad_alloc; the other members never do.
  void cover(std::size_t end);

  void use(std::size_t offset, std::size_t bytes) noexcept;
  void release(std::size_t offset, std::size_t bytes) noexcept;

  // Free bytes of resident units.
  std::size_t cached_bytes() const noexcept { return cached_bytes_; }

  // The run of adjacent units, (offset, bytes), that begins with the one free for longest, as long as the units were
  // freed together and at most `most_bytes` (at least one unit); nothing if no unit is wholly free.
  std::optional<std::pair<std::size_t, std::size_t>> oldest_free(std::size_t most_bytes) const noexcept;
  // The units of such a run have been given back.
  void given_back(std::size_t offset, std::size_t bytes) noexcept;

  // Nothing is resident any more, and nothing below `floor` (a multiple of the unit) will be accounted for.
  void restart_at(std::size_t floor) noexcept;

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Unit {
    std::uint32_t used = 0;       // bytes of blocks
    std::uint32_t older = kNone;  // neighbours in the list of wholly free resident units
    std::uint32_t newer = kNone;
    bool resident = false;
  };

  template <typename Function>
  void for_each_part(std::size_t offset, std::size_t bytes, Function&& function) noexcept;
  void link(std::uint32_t index) noexcept;
  void unlink(std::uint32_t index) noexcept;

  std::vector<Unit> units_;
  std::size_t cached_bytes_ = 0;
  std::uint32_t oldest_ = kNone;
  std::uint32_t newest_ = kNone;
  std::size_t floor_ = 0;
};

}  // namespace tutti
