#include "net/named_host.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/interruption.h"
#include "net/tcp_socket.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList resolve(const char* host, std::uint16_t port, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &list);
  if (error != 0) why = ::gai_strerror(error);
  return {error == 0 ? list : nullptr, &::freeaddrinfo};
}

// Of a name that is called unknown, or anything else, where there is no descriptor to ask for it: an errno, else 0.
int want_of_descriptors() {
  const UniqueFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return one ? 0 : errno;
}

ConnectFailure failure_of(int error) {
  const bool exhausted = out_of_descriptors(error);
  const char* const why =
      exhausted ? "no descriptor is left here for a connection: raise ulimit -n, or destroy groups that are not used"
                : std::strerror(error);
  return {why, false, exhausted};
}

// What becomes of a connection to `address` that has begun: 0, or an errno. -1: the deadline came first.
int end_of_connect(int socket, const SocketAddress& address, Deadline& deadline) {
  if (!wait_ready(socket, POLLOUT, deadline)) return -1;
  int error = 0;
  socklen_t length = sizeof(error);
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
  // The kernel may choose the very port as the socket's own while nobody listens there, and connects it to itself: so
  // it would keep the port from who is to listen.
  if (error == 0 && local_address(socket).text() == address.text()) return ECONNREFUSED;
  return error;
}

// For the first of so many addresses: a silent one must not keep the others from being tried.
Deadline part_of(Deadline& deadline, int addresses) {
  constexpr std::int64_t kLeastMs = 1'000;
  const std::int64_t left_ms = std::max<std::int64_t>(0, deadline.remaining_ns() / 1'000'000);
  return Deadline::after(std::chrono::milliseconds(std::min(left_ms, std::max(kLeastMs, left_ms / addresses))));
}

}  // namespace

UnforkedFd listen_tcp(const std::string& host, std::uint16_t port) {
  std::string why;
  const char* const name = names_loopback(host) ? host.c_str() : nullptr;
  AddressList list = resolve(name, port, AI_PASSIVE, why);
  int error = list == nullptr ? want_of_descriptors() : 0;
  if (list == nullptr && error == 0) list = resolve(name, port, AI_PASSIVE, why);  // one may have come back meanwhile
  // IPv6 first: its wildcard address serves IPv4 too.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
      if (a->ai_family != family) continue;
      if (family == AF_INET6 && host == "localhost") continue;  // clients try 127.0.0.1 as well
      const SocketAddress address = SocketAddress::from(a->ai_addr);
      if (UnforkedFd socket = UnforkedFd::opened_by([&] { return try_listen_at(address); })) return socket;
      error = errno;
      if (error == EADDRINUSE) break;
    }
    if (error == EADDRINUSE) break;
  }
  const std::string place = "port " + std::to_string(port);
  if (error == EADDRINUSE) {
    throw_error(ErrorKind::kExhausted,
                place +
                    " of this machine is taken, so that rank 0 cannot open its store there: choose a free one with "
                    "TUTTI_MASTER_PORT (or MASTER_PORT), equal on all ranks");
  }
  throw_error(ErrorKind::kExhausted,
              "rank 0 cannot listen on " + place + ": " + (error != 0 ? describe_errno(error) : why));
}

UnforkedFd connect_tcp(const std::string& host, std::uint16_t port, Deadline& deadline, ConnectFailure& failure) {
  failure = {};
  const AddressList list = resolve(host.c_str(), port, 0, failure.why);
  if (list == nullptr) {
    if (const int error = want_of_descriptors(); error != 0) failure = failure_of(error);
  }
  bool all_refuse = true;  // one address of several may be the wrong one
  int addresses = 0;       // that are left
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) ++addresses;
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next, --addresses) {
    const SocketAddress address = SocketAddress::from(a->ai_addr);
    Deadline part = part_of(deadline, addresses);
    UnforkedFd socket = UnforkedFd::opened_by([&] { return begin_connect(address, kSystemsSilence); });
    const int error = socket ? end_of_connect(socket.get(), address, part) : errno;
    if (error == 0) {
      failure = {};
      return socket;
    }
    if (error < 0) {
      failure = {"no answer"};
      all_refuse = false;
      if (deadline.expired() || !go_on_waiting()) return {};
      continue;
    }
    all_refuse = all_refuse && error == ECONNREFUSED;
    failure = failure_of(error);
    failure.refused = all_refuse;
  }
  return {};
}

}  // namespace tutti
