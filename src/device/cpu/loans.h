// Which ranges of an arena peers may touch now, and which its owner has taken back from peers that may never be done.
//
// A call under way lends its tensors. Of a call that failed they are lost: peers may go on with them at any time, so
// their pages must become the owner's alone. That waits while a call of another group lends the same pages, whose peers
// are to see what the owner writes there. Ranges are of whole pages.
//
// Ownership: bookkeeping only; it touches no memory of the arena. Thread rule: the owner's lock guards every member.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace tutti {

struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  bool overlaps(const ByteRange& o) const noexcept { return begin < o.end && o.begin < end; }
  bool operator==(const ByteRange&) const noexcept = default;
};

class Loans {
 public:
  // Begins a loan; false if some of the range is lost or the owner's alone. Throws std::bad_alloc, changing nothing;
  // the other members never throw.
  bool begin(const ByteRange& range);
  // Ends a loan of this range, if there is one. `lost`: peers may go on with it.
  void end(const ByteRange& range, bool lost) noexcept;

  // A lost range that no loan under way touches, which is no longer counted as lost; its pages are to become the
  // owner's alone next. Nothing if there is none.
  std::optional<ByteRange> next_lost() noexcept;
  // The range is the owner's alone from now on.
  void detach(const ByteRange& range) noexcept;

  bool any_detached(const ByteRange& range) const noexcept;

  bool any_lost(const ByteRange& range) const noexcept;

  // The first part of a range that is not the owner's alone; nothing if all of it is. Async-signal safe.
  std::optional<ByteRange> first_shared(const ByteRange& range) const noexcept;

 private:
  struct Loan {
    ByteRange range;
    bool lost = false;
  };

  std::vector<Loan> loans_;
  std::vector<ByteRange> detached_;  // ascending, disjoint; always with room for all loans
};

}  // namespace tutti
