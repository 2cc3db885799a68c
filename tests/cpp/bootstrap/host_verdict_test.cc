// What ranks of other hosts, or those that its leader does not ask, find in the store as the list of a host's ranks:
// anybody may have written it.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mapping.h"
#include "base/process.h"
#include "bootstrap/exchange.h"
#include "bootstrap/forwarding_store.h"
#include "bootstrap/host_group_requests.h"
#include "bootstrap/host_protocol.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"
#include "bootstrap/store_process.h"
#include "communicator/thread_ranks.h"
#include "net/local_socket.h"

namespace tutti {
namespace {

using test::error_of;
using test::request_of;

// A store that gives other ranks than those that share memory with rank 0.
class ForgingStore final : public test::ForwardingStore {
 public:
  ForgingStore(Store& below, const std::vector<int>& ranks) : ForwardingStore(below), forged_(encode(of(ranks))) {}

  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    std::vector<std::string> values = ForwardingStore::multi_get(keys, timeout);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == verdict_key("world", 0)) values[i] = forged_;
    }
    return values;
  }

 private:
  static HostVerdict of(const std::vector<int>& ranks) {
    HostVerdict verdict;
    verdict.ranks = ranks;
    return verdict;
  }
  const std::string forged_;
};

void expect_forged(const Error& error, const std::string& named) {
  const std::string text = error.what();
  EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << text;
  EXPECT_NE(text.find("as the ranks that share memory with rank 0 the store gives " + named), std::string::npos)
      << text;
  EXPECT_NE(text.find("it changes values"), std::string::npos) << text;
}

TEST(HostVerdict, WhatALeaderDoesNotSayIsNotBelieved) {
  const std::vector<std::pair<std::vector<int>, std::string>> forgeries = {
      {{}, "nobody"},
      {{1}, "others, and not that rank itself"},
      {{1, 0}, "a list in no order"},
      {{0, 0, 1}, "a list in no order"},
      {{0, 1, 2}, "rank 2, which knows nothing of it"},
      {{0, 1, 3}, "rank 3, which is of another host"},
      {{0, 4}, "rank 4, which does not exist"},
      {{-1, 0}, "rank -1, which does not exist"},
  };
  for (const auto& [ranks, named] : forgeries) {
    MemoryStore below;
    const auto errors = test::run_threads(4, [&, &ranks = ranks, &named = named](int rank) {
      const HostGroupRequest request = request_of(rank, 4, rank < 2 ? "first" : "second");
      if (rank != 2) {
        form_host_group(below, request);
        return;
      }
      ForgingStore store(below, ranks);
      expect_forged(error_of([&] { form_host_group(store, request); }), named);
    });
    EXPECT_EQ(errors, std::vector<std::string>(4));
  }
}

// Of rank 0, a leader at whose socket nobody listens any more when rank 1 comes.
HostCard card_of_a_leader(const HostGroupRequest& request) {
  return {"chosen:host", "tutti-" + random_secret().substr(0, 32), random_nonce(), request.segment_bytes(2), {}, {}, 0,
          machine_id()};
}

TEST(HostVerdict, OfALeaderThatHasNotAskedThisRankIsNone) {
  MemoryStore store;
  const HostGroupRequest request = request_of(1, 2, "host");
  store.set(exchange_key("world", kHostTopic, 0), encode(card_of_a_leader(request)));
  HostVerdict verdict;
  verdict.ranks = {0};
  store.set(verdict_key("world", 0), encode(verdict));
  expect_forged(error_of([&] { form_host_group(store, request); }), "a list without rank 1, which has not been asked");
}

// Whether it is dead nobody can know: it may have failed, and not reached the store to say so.
TEST(HostVerdict, ALeaderThatSaysNothingMayHaveGivenUp) {
  MemoryStore store;
  const HostGroupRequest request = request_of(1, 2, "host");
  store.set(exchange_key("world", kHostTopic, 0), encode(card_of_a_leader(request)));
  const Error error = error_of([&] { form_host_group(store, request); });
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_STREQ(error.what(),
               "rank 0 died while communicator \"world\" was forming, or gave up: its own output says why");
}

