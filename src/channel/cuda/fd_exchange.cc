#include "channel/cuda/fd_exchange.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <mutex>
#include <new>
#include <thread>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/thread.h"
#include "bootstrap/exchange.h"
#include "net/local_socket.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

using Milliseconds = std::chrono::milliseconds;

// Few enough for the kernel's limit on descriptors that are under way.
constexpr std::size_t kFdsAMessage = 64;
constexpr Milliseconds kLookEvery(500);

// What a client says: its rank and a proof over both ranks' names. The answers are the descriptors, each
// message with a proof of its own.
Digest proof(const FdExchange& request, int from, int to) {
  const std::string ranks = std::to_string(from) + ">" + std::to_string(to);
  const std::array<std::string_view, 3> parts{std::string_view("tutti-cuda-fd"), request.id, ranks};
  return hmac(request.secret, parts);
}

// Whether `in` holds it, and no more.
bool proves(ByteReader in, const Digest& expected) { return equal(in.digest(), expected) && in.done(); }

// Until when, and who asks meanwhile whether it is still worth it.
struct Wait {
  Deadline deadline;
  std::function<bool()> goes_on;  // called ten times a second; may throw
};

// A part of a wait. False at its end.
bool wait_for(int fd, short events, Wait& wait) {
  const std::int64_t left = wait.deadline.remaining_ns();
  if (left <= 0 || !wait.goes_on()) return false;
  pollfd p{fd, events, 0};
  static_cast<void>(::poll(&p, 1, static_cast<int>(std::min<std::int64_t>(left / 1'000'000 + 1, 100))));
  return true;
}

bool receive(int socket, LocalMessage& message, Wait& wait) {
  for (;;) {
    const SocketStatus status = receive_message(socket, message);
    if (status == SocketStatus::kOk) return true;
    if (status != SocketStatus::kAgain || !wait_for(socket, POLLIN, wait)) return false;
  }
}

bool send(int socket, const std::string& bytes, std::span<const int> fds, Wait& wait) {
  for (;;) {
    const SocketStatus status = send_message(socket, bytes, fds);
    if (status == SocketStatus::kOk) return true;
    if (status == SocketStatus::kEnd || !wait_for(socket, POLLOUT, wait)) return false;
  }
}

// Gives the descriptors to `request.clients` peers of this user that prove the secret. Strangers are dropped.
void serve(const FdServer& server, const FdExchange& request, std::span<const int> own,
           const std::function<bool()>& goes_on) {
  Wait whole{Deadline::after(request.timeout), goes_on};
  for (int clients = request.clients; clients > 0;) {
    const auto [status, socket, error] = accept_local(server.listener.get());
    if (whole.deadline.expired() || !goes_on()) return;  // strangers who keep coming hold up nobody for longer
    if (status == AcceptStatus::kNone && !wait_for(server.listener.get(), POLLIN, whole)) return;
    if (status == AcceptStatus::kExhausted) std::this_thread::yield();
    if (status != AcceptStatus::kOk) continue;
    // A client that says nothing must not hold up the others for long.
    Wait patience{Deadline::after(Milliseconds(2000)), goes_on};
    LocalMessage hello;
    if (!receive(socket.get(), hello, patience)) continue;
    ByteReader said(hello.bytes);
    const int from = said.u8();
    if (!proves(said, proof(request, from, request.rank))) continue;
    const std::string answer(text_of(proof(request, request.rank, from)));
    bool sent = true;
    for (std::size_t at = 0; at < own.size() && sent; at += kFdsAMessage) {
      sent = send(socket.get(), answer, own.subspan(at, std::min(kFdsAMessage, own.size() - at)), patience);
    }
    if (sent) --clients;
  }
}

