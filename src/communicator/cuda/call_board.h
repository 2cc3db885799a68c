// What each rank says of its calls, by fingerprint, in memory that all ranks of the group can read: so that an error
// about different calls names both. A rank writes its own table when it issues a call that is not in it yet; steady
// programs write nothing. A table outlives its rank's process as long as somebody maps it, so reading never waits.
//
// Bounded: a table has kEntries places, a fingerprint one of them; a later call may take it from an earlier one.
//
// Thread rule: one thread posts at a time; find() from any thread of any process: an entry that is being written fails
// the comparison with its own fingerprint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "channel/call_record.h"

namespace tutti::cuda {

class CallBoard {
 public:
  static constexpr std::size_t kEntries = 1024;
  static constexpr std::size_t kBytes = kEntries * sizeof(CallRecord);

  // `tables[r]`: kBytes of rank r, aligned, zeroed at first; null: that rank's calls cannot be looked up. This rank's
  // own may be null, too: then it keeps them where nobody else sees them.
  CallBoard(int rank, std::vector<std::byte*> tables);

  // `record.hash` is its fingerprint.
  void post(const CallRecord& record) noexcept;

  // The call of `rank` with this fingerprint, if it is still there.
  std::optional<CallRecord> find(int rank, std::uint32_t fingerprint) const noexcept;

 private:
  static std::byte* entry(std::byte* table, std::uint32_t fingerprint) noexcept {
    return table + fingerprint % kEntries * sizeof(CallRecord);
  }

  const int rank_;
  std::vector<std::uint64_t> own_;  // where this rank's table is not shared
  std::vector<std::byte*> tables_;
};

}  // namespace tutti::cuda
