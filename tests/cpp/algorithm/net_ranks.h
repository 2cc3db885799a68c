// Ranks as threads, joined by TCP over loopback, that run algorithms over messages.
#pragma once

#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "algorithm/algorithm.h"
#include "algorithm/net/net_algorithms.h"
#include "channel/poll_waker.h"
#include "transport/tcp/tcp_transport.h"

namespace tutti::test {

inline constexpr std::chrono::milliseconds kCallBound{60'000};

struct NetRank {
  NetRank(int r, int n) : rank(r), size(n) {
    tcp::TcpOptions options;
    options.rank = r;
    options.size = n;
    options.communicator = "net";
    options.secret = "secret";
    options.interface = "lo";
    transport = tcp::TcpTransport::create(options);
  }

  void connect(const std::vector<std::string>& addresses) {
    transport->set_peer_addresses(addresses);
    std::vector<Transport*> of_peer(static_cast<std::size_t>(size), transport.get());
    of_peer[static_cast<std::size_t>(rank)] = nullptr;
    waker = std::make_unique<PollWaker>();
    port = std::make_unique<MessagePort>(rank, size, of_peer, waker.get(), 50);
    context.rank = rank;
    context.size = size;
    context.port = port.get();
  }

  // As the communicator does: numbers the call, describes it, and gives up the port when it fails.
  Outcome run(const Algorithm& algorithm, const Call& call, std::chrono::milliseconds bound = kCallBound) {
    CallRecord& record = context.record;
    record = {};
    record.sequence = ++sequence;
    record.call = static_cast<std::uint8_t>(call.collective);
    record.dtype = static_cast<std::uint8_t>(call.dtype);
    record.op = static_cast<std::uint8_t>(call.op);
    record.root = call.root;
    record.uneven = call.uneven ? 1 : 0;
    record.count = call.count;
    record.hash = fingerprint(record);
    context.deadline = Deadline::after(bound);
    const Outcome outcome = algorithm.run(call, context);
    if (!outcome.ok()) port->fail(outcome);
    return outcome;
  }

  int rank;
  int size;
  std::uint64_t sequence = 0;
  std::unique_ptr<tcp::TcpTransport> transport;
  std::unique_ptr<PollWaker> waker;
  std::unique_ptr<MessagePort> port;
  CallState state;
  CallContext context{state};
};

// Runs `body` on `size` ranks at once, each on its own thread.
inline void on_ranks(int size, const std::function<void(NetRank&)>& body) {
  std::vector<std::unique_ptr<NetRank>> ranks;
  std::vector<std::string> addresses;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(std::make_unique<NetRank>(r, size));
    addresses.push_back(ranks.back()->transport->address());
  }
  for (auto& rank : ranks) rank->connect(addresses);
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (auto& thread : threads) thread.join();
}

inline CallShape shape_of(const Call& call, int ranks, std::size_t bytes) {
  CallShape shape;
  shape.collective = call.collective;
  shape.dtype = call.dtype;
  shape.op = call.op;
  shape.bytes = bytes;
  shape.ranks = ranks;
  shape.hosts = ranks;
  shape.uneven = call.uneven;
  return shape;
}

// All algorithms of a collective.
inline AlgorithmList algorithms_of(Collective collective) {
  AlgorithmList list;
  for (const auto& algorithm : net_algorithms()) {
    if (algorithm->collective() == collective) list.push_back(algorithm);
  }
  return list;
}

inline std::shared_ptr<const Algorithm> algorithm_named(Collective collective, std::string_view name) {
  for (const auto& algorithm : algorithms_of(collective)) {
    if (algorithm->name() == name) return algorithm;
  }
  return nullptr;
}

}  // namespace tutti::test
