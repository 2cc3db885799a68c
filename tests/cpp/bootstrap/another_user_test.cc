// Another user of the host who can read and write the job's store, and so knows the sockets and the secret: both sides
// of a local connection ask the kernel whose process is at the other end, and turn that user away.
#include <gtest/gtest.h>
#include <poll.h>

#include <deque>
#include <mutex>

#include "bootstrap/exchange.h"
#include "bootstrap/gate_store.h"
#include "bootstrap/host_group_requests.h"
#include "bootstrap/host_protocol.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"
#include "bootstrap/store_process.h"
#include "net/local_socket.h"
#include "support/other_user.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using test::OtherUser;
using test::request_of;
using test::Talk;
constexpr int kLongMs = 20'000;

class AnotherUser : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::may_be_another_user()) GTEST_SKIP() << "only root can play another user";
  }
};

// What comes over this connection: "bytes", "end", or "nothing" for a long time.
std::string what_comes(int socket) {
  pollfd fd{socket, POLLIN, 0};
  if (::poll(&fd, 1, kLongMs) != 1) return "nothing";
  LocalMessage message;
  return receive_message(socket, message) == SocketStatus::kOk ? "bytes" : "end";
}

std::vector<HostCard> cards_in(Store& store) {
  std::vector<HostCard> cards;
  for (const char* r : {"0", "1"}) {
    cards.push_back(*decode_card(store.get(store_key("world", "host", r), std::chrono::milliseconds(kLongMs))));
  }
  return cards;
}

// Two ranks form a group; `before_rank_1` runs before rank 1 connects.
void form_one_host(const std::function<void(const std::vector<HostCard>&)>& before_rank_1) {
  MemoryStore store;
  std::vector<HostGroup> groups(2);
  const auto errors = test::run_threads(2, [&](int rank) {
    test::GateStore gate(store);
    if (rank == 1) gate.after_exchange = [&] { before_rank_1(cards_in(store)); };
    groups[static_cast<std::size_t>(rank)] = form_host_group(gate, request_of(rank, 2));
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  for (const HostGroup& g : groups) EXPECT_EQ(test::ranks_of(g), (std::vector<int>{0, 1}));
}

// It knows the secret and comes before rank 1, with a Hello that is right in everything.
TEST_F(AnotherUser, CannotTakeARanksPlace) {
  const OtherUser stranger([](const Talk& talk) {
    const UniqueFd socket = new_local_socket();
    connect_local(socket.get(), talk.hear());
    send_message(socket.get(), talk.hear(), {});
    talk.say(what_comes(socket.get()));
  });
  form_one_host([&](const std::vector<HostCard>& cards) {
    MemoryStore unused;
    const HostGroupRequest request = request_of(1, 2);
    Deadline deadline = Deadline::never();
    const HostContext context{unused, request, cards, {0, 1}, 0, deadline, request.secret, true};
    HostEntry entry = own_entry(request);
    entry.pid = stranger.pid();
    stranger.talk().say(cards[0].socket_name);
    stranger.talk().say(HostPair(context, 1).hello(entry));
    EXPECT_EQ(stranger.talk().hear(), "end") << "what the leader gave it";
  });
}

// It has put its own socket into the leader's card: the member says nothing to it, and is a host of its own.
TEST_F(AnotherUser, HearsNothingWhereItListens) {
  const std::string name = "tutti-test-" + random_secret();
  const OtherUser stranger([&](const Talk& talk) {
    const UniqueFd listener = listen_local(name);
    talk.say(listener ? "listens" : "cannot listen");
    pollfd fd{listener.get(), POLLIN, 0};
    if (::poll(&fd, 1, kLongMs) != 1) return;
    const UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    talk.say(what_comes(socket.get()));
  });
  ASSERT_EQ(stranger.talk().hear(), "listens");
  MemoryStore store;
  const HostGroupRequest leader = request_of(0, 2, "host");
  const HostCard forged{"chosen:host", name, random_nonce(), leader.segment_bytes(2), {}};
  store.set(store_key("world", "host", "0"), encode(forged));
  HostVerdict verdict;
  verdict.ranks = {0};
  store.set(verdict_key("world", 0), encode(verdict));
  const HostGroup group = form_host_group(store, request_of(1, 2, "host"));
  EXPECT_EQ(group.host_of, (std::vector<int>{0, 1}));
  EXPECT_EQ(stranger.talk().hear(), "end") << "what the member said to it";
}

// As many connections as it can make, for as long as the group forms.
TEST_F(AnotherUser, CannotStallTheForming) {
  const OtherUser stranger([](const Talk& talk) {
    const std::string name = talk.hear();
    std::deque<UniqueFd> held;
    for (bool told = false; !talk.something();) {
      held.push_back(new_local_socket());
      connect_local(held.back().get(), name);
      if (held.size() < 500) continue;
      held.pop_front();
      if (!told) talk.say("they have come");
      told = true;
    }
  });
  form_one_host([&](const std::vector<HostCard>& cards) {
    stranger.talk().say(cards[0].socket_name);
    EXPECT_EQ(stranger.talk().hear(), "they have come");
  });
  stranger.talk().say("end");
}

// Ranks of two users are told so by the kernel, whatever they know: they share no memory, and the group forms.
TEST_F(AnotherUser, AsARankIsAHostOfItsOwn) {
  test::StoreProcess process;
  const auto good = test::run_processes(3, [&](int rank) {
    if (rank == 1 && !test::become_nobody()) return false;
    const auto store = process.connect();
    const HostGroup group = form_host_group(*store, request_of(rank, 3));
    exchange(*store, "test", "done", rank, 3, "", std::chrono::milliseconds(kLongMs));
    return group.host_of == std::vector<int>{0, 1, 0};
  });
  EXPECT_EQ(good, std::vector<bool>(3, true));
}

// A store that keeps all that is ever written into it.
class OpenStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override {
    {
      const std::lock_guard lock(mutex_);
      seen_ += value;
    }
    below_.set(key, value);
  }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override { return below_.get(key, timeout); }
  std::int64_t add(std::string_view key, std::int64_t amount) override { return below_.add(key, amount); }
  void erase(std::string_view key) noexcept override { below_.erase(key); }
  bool has_seen(std::string_view what) const { return seen_.find(what) != std::string::npos; }

 private:
  MemoryStore below_;
  std::mutex mutex_;  // guards seen_ while ranks run
  std::string seen_;
};

// Who can read the store learns a secret that was made up, and never one that was given.
TEST(StoreReader, LearnsOnlyASecretThatWasMadeUp) {
  for (const std::string given : {"", "given to all ranks"}) {
    OpenStore store;
    std::vector<HostGroup> groups(2);
    const auto errors = test::run_threads(2, [&](int rank) {
      HostGroupRequest request = request_of(rank, 2);
      request.secret = given;
      groups[static_cast<std::size_t>(rank)] = form_host_group(store, request);
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
    for (const HostGroup& g : groups) EXPECT_EQ(store.has_seen(g.secret), given.empty());
  }
}

}  // namespace
}  // namespace tutti
