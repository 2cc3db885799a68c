// Where the ranks of a group that has no store meet: an address and a secret, small enough for whatever carries an id.
//
// One process offers the place: it serves a store there, from a thread. Whoever knows the secret meets the others in
// it.
//
// Ownership: an offer belongs to the process that made it, until it is taken: then to the taker. One that is left ends
// by itself. There are at most kMostOffers; a further one ends the oldest. In a forked child they are still the
// parent's. Thread rule: every function may be called from any thread.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/secret.h"
#include "bootstrap/tcp_store.h"
#include "bootstrap/tcp_store_server.h"

namespace tutti {

struct MeetingPlace {
  std::string address;  // a name or a number; at most kMostAddressBytes
  std::uint16_t port = 0;
  Nonce secret{};

  bool operator==(const MeetingPlace&) const = default;
};
inline constexpr std::size_t kMostAddressBytes = 80;
inline constexpr std::size_t kMostOffers = 64;

// As bytes: a mark, the secret, the port, the address, zeros. Nothing for what is not exactly an encoder's. Throws
// Error(kInvalidArgument) for an address that is empty or too long.
inline constexpr std::size_t kMeetingPlaceBytes = 128;
using MeetingPlaceBytes = std::array<char, kMeetingPlaceBytes>;
MeetingPlaceBytes encode(const MeetingPlace& place);
std::optional<MeetingPlace> decode_meeting_place(const MeetingPlaceBytes& bytes);

// Serves a new place at `address`, of this machine and reachable by all ranks. Throws Error(kExhausted).
MeetingPlace offer_meeting_place(const std::string& address);

// The server of a place, if this process has offered it and nobody has taken it.
std::shared_ptr<TcpStoreServer> take_offer(const MeetingPlace& place);

// For a group that has not formed: its place, if this process offers it, ends once its ranks have come and gone, as
// TcpStoreServer::end_when_left() says it.
void leave_offer(const MeetingPlace& place, int ranks, TcpStoreServer::CameKey came,
                 std::chrono::milliseconds within) noexcept;

// The store of a place, which is up: a refused connection is final. Throws Error as TcpStore does; `maker`: who has
// offered it, for messages.
std::unique_ptr<TcpStore> reach(const MeetingPlace& place, std::chrono::milliseconds timeout,
                                const std::string& maker = "the process that made the group's id");

}  // namespace tutti
