#include "channel/farewell.h"

#include <algorithm>
#include <cstdint>

#include "base/utf8.h"

namespace tutti {
namespace {

// Status, the cause's status and the low half of its rank, the rank, the reason; numbers in little-endian order. A rank
// of the cause that does not fit is none.
constexpr std::size_t kCauseAt = 1, kCauseRankAt = 2, kRankAt = 4, kReasonAt = 8;
constexpr int kNoRank = 0xffff;
static_assert(kReasonAt + kFarewellReasonBytes == sizeof(LastWords));

}  // namespace

LastWords last_words(Outcome outcome, std::string_view reason, Outcome cause) noexcept {
  LastWords words{};
  words[0] = static_cast<std::byte>(outcome.status);
  for (std::size_t i = 0; i < 4; ++i) {
    words[kRankAt + i] = static_cast<std::byte>(static_cast<std::uint32_t>(outcome.peer) >> (8 * i));
  }
  if (outcome.status == Status::kPeerFailed) {
    words[kCauseAt] = static_cast<std::byte>(cause.status);
    const int rank = cause.peer >= 0 && cause.peer < kNoRank ? cause.peer : kNoRank;
    words[kCauseRankAt] = static_cast<std::byte>(rank & 0xff);
    words[kCauseRankAt + 1] = static_cast<std::byte>(rank >> 8);
  }
  const std::string_view fits = first_of(reason, kFarewellReasonBytes);
  std::ranges::transform(fits, words.begin() + kReasonAt, [](char c) { return static_cast<std::byte>(c); });
  return words;
}

std::optional<Farewell> Farewell::of(const LastWords& words) noexcept {
  const auto status = std::to_integer<std::uint8_t>(words[0]);
  if (status == 0 || status > static_cast<std::uint8_t>(kLastStatus)) return std::nullopt;
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < 4; ++i) rank |= std::to_integer<std::uint32_t>(words[kRankAt + i]) << (8 * i);
  Farewell farewell{{static_cast<Status>(status), static_cast<int>(rank)}, {}, {}};
  const auto cause = std::to_integer<std::uint8_t>(words[kCauseAt]);
  if (cause <= static_cast<std::uint8_t>(kLastStatus)) {
    const int of = std::to_integer<int>(words[kCauseRankAt]) | std::to_integer<int>(words[kCauseRankAt + 1]) << 8;
    farewell.cause = {static_cast<Status>(cause), of == kNoRank ? -1 : of};
  }
  std::ranges::transform(words.begin() + kReasonAt, words.end(), farewell.reason.begin(),
                         [](std::byte b) { return static_cast<char>(b); });
  return farewell;
}

}  // namespace tutti
