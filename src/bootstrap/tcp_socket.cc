#include "bootstrap/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/interruption.h"
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

UniqueFd new_socket(int family) noexcept {
  UniqueFd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return socket;
}

// Why there is none, by errno.
ConnectFailure no_socket(int error) {
  const bool exhausted = error == EMFILE || error == ENFILE;
  const char* const why =
      exhausted ? "no descriptor is left here for a connection: raise ulimit -n, or destroy groups that are not used"
                : std::strerror(error);
  return {why, false, exhausted};
}

void set_flag(int socket, int level, int option, int value) noexcept {
  ::setsockopt(socket, level, option, &value, sizeof(value));
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0; }

UniqueFd listen_at(const addrinfo& address) noexcept {
  UniqueFd socket = new_socket(address.ai_family);
  if (!socket) return {};
  set_flag(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // a restarted job finds its port in TIME_WAIT
  if (address.ai_family == AF_INET6) set_flag(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    return {};
  }
  return socket;
}

}  // namespace

UniqueFd listen_tcp(const std::string& host, std::uint16_t port) {
  std::string why;
  const AddressList list = resolve(is_loopback(host) ? host.c_str() : nullptr, port, AI_PASSIVE, why);
  int error = 0;
  // IPv6 first: its wildcard address serves IPv4 too.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
      if (a->ai_family != family) continue;
      if (is_loopback(host) && family == AF_INET6 && host == "localhost") continue;  // clients try 127.0.0.1 as well
      if (UniqueFd socket = listen_at(*a)) return socket;
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
              "rank 0 cannot listen on " + place + ": " + (error != 0 ? std::strerror(error) : why.c_str()));
}

std::uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw_system_error(ErrorKind::kInternal, "getsockname", errno);
  }
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool wait_ready(int socket, short events, Deadline& deadline) noexcept {
  pollfd fd{socket, events, 0};
  for (;;) {
    const std::int64_t left_ns = deadline.remaining_ns();
    if (left_ns <= 0) return false;
    const std::int64_t slice_ms = must_ask() ? kAskEveryMs : 60'000;
    if (::poll(&fd, 1, static_cast<int>(std::min(left_ns / 1'000'000 + 1, slice_ms))) > 0) return true;
    if (!go_on_waiting()) return false;
  }
}

UniqueFd connect_tcp(const std::string& host, std::uint16_t port, Deadline& deadline, ConnectFailure& failure) {
  failure = {};
  const AddressList list = resolve(host.c_str(), port, 0, failure.why);
  // It calls a name unknown where there is no descriptor to ask for it.
  if (list == nullptr && !new_socket(AF_INET)) failure = no_socket(errno);
  bool all_refuse = true;  // one address of several may be the wrong one
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    UniqueFd socket = new_socket(a->ai_family);
    if (!socket) {
      failure = no_socket(errno);
      all_refuse = false;
      continue;
    }
    int error = ::connect(socket.get(), a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      if (!wait_ready(socket.get(), POLLOUT, deadline)) {
        failure = {"no answer"};
        return {};
      }
      socklen_t length = sizeof(error);
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) {
      set_flag(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
      set_flag(socket.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
      failure = {};
      return socket;
    }
    all_refuse = all_refuse && error == ECONNREFUSED;
    failure = {std::strerror(error), all_refuse};
  }
  return {};
}

UniqueFd accept_tcp(int listener, bool& exhausted) noexcept {
  UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  exhausted = !socket && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
  if (socket) {
    set_flag(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    set_flag(socket.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  }
  return socket;
}

}  // namespace tutti
