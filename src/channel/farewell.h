// What a rank says to the others when it fails or leaves: the words behind the last frame of a link (transport/link.h).
//
// Thread rule: free functions; they take no memory.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "base/outcome.h"
#include "transport/link.h"

namespace tutti {

inline constexpr std::size_t kFarewellReasonBytes = 64;

struct Farewell {
  Outcome outcome;  // what has failed, and the rank to blame
  Outcome cause;    // kPeerFailed: what that rank has said of its failure; kOk: that is not known
  std::array<char, kFarewellReasonBytes>
      reason{};  // why the group was aborted, as far as there is room; zeros: it was not

  // Nothing, if nothing has been said, or nothing that makes sense.
  static std::optional<Farewell> of(const LastWords& words) noexcept;
};

LastWords last_words(Outcome outcome, std::string_view reason, Outcome cause = {}) noexcept;

}  // namespace tutti