// A leader that welcomes rank 1, counts it in, and loses the connection before it has said so; with the Ack unread in
// it, or not.
void count_in(Store& store, const HostGroupRequest& request, bool unread) {
  HostCard own = card_of_a_leader(request);
  const UniqueFd listener = listen_local(own.socket_name);
  std::vector<HostCard> cards;
  for (const auto& blob : exchange(store, "world", kHostTopic, 0, 2, encode(own), request.timeout)) {
    cards.push_back(*decode_card(blob));
  }
  Deadline deadline = Deadline::after(request.timeout);
  const HostContext context{store, request, cards, {0, 1}, 0, deadline, request.secret, true};
  const HostPair pair(context, 1);
  UniqueFd member;
  ASSERT_TRUE(test::soon([&] { return (member = accept_local(listener.get()).socket).get() >= 0; }));
  LocalMessage message;
  const auto heard = [&] { return receive_message(member.get(), message) == SocketStatus::kOk; };
  ASSERT_TRUE(test::soon(heard));
  const std::optional<HostEntry> entry = pair.read_hello(message.bytes);
  ASSERT_TRUE(entry);
  const UniqueFd segment = create_memfd("tutti", request.segment_bytes(2));
  const HostWelcome welcome{0, 1, request.segment_bytes(2), random_nonce(), {own_entry(request), *entry}};
  const int fds[] = {segment.get()};
  ASSERT_EQ(send_message(member.get(), pair.welcome(welcome), fds), SocketStatus::kOk);
  pollfd acked{member.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&acked, 1, 20'000), 1);
  ASSERT_TRUE(unread || (heard() && pair.read_ack(message.bytes, welcome.challenge)));
  HostVerdict verdict;
  verdict.ranks = {0, 1};
  store.set(verdict_key("world", 0), encode(verdict));
}

TEST(HostVerdict, WhoIsCountedInAndNotToldSaysSo) {
  for (const std::string why : {"", ": Connection reset by peer"}) {
    MemoryStore store;
    const auto errors = test::run_threads(2, [&](int rank) {
      const HostGroupRequest request = request_of(rank, 2, "host");
      if (rank == 0) return count_in(store, request, !why.empty());
      const Error error = error_of([&] { form_host_group(store, request); });
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
      EXPECT_EQ(error.what(),
                "rank 0 of the same host has counted rank 1 in, and its connection to rank 1 ended before it said so" +
                    why + " (communicator \"world\")");
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
  }
}

// So many hosts of two ranks that rank 0 reads for all which ranks share memory, and passes it on.
constexpr int kManyHosts = kMostDirect + 1;

HostGroupRequest request_of_many(int rank) {
  return request_of(rank, 2 * kManyHosts, "host " + std::to_string(rank / 2));
}

TEST(HostVerdict, OfManyHostsAllAreKnownToAll) {
  MemoryStore store;
  const auto errors = test::run_threads(2 * kManyHosts, [&](int rank) {
    HostGroupRequest request = request_of_many(rank);
    if (rank == 7) request.secret = "another";  // it leaves its host, and hears of that, too, by the store
    const HostGroup group = form_host_group(store, request);
    for (int r = 0; r < request.size; ++r) {
      EXPECT_EQ(group.host_of[static_cast<std::size_t>(r)], r == 7 ? 7 : r / 2 * 2);
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(2 * kManyHosts));
}

TEST(HostVerdict, OfManyHostsAFailureIsToldToAll) {
  for (const int leader : {0, 2 * kManyHosts - 2}) {
    MemoryStore store;
    const auto errors = test::run_threads(2 * kManyHosts, [&](int rank) {
      HostGroupRequest request = request_of_many(rank);
      if (rank == leader) {
        request.segment_bytes = [all = request.segment_bytes, size = request.size](int ranks) {
          if (ranks != size) throw_error(ErrorKind::kExhausted, "there is no memory for two");
          return all(ranks);
        };
      }
      telling(store, request.id, rank, [&] { form_host_group(store, request); });
    });
    EXPECT_EQ(errors, std::vector<std::string>(2 * kManyHosts, "there is no memory for two")) << "of rank " << leader;
  }
}

// Rank 0 is killed before it passes them on: its host sees that, and the others hear it of rank 1.
TEST(HostVerdictProcess, OfManyHostsTheDeathOfTheFirstIsToldToAll) {
  class LastStore final : public test::ForwardingStore {
   public:
    using ForwardingStore::ForwardingStore;
    void set(std::string_view key, std::string_view value) override {
      if (key == verdicts_key("world")) ::raise(SIGKILL);
      ForwardingStore::set(key, value);
    }
  };
  test::StoreProcess process;
  auto good = test::run_processes(2 * kManyHosts, [&](int rank) {
    const auto below = process.connect();
    LastStore store(*below);
    HostGroupRequest request = request_of_many(rank);
    request.timeout = std::chrono::minutes(10);  // behind the watchdog
    const Error error = error_of([&] { telling(store, request.id, rank, [&] { form_host_group(store, request); }); });
    const bool named = std::string(error.what()).find("rank 0 died while") != std::string::npos;
    if (!named) std::fprintf(stderr, "rank %d: another error: %s\n", rank, error.what());
    return named && error.kind() == ErrorKind::kPeerLost;
  });
  good.front() = !good.front();
  EXPECT_EQ(good, std::vector<bool>(2 * kManyHosts, true));
}

}  // namespace
}  // namespace tutti
