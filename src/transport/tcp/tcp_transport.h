// Transport between hosts: one TCP connection a pair of processes, made when first needed by whoever needs it first,
// and shared by all groups that both are in (stream.h).
//
// A thread of the process (endpoint.h) accepts, dials and authenticates (handshake.h), and watches that peers' hosts
// answer (socket.h). Once a connection stands its socket is used by the links' callers; the thread only finishes what
// they have begun and the socket had no room for.
//
// Both ranks may dial at once. Then the lower rank's connection is kept, and only the lower rank decides: it answers
// the other's dial with kYield while its own has reached the peer, and otherwise gives up its own, which cannot have
// been accepted yet, and accepts. The higher rank accepts whatever the lower one dials. So the two ends never keep
// different connections, and payload flows only after that.
//
// A stranger's bytes on the port change nothing: a connection is a handful of bytes and a deadline until it has proved
// the secret, and only so many may be in that state; more wait in the kernel's backlog, where the oldest make room
// after a while.
//
// Ownership: owns its links, which live as long as it does. Thread rule: any thread may call any member; the links
// follow link.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/network.h"

namespace tutti::tcp {

class Endpoint;
struct Member;

struct TcpOptions : NetworkOptions {
  std::chrono::milliseconds handshake_timeout{5'000};  // for a connection to prove itself
  std::chrono::milliseconds connect_timeout{10'000};   // for a peer's host to answer at all
  std::chrono::milliseconds longest_linger{60'000};    // for a peer to take what was sent to it before the end
  std::chrono::milliseconds longest_end{2'000};        // the same, once no group is left here: the process may end
  int most_strangers = 64;                             // connections that have not proved themselves
  std::uint64_t window = std::uint64_t{4} << 20;       // bytes a link may have under way, unread; equal on all ranks

  // How long a host may say nothing before it is out of reach.
  std::chrono::milliseconds silence() const noexcept { return 6 * heartbeat; }
};

class TcpTransport final : public NetworkTransport {
 public:
  // Listens. Throws Error(kInvalidArgument) for an unknown interface, Error(kExhausted) when the system refuses.
  static std::unique_ptr<TcpTransport> create(const TcpOptions& options);
  ~TcpTransport() override;

  const std::string& address() const noexcept override { return address_; }
  // Connections are accepted before.
  void set_peer_addresses(const std::vector<std::string>& addresses) override;

  std::string_view name() const noexcept override { return "tcp"; }
  Link* link(int peer) noexcept override;
  // Also reports the links of this rank's own making when they stand, and those that failed: a port that slept without
  // their descriptor looks again.
  int accept_new(std::span<int> peers) noexcept override;
  bool connects() const noexcept override { return true; }
  void on_news(std::function<void()> wake) override;
  std::string why_lost(int peer) const override;
  std::string want_here(int peer) const override;
  void close(Status why, const LastWords& words) noexcept override;
  void finish_close() noexcept override;

 private:
  explicit TcpTransport(const TcpOptions& options);

  std::shared_ptr<Endpoint> endpoint_;
  std::unique_ptr<Member> member_;
  std::string address_;
};

// With what is left open chosen.
std::unique_ptr<NetworkTransport> create_network(const NetworkOptions& options);

}  // namespace tutti::tcp
