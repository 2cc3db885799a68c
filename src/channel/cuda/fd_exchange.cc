#include "channel/cuda/fd_exchange.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <thread>

#include "base/clock.h"
#include "base/secret.h"
#include "base/thread.h"
#include "bootstrap/local_socket.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

using Milliseconds = std::chrono::milliseconds;

// Few enough for the kernel's limit on descriptors that are under way.
constexpr std::size_t kFdsAMessage = 64;

// What a client says: its rank and a proof over both ranks' names. The answers are the descriptors, each
// message with a proof of its own.
std::string proof(const FdExchange& request, int from, int to) {
  const std::string ranks = std::to_string(from) + ">" + std::to_string(to);
  const std::array<std::string_view, 3> parts{std::string_view("tutti-cuda-fd"), request.id, ranks};
  const Digest digest = hmac(request.secret, parts);
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

bool same(const std::string& a, std::string_view b) {
  Digest x{}, y{};
  if (a.size() != x.size() || b.size() != y.size()) return false;
  std::memcpy(x.data(), a.data(), x.size());
  std::memcpy(y.data(), b.data(), y.size());
  return equal(x, y);
}

bool wait_for(int fd, short events, Deadline& deadline) {
  const std::int64_t left = deadline.remaining_ns();
  if (left <= 0) return false;
  pollfd p{fd, events, 0};
  static_cast<void>(::poll(&p, 1, static_cast<int>(std::min<std::int64_t>(left / 1'000'000 + 1, 100))));
  return true;
}

bool receive(int socket, LocalMessage& message, Deadline& deadline) {
  for (;;) {
    const SocketStatus status = receive_message(socket, message);
    if (status == SocketStatus::kOk) return true;
    if (status != SocketStatus::kAgain || !wait_for(socket, POLLIN, deadline)) return false;
  }
}

bool send(int socket, const std::string& bytes, std::span<const int> fds, Deadline& deadline) {
  for (;;) {
    const SocketStatus status = send_message(socket, bytes, fds);
    if (status == SocketStatus::kOk) return true;
    if (status == SocketStatus::kEnd || !wait_for(socket, POLLOUT, deadline)) return false;
  }
}

// Gives the descriptors to `request.clients` peers of this user that prove the secret. Strangers are dropped.
void serve(const FdServer& server, const FdExchange& request, std::span<const int> own) {
  Deadline deadline = Deadline::after(request.timeout);
  for (int clients = request.clients; clients > 0;) {
    const auto [status, socket, error] = accept_local(server.listener.get());
    if (deadline.expired()) return;  // strangers who keep coming hold up nobody for longer
    if (status == AcceptStatus::kNone && !wait_for(server.listener.get(), POLLIN, deadline)) return;
    if (status == AcceptStatus::kExhausted) std::this_thread::yield();
    if (status != AcceptStatus::kOk) continue;
    // A client that says nothing must not hold up the others for long.
    Deadline patience = Deadline::after(Milliseconds(2000));
    LocalMessage hello;
    if (!receive(socket.get(), hello, patience) || hello.bytes.size() < 33) continue;
    const int from = static_cast<unsigned char>(hello.bytes[0]);
    if (!same(proof(request, from, request.rank), std::string_view(hello.bytes).substr(1))) continue;
    const std::string answer = proof(request, request.rank, from);
    bool sent = true;
    for (std::size_t at = 0; at < own.size() && sent; at += kFdsAMessage) {
      sent = send(socket.get(), answer, own.subspan(at, std::min(kFdsAMessage, own.size() - at)), patience);
    }
    if (sent) --clients;
  }
}

[[noreturn]] void unreachable(const FdExchange& request, int peer, const char* why) {
  throw_error(ErrorKind::kUnsupported,
              "rank " + std::to_string(request.rank) + " cannot exchange GPU memory with rank " + std::to_string(peer) +
                  ": " + why + ". CUDA groups need all ranks on one host and in one network namespace");
}

std::vector<UniqueFd> fetch(const FdExchange& request, int peer) {
  const FdExchange::Peer& from = request.peers[static_cast<std::size_t>(peer)];
  Deadline deadline = Deadline::after(request.timeout);
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
    if (deadline.expired()) unreachable(request, peer, "its Unix socket does not answer");
    std::this_thread::yield();
  }
  std::string hello(1, static_cast<char>(request.rank));
  hello += proof(request, request.rank, peer);
  const std::string expected = proof(request, peer, request.rank);
  std::vector<UniqueFd> fds;
  bool good = send(socket.get(), hello, {}, deadline);
  while (good && fds.size() < from.fds) {
    LocalMessage answer;
    good = receive(socket.get(), answer, deadline) && !answer.fds.empty() && same(expected, answer.bytes);
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
  // Serves while this thread asks. It calls no CUDA function, so it needs no capture mode of its own.
  std::thread server_thread;
  if (request.clients > 0) {
    server_thread = start_thread("that gives GPU memory to other ranks", [&] { serve(server, request, own); });
  }
  try {
    for (std::size_t peer = 0; peer < request.peers.size(); ++peer) {
      if (request.peers[peer].fds > 0) take(peer, fetch(request, static_cast<int>(peer)));
    }
  } catch (...) {
    if (server_thread.joinable()) server_thread.join();
    throw;
  }
  if (server_thread.joinable()) server_thread.join();
}

}  // namespace tutti::cuda
