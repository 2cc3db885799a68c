// Want of memory while a group is made, split or shrunk.
#include "communicator/communicator_impl.h"
#include "communicator/group_bootstrap.h"
#include "communicator/group_store.h"
#include "communicator/no_memory.h"
#include "communicator/subgroup.h"
#include "tutti/group_id.h"

namespace tutti::test {
namespace {

class NoMemoryForming : public RefusedMemory<> {};

TEST_F(NoMemoryForming, OfAGroupFromAStore) {
  Scene scene;
  scene.during = [](const Rank& rank, const Group&) { return rank.create(); };
  sweep_all(scene, {"aa", "ab", "aab"}, 20);
}

TEST_F(NoMemoryForming, OfASplit) {
  Scene scene;
  scene.before = [](const Rank& rank) { return rank.create(); };
  const std::string name = "a part whose name takes memory";
  scene.during = [&](const Rank& rank, const Group& parent) {
    return again(*parent, [&] { return split_group(*parent, 0, rank.rank, name); });
  };
  sweep_all(scene, {"aa", "ab"}, 10);
}

TEST_F(NoMemoryForming, OfASubgroup) {
  Scene scene;
  scene.before = [](const Rank& rank) { return rank.create(); };
  const std::vector<std::vector<int>> all{{}, {}, all_ranks(2), all_ranks(3)};
  scene.during = [&](const Rank& rank, const Group& parent) {
    return form_in(*parent, all[rank.layout.size()], "part", [&] { return rank.options(); });
  };
  sweep_all(scene, {"aa", "ab", "aab"}, 10);
}

// What rank 0 throws at the end of what forms, where its n-th allocation there is refused; the others have said their
// end by then. Empty where it throws nothing.
std::string end_without_memory(long n) {
  const std::string layout = "aab";
  MemoryStore below;
  std::barrier<> all(3);
  std::string thrown;
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      r == 0 ? count_me() : spare_me();
      const auto parent = std::dynamic_pointer_cast<CommunicatorImpl>(Rank{below, layout, r}.create());
      GroupStore store(parent, all_ranks(3), "part");
      store.set("rank " + std::to_string(r), "");
      for (int other = 0; other < 3; ++other) store.get("rank " + std::to_string(other), std::chrono::seconds(20));
      for (const int turn : {1, 2, 0}) {
        all.arrive_and_wait();
        if (turn != r) continue;
        std::optional<Refusal> refusal;
        if (r == 0) refusal.emplace(Of::kThisThread, Which::kOne, n);
        try {
          store.end(std::chrono::milliseconds(r == 0 ? 20'000 : 1));
        } catch (const std::exception& error) {
          if (r == 0) thrown = error.what();
        }
      }
      all.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

// Behind the last that rank 0 awaits may come what rank 1 does, over the same connection: without memory for that, rank
// 0 has all, and is to say why rank 1 has not. Who reads for whom follows from who dials whom, and so by chance.
TEST_F(NoMemoryForming, OfASubgroupForWhatIsAnothers) {
  const auto endpoint = keep_endpoint();
  for (int round = 0; round < 30; ++round) {
    for (long n = 1, refused = 1; refused != 0; ++n) {
      const std::string thrown = end_without_memory(n);
      refused = Refusal::refused();
      EXPECT_EQ(thrown.empty(), refused == 0) << "allocation " << n << ": " << thrown;
      const bool says = thrown.find("memory") != std::string::npos || thrown.find("bad_alloc") != std::string::npos;
      EXPECT_TRUE(thrown.empty() || says) << thrown;
      if (HasFailure()) return;
    }
  }
}

enum class First { kRecv, kAllReduce, kRecvInTime, kSubgroup };

// What rank 0 raises in a new part's first collective, message of rank 1, or subgroup, where it has had no memory for
// what rank 2 sent to it in the parent: both groups have the connection, and who reads one reads for the other. Rank 1
// has left by then, or never answers. Ranks have an endpoint each, as processes do.
Error first_call_of_who_starves(const std::string& layout, First call) {
  MemoryStore below;
  std::barrier<> all(3);
  std::optional<Error> raised;
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      r == 0 ? count_me() : spare_me();
      CommunicatorOptions options = Rank{below, layout, r}.options();
      options.config.heartbeat += std::chrono::milliseconds(r);
      const Group parent = Communicator::create(below, "parent", r, 3, options);
      Group part = form_in(*parent, all_ranks(3), "part", [&] { return options; });
      std::vector<float> x(1000);
      if (r == 2) part->send(x.data(), 1, DataType::kFloat32, 0, 7, {});
      if (r == 0) part->recv(x.data(), 1, DataType::kFloat32, 2, 7, {});
      all.arrive_and_wait();
      if (r == 2) parent->send(x.data(), x.size(), DataType::kFloat32, 0, 7, {});
      all.arrive_and_wait();
      if (r == 0) {
        const Refusal refusal(Of::kThisThread, Which::kOne, 1);
        Deadline deadline = Deadline::after(std::chrono::seconds(20));
        while (Refusal::refused() == 0 && !deadline.expired()) dynamic_cast<CommunicatorImpl&>(*part).port().progress();
        EXPECT_EQ(Refusal::refused(), 1);
      }
      all.arrive_and_wait();
      if (r == 1 && (call == First::kRecv || call == First::kAllReduce)) part.reset();
      all.arrive_and_wait();
      if (r == 0) {
        raised = error_of([&] {
          if (call == First::kSubgroup) EXPECT_FALSE(can_form_in(*part, all_ranks(3)));
          if (call == First::kSubgroup || call == First::kAllReduce) return part->run(all_reduce(x));
          const std::chrono::milliseconds timeout(call == First::kRecvInTime ? 50 : 20'000);
          part->recv(x.data(), x.size(), DataType::kFloat32, 1, 7, timeout);
        });
      }
      all.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *raised;
}

TEST_F(NoMemoryForming, IsTheCauseThatTheFirstCallTells) {
  for (const std::string layout : {"abc", "aab"}) {
    for (const First call : {First::kRecv, First::kAllReduce, First::kRecvInTime, First::kSubgroup}) {
      SCOPED_TRACE(layout + ", call " + std::to_string(static_cast<int>(call)));
      const Error error = first_call_of_who_starves(layout, call);
      const std::string text = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kExhausted) << text;
      EXPECT_NE(text.find("no memory for messages with rank 2"), std::string::npos) << text;
    }
  }
}

TEST_F(NoMemoryForming, OfAShrink) {
  Scene scene;
  scene.before = [](const Rank& rank) { return rank.create(); };
  scene.during = [](const Rank& rank, const Group& parent) {
    return parent->shrink(rank.store, "smaller", {}, nullptr);
  };
  sweep_all(scene, {"aa", "ab"}, 20);
}

}  // namespace
}  // namespace tutti::test
