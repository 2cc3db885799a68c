// Ranks that are TcpTransports of one process, and bounded waits on their links.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/tcp/tcp_transport.h"

namespace tutti::tcp::test {

inline constexpr std::chrono::milliseconds kBound{20'000};

inline TcpOptions options_of(int rank, int size) {
  TcpOptions options;
  options.rank = rank;
  options.size = size;
  options.communicator = "group 1";
  options.secret = "correct horse";
  options.interface = "lo";
  options.logger = Logger(LogLevel::kError, rank);
  return options;
}

// Sleeps on the link's descriptor, at most for 2 ms: nobody is woken here for what it does not tell.
inline void nap(TcpTransport& transport, const Link* link, short events) {
  if (!link->polls_for_room()) events = POLLIN;
  pollfd fd{link->poll_fd(), events, 0};
  ::poll(&fd, 1, 2);
  std::vector<int> peers(64);
  transport.accept_new(peers);
}

// Writes all; false if the link died or the bound passed.
inline bool write_all(TcpTransport& transport, int peer, ConstBytes bytes) {
  Deadline deadline = Deadline::after(kBound);
  Link* link = transport.link(peer);
  while (!bytes.empty()) {
    const std::size_t cut = bytes.size() / 2;
    const std::size_t n = link->write_some(bytes.first(cut), bytes.subspan(cut));
    bytes = bytes.subspan(n);
    if (n == 0 && (link->status() != Status::kOk || deadline.expired())) return false;
    if (n == 0) nap(transport, link, POLLOUT | POLLIN);
  }
  return true;
}

// Reads exactly into.size() bytes; false if the link died first or the bound passed.
inline bool read_all(TcpTransport& transport, int peer, MutableBytes into) {
  Deadline deadline = Deadline::after(kBound);
  Link* link = transport.link(peer);
  while (!into.empty()) {
    const std::size_t n = link->read_some(into);
    into = into.subspan(n);
    if (n == 0 && (link->status() != Status::kOk || deadline.expired())) return false;
    if (n == 0) nap(transport, link, POLLIN);
  }
  return true;
}

// Reads and throws away until the link is dead; kOk if the bound passed first.
inline Status wait_for_end(TcpTransport& transport, int peer, std::chrono::milliseconds bound = kBound) {
  Deadline deadline = Deadline::after(bound);
  Link* link = transport.link(peer);
  std::vector<std::byte> sink(65536);
  while (link->status() == Status::kOk && !deadline.expired()) {
    if (link->read_some(sink) == 0) nap(transport, link, POLLIN);
  }
  return link->status();
}

inline bool wait_until(const std::function<bool()>& condition) {
  Deadline deadline = Deadline::after(kBound);
  while (!condition()) {
    if (deadline.expired()) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

inline std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> data(bytes);
  unsigned x = seed * 2654435761U + 1;
  for (auto& b : data) {
    x = x * 1664525U + 1013904223U;
    b = static_cast<std::byte>(x >> 24);
  }
  return data;
}

struct Ranks {
  explicit Ranks(int size, const std::function<void(TcpOptions&)>& adjust = {}) {
    for (int r = 0; r < size; ++r) {
      TcpOptions options = options_of(r, size);
      if (adjust) adjust(options);
      transports.push_back(TcpTransport::create(options));
    }
    exchange();
  }
  void exchange() {
    std::vector<std::string> addresses;
    for (const auto& t : transports) addresses.push_back(t->address());
    for (const auto& t : transports) t->set_peer_addresses(addresses);
  }
  // Where its endpoint listens.
  std::string listener(int r) {
    const std::string& address = (*this)[r].address();
    return address.substr(0, address.rfind('/'));
  }
  TcpTransport& operator[](int r) { return *transports[static_cast<std::size_t>(r)]; }

  std::vector<std::unique_ptr<TcpTransport>> transports;
};

// From rank 0 to `peer`.
inline void exchange_a_few(Ranks& ranks, int peer = 1) {
  const auto data = pattern(1000, 1);
  std::vector<std::byte> got(data.size());
  ASSERT_TRUE(write_all(ranks[0], peer, data));
  ASSERT_TRUE(read_all(ranks[peer], 0, got));
  EXPECT_EQ(got, data);
}

}  // namespace tutti::tcp::test