// Serves on a thread of its own, while the caller asks the others. It calls no CUDA function, so it needs no capture
// mode of its own. Ends with its owner, even before all have been served.
class Serving {
 public:
  Serving(const FdServer& server, const FdExchange& request, std::span<const int> own) {
    if (request.clients == 0) return;
    thread_ = start_thread("that gives GPU memory to other ranks", [this, &server, &request, own] {
      try {
        // relaxed: a flag, which publishes nothing
        serve(server, request, own, [this] { return !stop_.load(std::memory_order_relaxed); });
      } catch (const std::exception&) {
        // No memory: who was not served finds its connection closed, or hears of it as of any failure.
        failed_.store(true, std::memory_order_relaxed);  // relaxed: read when the thread has been joined
      }
      const std::lock_guard lock(mutex_);
      over_ = true;
      ended_.notify_all();
    });
  }
  ~Serving() {
    stop_.store(true, std::memory_order_relaxed);
    if (thread_.joinable()) thread_.join();
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  // Until all have been served, or their time is over.
  void finish(const std::function<void()>& look) {
    if (!thread_.joinable()) return;
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, kLookEvery, [this] { return over_; })) {
      lock.unlock();
      if (look) look();
      lock.lock();
    }
    lock.unlock();
    thread_.join();
    if (failed_.load(std::memory_order_relaxed)) throw std::bad_alloc();
  }

 private:
  std::atomic<bool> stop_{false}, failed_{false};
  std::mutex mutex_;  // guards `over_`
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;
};

[[noreturn]] void unreachable(const FdExchange& request, int peer, const char* why) {
  throw_error(ErrorKind::kUnsupported,
              "rank " + std::to_string(request.rank) + " cannot exchange GPU memory with rank " + std::to_string(peer) +
                  ": " + why + ". CUDA groups need all ranks on one host and in one network namespace");
}

std::vector<UniqueFd> fetch(const FdExchange& request, int peer) {
  const FdExchange::Peer& from = request.peers[static_cast<std::size_t>(peer)];
  std::int64_t look_at_ns = now_ns() + kLookEvery.count() * 1'000'000;
  Wait wait{Deadline::after(request.timeout), [&] {
              if (!request.look || now_ns() < look_at_ns) return true;
              request.look();
              look_at_ns = now_ns() + kLookEvery.count() * 1'000'000;
              return true;
            }};
  const UniqueFd socket = new_local_socket();
  if (!socket) unreachable(request, peer, "no Unix socket can be made here");
  for (;;) {
    const SocketStatus status = connect_local(socket.get(), from.socket);
    if (status == SocketStatus::kOk) break;
    if (status == SocketStatus::kEnd || status == SocketStatus::kRefused)
      unreachable(request, peer, "its Unix socket is not there");
    if (status == SocketStatus::kStranger)
      unreachable(request, peer, "another user's process listens at its Unix socket");
    // The listener's backlog is full for the moment.
    if (wait.deadline.expired()) unreachable(request, peer, "its Unix socket does not answer");
    wait.goes_on();
    std::this_thread::yield();
  }
  const std::string hello =
      ByteWriter().u8(static_cast<std::uint8_t>(request.rank)).digest(proof(request, request.rank, peer)).str();
  const Digest expected = proof(request, peer, request.rank);
  std::vector<UniqueFd> fds;
  bool good = send(socket.get(), hello, {}, wait);
  while (good && fds.size() < from.fds) {
    LocalMessage answer;
    good = receive(socket.get(), answer, wait) && !answer.fds.empty() && proves(ByteReader(answer.bytes), expected);
    if (good) std::move(answer.fds.begin(), answer.fds.end(), std::back_inserter(fds));
  }
  if (!good || fds.size() != from.fds) {
    unreachable(request, peer,
                "it did not answer in time, has another secret (TUTTI_SECRET), or sends more descriptors than this "
                "process may open (ulimit -n)");
  }
  return fds;
}

}  // namespace

FdServer make_fd_server() {
  FdServer server;
  server.name = "tutti-cuda-" + random_secret();
  server.listener = listen_local(server.name);
  if (!server.listener) throw_error(ErrorKind::kExhausted, "no Unix socket can be made to exchange GPU memory");
  return server;
}

void exchange_fds(const FdServer& server, const FdExchange& request, std::span<const int> own,
                  const std::function<void(std::size_t peer, std::vector<UniqueFd>)>& take) {
  Serving serving(server, request, own);
  try {
    for (std::size_t peer = 0; peer < request.peers.size(); ++peer) {
      if (request.peers[peer].fds > 0) take(peer, fetch(request, static_cast<int>(peer)));
    }
  } catch (const KnownToAll&) {
    throw;
  } catch (...) {
    serving.finish(request.look);  // the others are to name who has failed this rank, not this rank
    throw;
  }
  serving.finish(request.look);
}

}  // namespace tutti::cuda
