#include "channel/bell.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

namespace tutti {
namespace {

// What Linux gives to a socket that is bound to no name: a zero and five characters.
constexpr std::size_t kNameBytes = 5;
constexpr socklen_t kAddressBytes = offsetof(sockaddr_un, sun_path) + 1 + kNameBytes;

// More than the queue of such a socket holds.
constexpr int kMostRings = 1024;

}  // namespace

std::unique_ptr<Bell> Bell::create() noexcept {
#if defined(__linux__)
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return nullptr;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(sa_family_t)) != 0) return nullptr;
  socklen_t length = sizeof address;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return nullptr;
  if (length != kAddressBytes || address.sun_path[0] != '\0') {
    errno = ENOTSUP;
    return nullptr;
  }
  std::uint64_t name = 0;
  std::memcpy(&name, address.sun_path + 1, kNameBytes);
  std::unique_ptr<Bell> bell(new (std::nothrow) Bell(std::move(fd), name));
  if (bell == nullptr) errno = ENOMEM;
  return bell;
#else
  errno = ENOTSUP;
  return nullptr;
#endif
}

void Bell::ring(std::uint64_t name) const noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, &name, kNameBytes);
  const std::byte one{1};
  const auto send = [&](int fd) {
    return ::sendto(fd, &one, sizeof one, MSG_DONTWAIT | MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address),
                    kAddressBytes) >= 0;
  };
  if (send(fd_.get()) || (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS)) return;
  // That bell rings already; or bells that nobody hears hold all that this socket may have under way: then another one.
  const UniqueFd other(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (other) send(other.get());
}

void Bell::silence() noexcept {
  std::byte sink;
  for (int i = 0; i < kMostRings && ::recv(fd_.get(), &sink, sizeof sink, MSG_DONTWAIT) >= 0; ++i) {
  }
}

}  // namespace tutti
