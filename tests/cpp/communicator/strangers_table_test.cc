// What the table of strangers (docs/concepts.md) says of a group that lives: what its store has seen, and where it can
// be reached from the network.
#include <gtest/gtest.h>

#include <barrier>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/secret.h"
#include "bootstrap/forwarding_store.h"
#include "bootstrap/ranks.h"
#include "communicator/thread_ranks.h"

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

}  // namespace
}  // namespace tutti::test
