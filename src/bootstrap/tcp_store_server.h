// The keys and values of a job, served over TCP by one thread with one poll loop.
//
// A connection that has not proven the secret within a bound is closed, and all such together hold a small part of the
// process's descriptors: further ones wait in the backlog. A malformed or too long frame closes its connection and
// nothing else. With an empty secret anyone who speaks the protocol may read and write, as with PyTorch's TCPStore: set
// TUTTI_SECRET where the network is not trusted.
//
// A connection with another secret may be a rank of the job's: only this side can say so. It is logged, and stands
// under kRefusedKey for those that wait. It ends nothing, or strangers could.
//
// Ownership: its sockets and its thread; the destructor ends both. Thread rule: made and destroyed by one thread;
// end_when_left() and ended() by any; the serving thread alone touches what lies below `thread_`.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "base/unforked_fd.h"
#include "base/unique_fd.h"
#include "bootstrap/tcp_store_protocol.h"

namespace tutti {

class TcpStoreServer {
 public:
  TcpStoreServer(const std::string& host, std::uint16_t port, std::string secret, Logger logger = {});
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  std::uint16_t port() const noexcept { return port_; }

  // Ends by itself, with all its descriptors, once each of `ranks` has come, which is to say that the key `came` of it
  // is there or lost by a will, and no client is here any more; after `within` in any case. Called again, it counts
  // anew who is to come, and ends by itself no earlier than it was to.
  using CameKey = std::string (*)(int rank);
  void end_when_left(int ranks, CameKey came, std::chrono::milliseconds within) noexcept;
  // How many are here that have proven the secret. relaxed: whoever asks looks again.
  std::size_t clients() const noexcept { return proven_clients_.load(std::memory_order_relaxed); }
  bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }  // acquire: with that of close_all()

 private:
  struct Waiting {
    std::vector<std::string> keys;
    std::size_t missing = 0;
    std::int64_t until_ns = 0;
  };
  struct Will {
    std::string text;
    std::vector<std::string> keys;
  };
  struct Client {
    UnforkedFd socket;
    FrameBuffer in;
    std::string out;
    Nonce nonce{};
    bool proven = false;
    bool gone = false;
    std::int64_t until_ns = 0;  // to prove itself
    std::optional<Waiting> waiting;
    Will will;
  };
  struct Leaving {
    int ranks = 0;
    CameKey came = nullptr;
    std::int64_t until_ns = 0;
  };
  using ClientId = std::uint64_t;  // ascending: the first unproven one is the oldest

  void serve();
  bool turn();
  bool told_to_stop(int within_ms) noexcept;
  bool hear() noexcept;
  bool all_left() const;
  void close_all() noexcept;
  int poll_timeout_ms() const;
  bool accepting() const noexcept;
  std::int64_t gives_way_ns() const noexcept;
  void accept_all();
  void turn_away() noexcept;
  void take_spare() noexcept;
  std::map<ClientId, Client>::const_iterator oldest_stranger() const noexcept;
  void drop_oldest_stranger(std::int64_t age_ns);
  void expire();
  void read_from(ClientId id, Client& client);
  void work_on(ClientId id, Client& client);
  void work_on_runnable();
  bool prove(Client& client, std::string_view frame);
  void tell_of_refused(const Client& client);
  bool handle(ClientId id, Client& client, std::string_view frame);
  void set(std::string_view key, std::string_view value);
  void add(Client& client, const StoreRequest& request);
  void get(ClientId id, Client& client, const StoreRequest& request);
  void answer_or_wait(ClientId id, Client& client);
  void stop_waiting(ClientId id, Client& client);
  void answer_missing(ClientId id, Client& client);
  void execute(const Will& will);
  bool answer_if_lost(ClientId id, Client& client);
  void send(Client& client, std::string_view payload);
  void flush(Client& client) noexcept;
  void sweep();

  // `act()`, for a client; one for which there is no memory is dropped, and nobody else.
  template <class Act>
  static void serving(Client& client, const Act& act) noexcept {
    try {
      act();
    } catch (const std::exception&) {
      client.gone = true;
    }
  }

  const std::string secret_;
  const Logger logger_;
  UnforkedFd listener_;
  UniqueFd bell_;           // an eventfd: readable once the server is told something; closed under `mutex_`
  UniqueFd spare_;          // given up, when there is no other, to tell a client so
  const std::string full_;  // what it is told
  std::uint16_t port_ = 0;
  pid_t process_ = 0;
  std::atomic<std::size_t> proven_clients_{0};
  std::atomic<bool> ended_{false};
  std::mutex mutex_;  // guards what the server is told, the next two, and who ends `thread_`; a leaf
  bool stop_ = false;
  std::optional<Leaving> told_leaving_;
  std::thread thread_;

  std::optional<Leaving> leaving_;  // as it has been told
  bool accept_exhausted_ = false;
  std::size_t strangers_ = 0;
  std::vector<std::string> refused_;  // hosts with another secret, as they came; the first few
  ClientId next_id_ = 0;
  std::map<ClientId, Client> clients_;
  std::deque<ClientId> runnable_;  // whose wait is over: they may have sent more meanwhile
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, std::vector<ClientId>> waiters_;
  std::vector<Will> wills_;                            // to be executed
  std::unordered_map<std::string, std::string> lost_;  // by key: the text of a will that was executed
};

}  // namespace tutti
