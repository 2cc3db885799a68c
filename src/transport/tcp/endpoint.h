// What a process has of the network, for all its groups: a listening socket, the streams to other processes, and the
// thread that accepts, dials, authenticates, and watches.
//
// Groups whose settings differ where it matters here (the interface, the times) have an endpoint each. Every pair of
// ranks of a group proves itself by a handshake, as a connection of its own; where the two processes have a stream, it
// ends there, and the group takes part in the stream. So a group's secret is proven by whoever is in the group, and a
// hundred groups of the same ranks hold one connection a pair of processes.
//
// Ownership: shared by the transports; ends with the last. Owns the listener and all half-made connections; streams
// belong to the links (tcp_link.h).
// Want of memory: what is half done is given up. All ranks to which this process was making a connection are lost to
// its groups for that reason; streams that stand go on.
// Thread rule: the public members: any thread. `mutex_` is held while the thread works, never while it sleeps or over a
// system call that can wait; members' mutexes, streams' and wakers' are taken under it.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "net/address.h"
#include "net/tcp_socket.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/member.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/tcp_transport.h"

namespace tutti::tcp {

class Endpoint {
 public:
  // This process's endpoint for such options; listens if it is the first to ask. Throws as TcpTransport::create().
  static std::shared_ptr<Endpoint> of(const TcpOptions& options);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  const SocketAddress& address() const noexcept { return address_; }

  std::unique_ptr<Member> join(const TcpOptions& options);
  // Its links end, with what it has said last, before this returns.
  void close_now(Member& member) noexcept;
  // The same, and the member is not touched any more.
  void leave(Member& member) noexcept;
  // A member has requests, or is closing.
  void look() noexcept;
  // In a forked child there is no thread, and the connections are the parent's.
  bool inherited() const noexcept;
  // Around a fork (endpoint_fork.cc). False: it is busy, for a while or because a handler of a signal forks in the
  // midst of it; then it is left alone.
  bool hold_for_fork() noexcept;
  void let_go() noexcept;
  // In the child, while it is held. What a dead parent had would else seem to live as long as the child.
  void close_copies() noexcept;

 private:
  struct Pending {  // a peer that is dialing or resting
    Member* member = nullptr;
    int peer = -1;
    std::size_t polled = 0;  // its place in pollfds_, if it has a dial
  };
  // A connection that has not proved itself, or not been sealed.
  struct Stranger {
    Handshake handshake;
    std::int64_t since_ms = 0;
    bool on_spare = false;  // it has the spare descriptor: it will be told that there is no other
  };
  // A dial of a group that has ended meanwhile. The peer may have agreed, so it is told.
  struct Parting {
    Handshake dial;
    std::shared_ptr<Stream> offered;  // null: it was to make a new stream
    LastWords words{};
    std::int64_t since_ms = 0;
  };
  struct Known {
    std::weak_ptr<Stream> stream;
    std::string there;  // the endpoint at its other end; empty: not known yet
    PeerWatch watch{};
  };

  explicit Endpoint(const TcpOptions& options);
  static std::string settings_of(const TcpOptions& options);

  void run() noexcept;
  void turn();
  void starve() noexcept;
  void starve(Member& member, int peer) noexcept;
  void drop_starved(Member::Peer& peer) noexcept;
  void make_room();
  void collect_pollfds(std::int64_t now_ms);
  int timeout_ms(std::int64_t now_ms) const;
  void take_requests(std::int64_t now_ms);
  Member* member_of(const Handshake& handshake) const noexcept;

  // Accepting.
  std::shared_ptr<const Identity> identity_for(const Hello& hello) const;
  Handshake::Lookup lookup() const;
  // Not one that has proved itself and been told to share: it has all the time that its rank takes.
  static bool on_probation(const Stranger& stranger) noexcept;
  int probationers() const noexcept;
  bool accepting(std::int64_t now_ms) const noexcept;
  void accept_strangers(std::int64_t now_ms);
  bool accept_on_spare(std::int64_t now_ms);
  void take_spare() noexcept;
  void advance_strangers(std::int64_t now_ms);
  void admit(Member& member, Stranger& stranger);
  Verdict judge(Member& member, int peer) noexcept;
  void on_stranger_broke(Member& member, const Handshake& handshake);

