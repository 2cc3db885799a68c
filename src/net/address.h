// Internet addresses: their text form, and which of this host's addresses its peers should dial.
//
// Ownership: plain values. Thread rule: free functions without state.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  // Of any other family: empty.
  static SocketAddress from(const sockaddr* address) noexcept;
  // "192.0.2.7:4711" or "[2001:db8::7]:4711"; nullopt for anything else, names included.
  static std::optional<SocketAddress> parse(std::string_view text);

  bool empty() const noexcept { return length_ == 0; }
  const sockaddr* raw() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const noexcept { return length_; }
  int family() const noexcept { return empty() ? AF_UNSPEC : storage_.ss_family; }
  std::uint16_t port() const noexcept;
  void set_port(std::uint16_t port) noexcept;
  bool loopback() const noexcept;
  bool link_local() const noexcept;  // means something on one link only, so it is never published
  std::string host() const;          // without the port
  std::string text() const;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

// Of the socket's own end, and of the other one; empty if it has none.
SocketAddress local_address(int socket) noexcept;
SocketAddress remote_address(int socket) noexcept;

// Whether it is a name or an address that means the own machine on every machine.
bool names_loopback(const std::string& host);

struct InterfaceAddress {
  std::string name;
  SocketAddress address;  // port 0
};

// The usable addresses of all interfaces that are up, in the kernel's order.
std::vector<InterfaceAddress> interface_addresses();

// The local address from which `host` (a name or an address) is reached; nullopt if it cannot be found out. A name that
// leads to loopback says nothing to other hosts (Debian maps a machine's own name to 127.0.1.1), so it is ignored
// unless the name itself says loopback.
std::optional<SocketAddress> route_to(const std::string& host);

// The address to listen at, in this order: that of an interface named in `interface` (comma separated, the first that
// has one, IPv4 before IPv6), `route`, the first that is not loopback, loopback. Throws Error(kInvalidArgument) naming
// the interfaces that exist when `interface` names none of them.
SocketAddress choose_address(const std::vector<InterfaceAddress>& candidates, const std::string& interface,
                             const std::optional<SocketAddress>& route);

}  // namespace tutti
