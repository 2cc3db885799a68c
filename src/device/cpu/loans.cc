#include "device/cpu/loans.h"

#include <algorithm>

namespace tutti {

bool Loans::begin(const ByteRange& range) {
  if (any_detached(range) || any_lost(range)) return false;
  detached_.reserve(detached_.size() + loans_.size() + 1);  // so that detach() finds room
  loans_.push_back({range, false});
  return true;
}

void Loans::end(const ByteRange& range, bool lost) noexcept {
  const auto found =
      std::find_if(loans_.begin(), loans_.end(), [&](const Loan& loan) { return !loan.lost && loan.range == range; });
  if (found == loans_.end()) return;
  if (lost) {
    found->lost = true;
  } else {
    loans_.erase(found);
  }
}

std::optional<ByteRange> Loans::next_lost() noexcept {
  for (auto it = loans_.begin(); it != loans_.end(); ++it) {
    const bool lent = std::any_of(loans_.begin(), loans_.end(),
                                  [&](const Loan& other) { return !other.lost && other.range.overlaps(it->range); });
    if (!it->lost || lent) continue;
    const ByteRange range = it->range;
    loans_.erase(it);
    return range;
  }
  return std::nullopt;
}

void Loans::detach(const ByteRange& range) noexcept {
  ByteRange merged = range;
  const auto first = std::find_if(detached_.begin(), detached_.end(),
                                  [&](const ByteRange& other) { return other.end >= merged.begin; });
  auto last = first;
  for (; last != detached_.end() && last->begin <= merged.end; ++last) {
    merged = {std::min(merged.begin, last->begin), std::max(merged.end, last->end)};
  }
  if (first != last) {
    *first = merged;
    detached_.erase(first + 1, last);
  } else {
    detached_.insert(first, merged);  // within the capacity that begin() took
  }
}

bool Loans::any_detached(const ByteRange& range) const noexcept {
  return std::any_of(detached_.begin(), detached_.end(),
                     [&](const ByteRange& detached) { return detached.overlaps(range); });
}

bool Loans::any_lost(const ByteRange& range) const noexcept {
  return std::any_of(loans_.begin(), loans_.end(),
                     [&](const Loan& loan) { return loan.lost && loan.range.overlaps(range); });
}

std::optional<ByteRange> Loans::first_shared(const ByteRange& range) const noexcept {
  if (range.begin >= range.end) return std::nullopt;
  std::size_t begin = range.begin;
  for (const ByteRange& detached : detached_) {
    if (detached.end <= begin) continue;
    if (detached.begin > begin) return ByteRange{begin, std::min(detached.begin, range.end)};
    begin = detached.end;
    if (begin >= range.end) return std::nullopt;
  }
  return ByteRange{begin, range.end};
}

}  // namespace tutti