  // Dialing: endpoint_dial.cc.
  using EndpointSet = std::set<std::string_view>;
  static const std::string& there_of(const Member& member, int peer);
  EndpointSet dialed_now() const;
  std::size_t room_for_dials() const noexcept;  // how many more may be under way at once
  bool must_queue(const Pending& pending, const EndpointSet& under_way) const;
  void start_dials(std::int64_t now_ms);
  void start_dial(Member& member, int peer, std::int64_t now_ms);
  void advance_dials(std::int64_t now_ms);
  void for_queued(const std::string& there, const std::function<void(Member&, int)>& act);
  void give_up_silent(Member& member, int peer, int error);
  void give_up_dial(Member& member, int peer, std::string why);
  void on_dial_over(Member& member, int peer, std::int64_t now_ms);
  void on_unreachable(Member& member, int peer, std::int64_t now_ms, int error);
  void rest_after_failure(Member& member, int peer, std::int64_t now_ms, std::string why, int most);
  void drop_dial(Member::Peer& peer);
  void give_up(Member& member, int peer, const std::string& why, LastWords words = {});
  bool left_at_our_proof(Member& member, int peer);

  // Ends of groups: endpoint_end.cc.
  void close(Member& member) noexcept;
  void forget(const Member& member);
  void part(Member::Peer& peer, const LastWords& words) noexcept;
  void advance_partings(std::int64_t now_ms);
  void see_partings_off() noexcept;
  void tell_of_end(Handshake& handshake) noexcept;

  // Streams: endpoint_dial.cc.
  std::shared_ptr<Stream> stream_to(const std::string& there) const;
  std::shared_ptr<Stream> stream_named(const StreamName& near) const;
  std::shared_ptr<Stream> new_stream(Handshake& handshake, bool dialed, std::string there);
  void name_stream(const Member& member, int peer);
  void bring_up(Member& member, int peer, std::uint32_t far);
  void flush_streams();
  void outlive(Lingering socket);
  void look_at_lingering(std::int64_t now_ms) noexcept;
  bool anything_lingers() const noexcept;
  bool watching() const noexcept;
  static bool awaits_words(const Pending& pending) noexcept;
  void watch_hosts(std::int64_t now_ms);

  const pid_t owner_;
  const std::string settings_;
  const std::chrono::milliseconds heartbeat_, silence_, handshake_timeout_, connect_timeout_;
  const std::chrono::milliseconds longest_linger_, longest_end_;
  const int most_strangers_;
  const Logger logger_;
  UniqueFd listener_;
  const SocketAddress address_;
  const UniqueFd wake_fd_;  // eventfd: there are requests, a stream has a rest, or it is time to stop
  UniqueFd spare_;          // given up, when there is no other, to tell a dialer so

  std::mutex mutex_;  // guards what follows, and each member's part
  std::vector<Member*> members_;
  std::uint64_t next_group_ = 1;
  std::uint32_t next_inlet_ = 1;
  std::vector<Pending> pending_;
  Pending admitting_{};  // whose stranger is being admitted; of no member: nobody's
  std::vector<Stranger> strangers_;
  std::vector<Parting> partings_;
  std::list<Departed> departed_;  // the latest last
  std::vector<Known> streams_;
  // The eventfd, the listener, one a stranger, one a pending peer, one a parting, streams with a rest. The thread's
  // alone, which polls them without the lock.
  std::vector<pollfd> pollfds_;
  std::size_t partings_polled_ = 0;  // the place of the first
  bool reshaped_ = false;            // something that was polled is gone
  std::int64_t accept_again_ms_ = 0;
  std::int64_t watched_ms_ = 0;
  bool warned_of_strangers_ = false;
  bool warned_of_exhaustion_ = false;

  struct Outlived {
    Lingering socket;
    std::int64_t until_ms = 0;
  };
  mutable std::mutex lingering_mutex_;  // a leaf: streams may end under any lock
  std::vector<Outlived> lingering_;

  std::atomic<bool> stop_{false};  // relaxed: the eventfd that is written after it makes the thread look
  std::thread thread_;             // last: everything else is there when it starts
};

}  // namespace tutti::tcp
