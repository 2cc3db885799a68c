#include "net/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>

#include "base/parse.h"
#include "base/unique_fd.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::uint16_t kAnyPort = 9;  // of a datagram socket that never sends; the kernel only looks up the route

const sockaddr_in& v4(const sockaddr_storage& s) noexcept { return reinterpret_cast<const sockaddr_in&>(s); }
const sockaddr_in6& v6(const sockaddr_storage& s) noexcept { return reinterpret_cast<const sockaddr_in6&>(s); }

// Which local address the kernel would send from; empty if there is no route.
SocketAddress source_towards(SocketAddress target) noexcept {
  target.set_port(kAnyPort);
  const UniqueFd fd(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), target.raw(), target.length()) != 0) return {};
  SocketAddress source = local_address(fd.get());
  source.set_port(0);
  return source;
}

std::vector<std::string> split_commas(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  while (start <= text.size()) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    if (end > start) parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

}  // namespace

SocketAddress SocketAddress::from(const sockaddr* address) noexcept {
  SocketAddress result;
  if (address == nullptr) return result;
  if (address->sa_family == AF_INET) result.length_ = sizeof(sockaddr_in);
  if (address->sa_family == AF_INET6) result.length_ = sizeof(sockaddr_in6);
  std::memcpy(&result.storage_, address, result.length_);
  return result;
}

std::optional<SocketAddress> SocketAddress::parse(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::uint16_t port = 0;
  if (!parse_number(text.substr(colon + 1), port)) return std::nullopt;
  std::string host(text.substr(0, colon));
  SocketAddress result;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    auto& address = reinterpret_cast<sockaddr_in6&>(result.storage_);
    host = host.substr(1, host.size() - 2);
    if (::inet_pton(AF_INET6, host.c_str(), &address.sin6_addr) != 1) return std::nullopt;
    address.sin6_family = AF_INET6;
    result.length_ = sizeof(sockaddr_in6);
  } else {
    auto& address = reinterpret_cast<sockaddr_in&>(result.storage_);
    if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return std::nullopt;
    address.sin_family = AF_INET;
    result.length_ = sizeof(sockaddr_in);
  }
  result.set_port(port);
  return result;
}

std::uint16_t SocketAddress::port() const noexcept {
  if (family() == AF_INET) return ntohs(v4(storage_).sin_port);
  if (family() == AF_INET6) return ntohs(v6(storage_).sin6_port);
  return 0;
}

void SocketAddress::set_port(std::uint16_t port) noexcept {
  if (family() == AF_INET) reinterpret_cast<sockaddr_in&>(storage_).sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6&>(storage_).sin6_port = htons(port);
}

bool SocketAddress::loopback() const noexcept {
  if (family() == AF_INET) return (ntohl(v4(storage_).sin_addr.s_addr) >> 24) == 127;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6(storage_).sin6_addr);
}

bool SocketAddress::link_local() const noexcept {
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(storage_).sin6_addr);
}

std::string SocketAddress::host() const {
  char host[INET6_ADDRSTRLEN] = "";
  if (family() == AF_INET) ::inet_ntop(AF_INET, &v4(storage_).sin_addr, host, sizeof(host));
  if (family() == AF_INET6) ::inet_ntop(AF_INET6, &v6(storage_).sin6_addr, host, sizeof(host));
  return host;
}

std::string SocketAddress::text() const {
  if (family() == AF_INET) return host() + ":" + std::to_string(port());
  if (family() == AF_INET6) return "[" + host() + "]:" + std::to_string(port());
  return "";
}

namespace {

SocketAddress address_by(decltype(::getsockname)& ask, int socket) noexcept {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (ask(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return SocketAddress::from(reinterpret_cast<const sockaddr*>(&address));
}

}  // namespace

SocketAddress local_address(int socket) noexcept { return address_by(::getsockname, socket); }
SocketAddress remote_address(int socket) noexcept { return address_by(::getpeername, socket); }

bool names_loopback(const std::string& host) {
  if (host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0) return true;
  return host == "ip6-localhost" || host == "localhost.localdomain";
}

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::vector<InterfaceAddress> result;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) == 0) continue;
    SocketAddress address = SocketAddress::from(entry->ifa_addr);
    if (!address.empty() && !address.link_local()) result.push_back({entry->ifa_name, address});
  }
  return result;
}

std::optional<SocketAddress> route_to(const std::string& host) {
  if (host.empty()) return std::nullopt;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* first = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &first) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(first, ::freeaddrinfo);
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    const SocketAddress source = source_towards(SocketAddress::from(entry->ai_addr));
    if (source.empty() || source.link_local()) continue;
    if (source.loopback() && !names_loopback(host)) continue;
    return source;
  }
  return std::nullopt;
}

SocketAddress choose_address(const std::vector<InterfaceAddress>& candidates, const std::string& interface,
                             const std::optional<SocketAddress>& route) {
  const auto first_where = [&](auto&& wanted) -> SocketAddress {
    for (const int family : {AF_INET, AF_INET6}) {
      for (const InterfaceAddress& c : candidates) {
        if (c.address.family() == family && wanted(c)) return c.address;
      }
    }
    return {};
  };
  if (!interface.empty()) {
    for (const std::string& name : split_commas(interface)) {
      const SocketAddress found = first_where([&](const InterfaceAddress& c) { return c.name == name; });
      if (!found.empty()) return found;
    }
    std::string known;
    for (const InterfaceAddress& c : candidates) {
      if (known.find(c.name) == std::string::npos) known += (known.empty() ? "" : ", ") + c.name;
    }
    throw_error(ErrorKind::kInvalidArgument,
                "TUTTI_SOCKET_IFNAME=" + interface + ": no such interface is up with an address; there are: " + known);
  }
  if (route) return *route;
  const SocketAddress outside = first_where([](const InterfaceAddress& c) { return !c.address.loopback(); });
  if (!outside.empty()) return outside;
  const SocketAddress inside = first_where([](const InterfaceAddress&) { return true; });
  return inside.empty() ? *SocketAddress::parse("127.0.0.1:0") : inside;
}

}  // namespace tutti
