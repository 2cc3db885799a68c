// What the table of strangers (docs/concepts.md) says of a group that lives: what its store has seen, where it can be
// reached from the network, and what another user of the machine may ring.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <barrier>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "base/secret.h"
#include "bootstrap/forwarding_store.h"
#include "bootstrap/ranks.h"
#include "communicator/thread_ranks.h"
#include "net/address.h"
#include "support/other_user.h"
#include "tutti/group_id.h"

namespace tutti::test {
namespace {

// All that ranks have written into a store.
struct Written {
  std::mutex mutex;
  std::string text;
};

class RecordingStore final : public ForwardingStore {
 public:
  RecordingStore(Store& below, Written& written) : ForwardingStore(below), written_(written) {}
  void set(std::string_view key, std::string_view value) override {
    {
      const std::lock_guard lock(written_.mutex);
      (written_.text += key) += value;
    }
    ForwardingStore::set(key, value);
  }

 private:
  Written& written_;
};

void call_all(Communicator& group) {
  std::vector<float> x(50'000, 1.0F);
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kFloat32;
  call.count = x.size();
  call.input = call.output = Blocks::single(x.data(), x.size() * sizeof(float));
  group.run(call);
  ASSERT_EQ(x.front(), static_cast<float>(group.size()));
  float token = 1;
  const int next = (group.rank() + 1) % group.size();
  if (group.rank() == 0) group.send(&token, 1, DataType::kFloat32, next, 0, {});
  if (group.rank() == 1) group.recv(&token, 1, DataType::kFloat32, 0, 0, {});
}

// Ranks on `hosts` form a group with this secret, use it, and shrink it; `meanwhile` on rank 0 while all have it.
void live(int ranks, int hosts, const std::string& secret, Written& written, const std::function<void()>& meanwhile) {
  MemoryStore memory;
  std::barrier meet(ranks);
  const auto live_as = [&](int rank) {
    RecordingStore store(memory, written);
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(20);
    options.config.log_level = "error";
    options.config.secret = secret;
    options.config.host_id = "host " + std::to_string(rank % hosts);
    const auto group = Communicator::create(store, "group", rank, ranks, options);
    call_all(*group);
    meet.arrive_and_wait();  // what shrinks ends the calls of the group
    const auto smaller = group->shrink(store, "smaller", std::chrono::seconds(20), nullptr);
    call_all(*smaller);
    meet.arrive_and_wait();
    if (rank == 0) meanwhile();
    meet.arrive_and_wait();
  };
  const auto errors = run_threads(ranks, [&](int rank) {
    try {
      live_as(rank);
    } catch (...) {
      meet.arrive_and_drop();
      throw;
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(ranks)));
}

TEST(Strangers, ASecretThatWasGivenNeverEntersTheStore) {
  for (const int hosts : {1, 2}) {
    const std::string secret = "open sesame " + random_secret();
    Written given, made_up;
    live(4, hosts, secret, given, [] {});
    EXPECT_EQ(given.text.find(secret), std::string::npos);
    EXPECT_EQ(given.text.find(secret.substr(12)), std::string::npos) << "a part of it";
    live(4, hosts, "", made_up, [] {});
    EXPECT_GE(made_up.text.size(), given.text.size() + 32) << "one that was made up is not there either: who looks?";
  }
}

TEST(Strangers, AGroupOnOneHostOpensNoPort) {
  Written unused;
  ASSERT_TRUE(soon([] { return listening_sockets() == 0; })) << "what earlier tests have left";
  live(4, 1, "", unused, [] { EXPECT_EQ(listening_sockets(), 0); });
  live(4, 2, "", unused, [] { EXPECT_GE(listening_sockets(), 1) << "of two hosts: nothing would be seen"; });
}

// The store of an id, while rank 0 waits there for the other, and what is left of it once the group has formed.
void form_by_an_id(const std::string& address, const std::function<void(const std::vector<SocketAddress>&)>& look) {
  ASSERT_TRUE(soon([] { return listening_sockets() == 0; })) << "what earlier tests have left";
  const GroupId id = make_group_id(Config{}, address);
  look(listening_addresses());
  std::barrier formed(2);
  const auto errors = run_threads(2, [&](int rank) {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(20);
    options.config.log_level = "error";
    if (rank == 1) look(listening_addresses());
    const auto group = join_group(id, rank, 2, options);
    formed.arrive_and_wait();
    if (rank == 0) {
      EXPECT_TRUE(soon([] { return listening_sockets() == 0; })) << "it is on one host";
    }
    formed.arrive_and_wait();
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(Strangers, TheStoreOfAnIdOfLocalhostIsOpenToThisMachineAlone) {
  for (const std::string address : {"localhost", "127.0.0.1"}) {
    form_by_an_id(address, [&](const std::vector<SocketAddress>& listening) {
      EXPECT_EQ(listening.size(), 1U);
      for (const SocketAddress& at : listening) EXPECT_TRUE(at.loopback()) << address << ": " << at.text();
    });
  }
  // Of another address it is open to the network: there it could be seen.
  form_by_an_id(host_name(), [&](const std::vector<SocketAddress>& listening) {
    ASSERT_EQ(listening.size(), 1U);
    EXPECT_FALSE(listening.front().loopback()) << listening.front().text();
  });
}

// The sockets of this machine whose names, of five characters, the system has chosen: "socket:[inode]" by name.
std::map<std::string, std::string> named_by_the_system() {
  std::ifstream sockets("/proc/net/unix");
  std::map<std::string, std::string> named;
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream fields(line);
    std::string skipped, inode, name;
    for (int field = 0; field < 6; ++field) fields >> skipped;
    if (fields >> inode >> name && name.size() == 6 && name[0] == '@') named[name.substr(1)] = "socket:[" + inode + "]";
  }
  return named;
}

// Those that other processes have: what a test must leave alone.
std::set<std::string> named_for_others() {
  std::set<std::string> own, others;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    own.insert(std::filesystem::read_symlink(fd.path(), gone).string());
  }
  for (const auto& [name, socket] : named_by_the_system()) {
    if (!own.contains(socket)) others.insert(name);
  }
  return others;
}

// Rings each bell once but `others`. How many there were.
int ring_all(int socket, const std::set<std::string>& others) {
  int rung = 0;
  for (const auto& [name, of] : named_by_the_system()) {
    if (others.contains(name)) continue;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    rung += ::sendto(socket, "", 1, 0, reinterpret_cast<const sockaddr*>(&address), length) == 1 ? 1 : 0;
  }
  return rung;
}

// Rank 1 waits for its host and for another at once, first until its bell has been rung; so does rank 0 in the
// reduction.
TEST(Strangers, WhoRingsABellCostsALook) {
  if (!may_be_another_user()) GTEST_SKIP() << "only root can play another user";
  const OtherUser stranger([others = named_for_others()](const Talk& talk) {
    const UniqueFd own(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    for (bool told = false; !talk.something();) {
      if (ring_all(own.get(), others) == 0 || told) continue;
      talk.say("has rung");
      told = true;
    }
  });
  World world;
  world.size = 3;
  world.host_of = [](int rank) { return rank < 2 ? "one" : "other"; };
  run_ranks(world, [&](Communicator& group) {
    for (int round = 1; round <= 20; ++round) {
      auto token = static_cast<float>(group.rank() == 2 ? round : 0);
      if (group.rank() == 2) {
        if (round == 1) {
          EXPECT_EQ(stranger.talk().hear(10'000), "has rung");
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        group.send(&token, 1, DataType::kFloat32, 1, 0, {});
      } else if (group.rank() == 1) {
        group.recv(&token, 1, DataType::kFloat32, 2, 0, {});
        EXPECT_EQ(token, static_cast<float>(round));
      }
      call_all(group);
    }
  });
  stranger.talk().say("end");
}

}  // namespace
}  // namespace tutti::test
