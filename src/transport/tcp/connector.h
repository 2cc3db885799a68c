// The thread of a TcpTransport: accepts, dials, authenticates, and watches.
//
// Ownership: owns the listener, all half-made connections and the links.
// Thread rule: the public members: any thread. All else runs on the connector's thread.
// `mutex_` guards wanted_, addresses_ and news_; it is a leaf and never held over a system call that can wait.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "transport/tcp/address.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_link.h"
#include "transport/tcp/tcp_transport.h"

namespace tutti::tcp {

class TcpTransport::Connector {
 public:
  Connector(const TcpOptions& options, UniqueFd listener);
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  void set_addresses(std::vector<SocketAddress> addresses);
  TcpLink* want(int peer) noexcept;
  int take_news(std::span<int> peers) noexcept;
  int news_fd() const noexcept { return news_fd_.get(); }
  std::string why_lost(int peer) const;
  // The links end, nothing is dialed or accepted any more. Takes effect on the thread.
  void close() noexcept;

 private:
  // What is known of a peer. The thread's own, but for `asked` and the link's calls.
  struct Peer {
    enum class State : std::uint8_t {
      kIdle,     // nobody has asked for it
      kDialing,  // `dial` is under way
      kResting,  // dials again at `rest_until_ms`, unless the peer's own dial arrives before
      kUp,       // the link has its socket; whatever becomes of it, there is no second one
      kDown,     // there will be none
    };
    State state = State::kIdle;
    std::optional<Handshake> dial;
    std::int64_t dial_began_ms = 0;
    std::int64_t rest_until_ms = 0;
    int failures = 0;  // dials in a row that broke
    bool left_at_our_proof = false;
    bool was_full = false;  // has said so
    std::string why;        // there is no connection; the transport's mutex
    PeerWatch watch;
    TcpLink link;
    std::atomic<bool> asked{false};  // relaxed: only spares later calls the lock
  };
  // A connection that has not proved itself.
  struct Stranger {
    Handshake handshake;
    std::int64_t since_ms = 0;
    bool on_spare = false;  // it has the spare descriptor: it will be told that there is no other
  };

  Peer& at(int peer) noexcept { return *peers_[static_cast<std::size_t>(peer)]; }

  void run() noexcept;
  void turn();
  void collect_pollfds(std::int64_t now_ms);
  int timeout_ms(std::int64_t now_ms) const noexcept;
  void take_requests(std::int64_t now_ms);
  bool accepting(std::int64_t now_ms) const noexcept;
  void accept_strangers(std::int64_t now_ms);
  bool accept_on_spare(std::int64_t now_ms);
  void take_spare() noexcept;
  void advance_strangers(std::int64_t now_ms);
  void admit(Stranger& stranger);
  Verdict judge(int peer) noexcept;
  void start_dials(std::int64_t now_ms);
  void start_dial(int peer, std::int64_t now_ms);
  void advance_dials(std::int64_t now_ms);
  void on_dial_over(int peer, std::int64_t now_ms);
  void rest_after_failure(int peer, std::int64_t now_ms, std::string why, int most);
  void bring_up(int peer, UniqueFd socket);
  void give_up(int peer, std::string why);
  bool left_at_our_proof(int peer);
  std::string other_secret(int peer) const;
  std::string no_way(int peer, int error) const;
  void tell(int peer);
  void watch_hosts(std::int64_t now_ms);
  void close_all();

  const pid_t owner_;  // a forked child has no thread, and must not touch the connections of its parent
  const TcpOptions options_;
  const Identity self_;
  UniqueFd listener_;
  const UniqueFd wake_fd_;  // eventfd: there are requests, or it is time to stop
  const UniqueFd news_fd_;  // eventfd: news_ is not empty
  UniqueFd spare_;          // given up, when there is no other, to tell a dialer so

  // The thread's own.
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<int> pending_;  // peers that are dialing or resting
  std::vector<Stranger> strangers_;
  std::vector<pollfd> pollfds_;  // the eventfd, the listener, one a stranger, one a pending peer
  std::vector<SocketAddress> known_addresses_;
  std::int64_t accept_again_ms_ = 0;
  std::int64_t watched_ms_ = 0;
  int links_up_ = 0;
  bool warned_of_strangers_ = false;
  bool warned_of_exhaustion_ = false;
  bool closed_ = false;

  mutable std::mutex mutex_;  // guards what callers and the thread exchange: this and each peer's `why`
  std::vector<int> wanted_;
  std::vector<SocketAddress> addresses_;
  std::vector<int> news_;
  std::atomic<bool> closing_{false};  // as stop_
  std::atomic<bool> stop_{false};     // relaxed: the eventfd that is written after it makes the thread look
  std::thread thread_;                // last: everything else is there when it starts
};

}  // namespace tutti::tcp
