#include "nccl/unique_id.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace tutti::nccl {
namespace {

constexpr std::size_t kAddress = 8;  // behind NCCL's number
constexpr std::size_t kFree = 64;    // what we use; NCCL's part ends well before it
constexpr std::string_view kMark("Tutti\x00\x01\n", 8);

struct Place {
  std::array<char, 8> mark;
  std::uint16_t port;
  Nonce secret;
};
static_assert(kFree + sizeof(Place) <= sizeof(ncclUniqueId));

std::string address_in(const ncclUniqueId& id) {
  sockaddr_in6 six{};  // the larger of the two
  static_assert(kAddress + sizeof(six) <= kFree);
  std::memcpy(&six, id.internal + kAddress, sizeof(six));
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (six.sin6_family == AF_INET6) {
    // A link's own address means nothing without the interface.
    if (six.sin6_port == 0 || IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr)) return {};
    ::inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size());
  } else if (six.sin6_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, id.internal + kAddress, sizeof(four));
    if (four.sin_port == 0) return {};
    ::inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size());
  }
  return text.data();
}

}  // namespace

std::string free_address(const ncclUniqueId& id) {
  const bool zero = std::all_of(id.internal + kFree, id.internal + sizeof(id.internal), [](char c) { return c == 0; });
  return zero ? address_in(id) : std::string();
}

void write_place(ncclUniqueId& id, const MeetingPlace& place) {
  Place written{};
  std::copy(kMark.begin(), kMark.end(), written.mark.begin());
  written.port = place.port;
  written.secret = place.secret;
  std::memcpy(id.internal + kFree, &written, sizeof(written));
}

std::optional<MeetingPlace> read_place(const ncclUniqueId& id) {
  Place written{};
  std::memcpy(&written, id.internal + kFree, sizeof(written));
  if (!std::equal(kMark.begin(), kMark.end(), written.mark.begin())) return std::nullopt;
  MeetingPlace place{address_in(id), written.port, written.secret};
  if (place.address.empty() || place.port == 0) return std::nullopt;
  return place;
}

}  // namespace tutti::nccl
