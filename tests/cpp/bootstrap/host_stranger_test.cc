// Strangers on the Unix socket of a forming host: whatever they say or do not say, the group forms.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <random>

#include "base/bytes.h"
#include "bootstrap/exchange.h"
#include "bootstrap/gate_store.h"
#include "bootstrap/host_group_requests.h"
#include "bootstrap/host_protocol.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"
#include "net/local_socket.h"

namespace tutti {
namespace {

using test::request_of;

// Two ranks form a group while `strangers` runs, given the cards: it ends before rank 1 connects.
std::vector<HostGroup> form_among(const std::function<void(const std::vector<HostCard>&)>& strangers) {
  MemoryStore store;
  std::vector<HostGroup> groups(2);
  const auto errors = test::run_threads(2, [&](int rank) {
    test::GateStore gate(store);
    if (rank == 1) {
      gate.after_exchange = [&] {
        std::vector<HostCard> cards;
        for (const char* r : {"0", "1"}) {
          cards.push_back(*decode_card(store.get(store_key("world", "host", r), std::chrono::seconds(20))));
        }
        strangers(cards);
      };
    }
    groups[static_cast<std::size_t>(rank)] = form_host_group(gate, request_of(rank, 2));
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  return groups;
}

void expect_one_host(const std::vector<HostGroup>& groups) {
  for (const HostGroup& g : groups) {
    EXPECT_EQ(g.host_of, (std::vector<int>{0, 0}));
    EXPECT_EQ(g.members.size(), 2u);
    EXPECT_TRUE(g.segment);
  }
}

UniqueFd connection_to(const HostCard& card) {
  UniqueFd socket = new_local_socket();
  EXPECT_EQ(connect_local(socket.get(), card.socket_name), SocketStatus::kOk);
  return socket;
}

bool dropped(const UniqueFd& socket) {
  pollfd fd{socket.get(), POLLIN, 0};
  LocalMessage message;
  return ::poll(&fd, 1, 20'000) == 1 && receive_message(socket.get(), message) == SocketStatus::kEnd;
}

TEST(HostStrangers, SilentOnesDoNotStall) {
  std::vector<UniqueFd> silent;  // connected until the test's end
  expect_one_host(form_among([&](const auto& cards) {
    for (int i = 0; i < 300; ++i) silent.push_back(connection_to(cards[0]));
  }));
}

// More than there are places for.
TEST(HostStrangers, OfSilentOnesTheOldestGo) {
  std::vector<UniqueFd> silent;
  expect_one_host(form_among([&](const auto& cards) {
    for (int i = 0; i < 100; ++i) silent.push_back(connection_to(cards[0]));
    EXPECT_TRUE(dropped(silent.front()));
    LocalMessage message;
    EXPECT_EQ(receive_message(silent.back().get(), message), SocketStatus::kAgain) << "the newest has gone, too";
  }));
}

TEST(HostStrangers, JunkIsDropped) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const int before = test::open_descriptors();
  expect_one_host(form_among([&](const auto& cards) {
    const UniqueFd file = new_local_socket();
    const std::vector<int> some(50, file.get());
    for (int i = 0; i < 100; ++i) {
      const UniqueFd socket = connection_to(cards[0]);
      std::string junk(random() % 200 + 1, '\0');
      for (char& c : junk) c = static_cast<char>(random());
      send_message(socket.get(), junk, std::span(some).first(i % 50));
      EXPECT_TRUE(dropped(socket)) << i;
    }
    const UniqueFd large = connection_to(cards[0]);
    send_message(large.get(), std::string(kMaxMessageBytes + 1, 'x'), {});
    EXPECT_TRUE(dropped(large));
    const UniqueFd empty = connection_to(cards[0]);
    ::send(empty.get(), "", 0, MSG_NOSIGNAL);
    EXPECT_TRUE(dropped(empty));
  }));
  EXPECT_EQ(test::open_descriptors(), before) << "the strangers' descriptors";
}

// A stranger who knows all that the store shows, but not the secret.
TEST(HostStrangers, WithoutTheSecretNobodyTakesARanksPlace) {
  expect_one_host(form_among([&](const std::vector<HostCard>& cards) {
    MemoryStore unused;
    HostGroupRequest request = request_of(1, 2);
    request.secret = "a guess";
    Deadline deadline = Deadline::after(std::chrono::seconds(20));
    const HostContext guess{unused, request, cards, {0, 1}, 0, deadline, request.secret, true};
    const std::string hello = HostPair(guess, 1).hello(own_entry(request));
    const UniqueFd guessing = connection_to(cards[0]);
    send_message(guessing.get(), hello, {});
    EXPECT_TRUE(dropped(guessing));
    const UniqueFd half = connection_to(cards[0]);
    send_message(half.get(), std::string_view(hello).substr(0, hello.size() / 2), {});
    EXPECT_TRUE(dropped(half));
  }));
}

// A true Hello, but of another communicator, another rank, or another process.
TEST(HostStrangers, AProofServesOnce) {
  expect_one_host(form_among([&](const std::vector<HostCard>& cards) {
    MemoryStore unused;
    Deadline deadline = Deadline::after(std::chrono::seconds(20));
    HostGroupRequest other = request_of(1, 2);
    other.id = "another";
    const HostContext another{unused, other, cards, {0, 1}, 0, deadline, other.secret, true};
    const HostGroupRequest request = request_of(1, 2);
    std::vector<HostCard> old_cards = cards;
    old_cards[0].nonce = random_nonce();
    const HostContext earlier{unused, request, old_cards, {0, 1}, 0, deadline, request.secret, true};
    const HostContext now{unused, request, cards, {0, 1}, 0, deadline, request.secret, true};
    HostEntry passed_on = own_entry(request);
    passed_on.pid += 1;
    HostEntry leader = own_entry(request);
    leader.rank = 0;
    for (const std::string& hello :
         {HostPair(another, 1).hello(own_entry(request)), HostPair(earlier, 1).hello(own_entry(request)),
          HostPair(now, 1).hello(passed_on), HostPair(now, 0).hello(leader), HostPair(now, 1).ack(random_nonce())}) {
      const UniqueFd socket = connection_to(cards[0]);
      send_message(socket.get(), hello, {});
      EXPECT_TRUE(dropped(socket));
    }
  }));
}

// A verdict may read as a Hello, byte for byte: the proof says that it is none.
TEST(HostProtocol, AProofIsOfOneKindOfMessage) {
  MemoryStore unused;
  Deadline deadline = Deadline::after(std::chrono::seconds(20));
  const HostGroupRequest request = request_of(1, 2);
  const std::vector<HostCard> cards(2);
  const HostContext context{unused, request, cards, {0, 1}, 0, deadline, request.secret, true};
  const HostPair pair(context, 1);
  ASSERT_TRUE(pair.read_hello(pair.hello(own_entry(request))));
  HostVerdict verdict;
  verdict.ranks = {0, 1, 2, 3, 4, 5};
  verdict.kind = static_cast<ErrorKind>(1);
  const std::optional<HostEntry> as_entry = decode_entry(encode(verdict));
  ASSERT_TRUE(as_entry && as_entry->rank == 1) << "they look different now: nothing would be tested";
  EXPECT_TRUE(pair.read_verdict(pair.verdict(verdict)));
  EXPECT_FALSE(pair.read_hello(pair.verdict(verdict)));
}

// Of two descriptors one finds room: then none is there, and the receiver says why.
TEST(HostMessages, DescriptorsComeAllOrNone) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd from(ends[0]), to(ends[1]);
  const std::array<int, 2> sent{0, 1};
  ASSERT_EQ(send_message(from.get(), "both", sent), SocketStatus::kOk);
  const int before = test::open_descriptors();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const UniqueFd lowest(::dup(0));
  rlimit tight = limit;
  tight.rlim_cur = static_cast<rlim_t>(lowest.get()) + 2;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  LocalMessage message;
  const SocketStatus status = receive_message(to.get(), message);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(status, SocketStatus::kNoRoom);
  EXPECT_EQ(message.bytes, "both");
  EXPECT_TRUE(message.fds.empty());
  EXPECT_EQ(test::open_descriptors(), before + 1);
}

TEST(HostProtocol, MalformedBytesAreRefused) {
  const std::string card = encode(HostCard{"hint", "name", random_nonce(), 4096, "secret"});
  EXPECT_TRUE(decode_card(card));
  HostVerdict verdict;
  verdict.ranks = {0, 3};
  const std::string list = encode(verdict);
  ASSERT_TRUE(decode_verdict(list));
  EXPECT_EQ(decode_verdict(list)->ranks, verdict.ranks);
  HostEntry entry;
  entry.rank = 2;
  entry.pid = 77;
  entry.has_arena = true;
  entry.arena_bytes = 4096;
  const std::string hello = encode(entry);
  ASSERT_TRUE(decode_entry(hello));
  EXPECT_TRUE(decode_entry(hello)->same_process(entry));
  EXPECT_EQ(decode_entry(hello)->arena_bytes, 4096U);
  const std::string welcome = encode(HostWelcome{0, 2, 8192, random_nonce(), {entry, entry}});
  ASSERT_TRUE(decode_welcome(welcome));
  EXPECT_EQ(decode_welcome(welcome)->entries.size(), 2U);
  const HostWelcome crowd{0, 1, 0, Nonce{}, std::vector<HostEntry>(kEntriesPerBatch + 1)};
  EXPECT_FALSE(decode_welcome(encode(crowd))) << "more than one message can carry the descriptors of";

  const auto refused = [](const std::string& whole, const auto& decode) {
    for (std::size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(decode(std::string_view(whole).substr(0, n))) << n;
    EXPECT_FALSE(decode(whole + "x"));
  };
  refused(card, [](std::string_view bytes) { return decode_card(bytes).has_value(); });
  refused(list, [](std::string_view bytes) { return decode_verdict(bytes).has_value(); });
  refused(hello, [](std::string_view bytes) { return decode_entry(bytes).has_value(); });
  refused(welcome, [](std::string_view bytes) { return decode_welcome(bytes).has_value(); });
}

}  // namespace
}  // namespace tutti
