// A counter a unit and an intrusive list of the wholly free units, oldest first.
#include "device/cpu/resident_units.h"

#include <algorithm>

namespace tutti {

void ResidentUnits::cover(std::size_t end) {
  const std::size_t wanted = (end + kUnitBytes - 1) / kUnitBytes;
  if (wanted > units_.size()) units_.resize(wanted);
}

template <typename Function>
void ResidentUnits::for_each_part(std::size_t offset, std::size_t bytes, Function&& function) noexcept {
  if (offset < floor_) return;
  const std::size_t end = offset + bytes;
  while (offset < end) {
    const std::size_t index = offset / kUnitBytes;
    const std::size_t part_end = std::min(end, (index + 1) * kUnitBytes);
    function(static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(part_end - offset));
    offset = part_end;
  }
}

void ResidentUnits::use(std::size_t offset, std::size_t bytes) noexcept {
  for_each_part(offset, bytes, [this](std::uint32_t index, std::uint32_t part) {
    Unit& unit = units_[index];
    if (!unit.resident) {
      unit.resident = true;
      cached_bytes_ += kUnitBytes;
    } else if (unit.used == 0) {
      unlink(index);
    }
    unit.used += part;
    cached_bytes_ -= part;
  });
}

void ResidentUnits::release(std::size_t offset, std::size_t bytes) noexcept {
  for_each_part(offset, bytes, [this](std::uint32_t index, std::uint32_t part) {
    Unit& unit = units_[index];
    unit.used -= part;
    cached_bytes_ += part;
    if (unit.used == 0) link(index);
  });
}

std::optional<std::pair<std::size_t, std::size_t>> ResidentUnits::oldest_free(std::size_t most_bytes) const noexcept {
  if (oldest_ == kNone) return std::nullopt;
  std::uint32_t last = oldest_;
  while (units_[last].newer == last + 1 && (last + 2 - oldest_) * kUnitBytes <= most_bytes) ++last;
  return std::pair{oldest_ * kUnitBytes, (last + 1 - oldest_) * kUnitBytes};
}

void ResidentUnits::given_back(std::size_t offset, std::size_t bytes) noexcept {
  for_each_part(offset, bytes, [this](std::uint32_t index, std::uint32_t) {
    unlink(index);
    units_[index].resident = false;
    cached_bytes_ -= kUnitBytes;
  });
}

void ResidentUnits::restart_at(std::size_t floor) noexcept {
  std::fill(units_.begin(), units_.end(), Unit{});
  cached_bytes_ = 0;
  oldest_ = kNone;
  newest_ = kNone;
  floor_ = floor;
}

void ResidentUnits::link(std::uint32_t index) noexcept {
  Unit& unit = units_[index];
  unit.older = newest_;
  unit.newer = kNone;
  (newest_ == kNone ? oldest_ : units_[newest_].newer) = index;
  newest_ = index;
}

void ResidentUnits::unlink(std::uint32_t index) noexcept {
  Unit& unit = units_[index];
  (unit.older == kNone ? oldest_ : units_[unit.older].newer) = unit.newer;
  (unit.newer == kNone ? newest_ : units_[unit.newer].older) = unit.older;
  unit.older = kNone;
  unit.newer = kNone;
}

}  // namespace tutti
