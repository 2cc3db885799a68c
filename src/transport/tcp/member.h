// One transport's part in the endpoint of its process: the group's ranks, the links to them, and what is asked and
// told.
//
// Ownership: a TcpTransport's; the endpoint knows of it from join() to leave(). Owns its links.
// Thread rule: the functions: any thread. Fields are the endpoint's, under its lock, but for what says otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/address.h"
#include "net/tcp_socket.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/tcp_link.h"
#include "transport/tcp/tcp_transport.h"

namespace tutti::tcp {

// Where a rank can be dialed: its endpoint, and the number of the group there. Empty: nowhere.
struct PeerAddress {
  SocketAddress endpoint;
  std::string there;  // the endpoint as text
  std::uint64_t group = 0;

  // "192.0.2.7:4711/12"; nullopt for anything else.
  static std::optional<PeerAddress> parse(const std::string& text);
  bool empty() const noexcept { return endpoint.empty(); }
};

// What remains of a group at an endpoint: who asks for it is told how it ended.
struct Departed {
  std::uint64_t number = 0;  // of the group, at this endpoint
  std::shared_ptr<const Identity> self;
  LastWords words{};
};

struct Member {
  struct Peer {
    enum class State : std::uint8_t {
      kIdle,     // nobody has asked for it
      kDialing,  // `dial` is under way
      kResting,  // dials again at `rest_until_ms`, unless the peer's own dial arrives before
      kUp,       // the link has its stream; whatever becomes of it, there is no second one
      kDown,     // there will be none
    };
    Peer(Wake& wake, std::uint64_t window) : link(wake, window) {}

    State state = State::kIdle;
    std::optional<Handshake> dial;
    std::int64_t rest_until_ms = 0;
    std::int64_t unanswered_since_ms = -1;  // the first of the last dials, which nobody answered; -1: there is none
    PeerWatch watch{};                      // of a dial that has reached its host
    int failures = 0;                       // dials in a row that broke
    bool left_at_our_proof = false;
    bool was_full = false;             // has said so
    bool starved = false;              // there was no memory here for a connection to it
    std::string why;                   // there is no connection; the member's mutex
    std::atomic<bool> wanting{false};  // there was no descriptor here for a connection that is not up; relaxed: a hint
    TcpLink link;
    std::atomic<bool> asked{false};  // relaxed: only spares later calls the lock
  };

  Member(const TcpOptions& given, std::uint64_t its_number);

  Peer& at(int peer) noexcept { return *peers[static_cast<std::size_t>(peer)]; }

  // Null: there is no such peer, or none that is served. `asked_now`: the endpoint is to look.
  TcpLink* want(int peer, bool& asked_now) noexcept;
  int take_news(std::span<int> into) noexcept;
  std::string why_lost(int peer) const;
  std::string want_here(int peer) const;
  void set_addresses(std::vector<PeerAddress> given);
  void say_last(const LastWords& words) noexcept;
  LastWords last_words() const noexcept;

  void tell(int peer) noexcept;
  void set_why(int peer, std::string_view why) noexcept;  // nothing, if there is no memory for it

  const TcpOptions options;
  const std::shared_ptr<const Identity> self;
  const std::uint64_t number;  // of the group, at this endpoint
  Wake wake;
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<PeerAddress> known_addresses;
  bool closed = false;
  std::list<Departed> departed;      // of itself: what goes to the endpoint in the end takes no memory then
  std::atomic<bool> starved{false};  // it closes for want of memory; relaxed: as `closing`, which is written after it
  std::atomic<bool> closing{false};  // relaxed: the eventfd that is written after it makes the thread look

  mutable std::mutex mutex;  // a leaf; guards what callers and the endpoint exchange: this and each peer's `why`
  std::vector<int> wanted;
  std::vector<PeerAddress> addresses;  // none, or one for each rank
  bool addresses_are_new = false;
  LastWords words{};
  std::vector<int> news;
  std::atomic<bool> has_news{false};  // relaxed: spares the lock; who is woken for news takes a lock in between
};

}  // namespace tutti::tcp
