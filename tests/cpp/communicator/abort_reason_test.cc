// Why a rank has aborted the group is said on all hosts, with the rank that did.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

// What the others' calls raise when rank 0 aborts, instead of the last of a few of them.
std::vector<std::string> errors_of_abort(int size, const std::function<int(int)>& host_of, const std::string& reason) {
  World world;
  world.size = size;
  world.host_of = [&host_of](int rank) { return "host" + std::to_string(host_of(rank)); };
  std::vector<std::string> errors;
  world.errors = &errors;
  run_ranks(world, [&](Communicator& c) {
    std::vector<float> x(1000, 1);
    Call call;
    call.collective = Collective::kAllReduce;
    call.dtype = DataType::kFloat32;
    call.count = x.size();
    call.input = call.output = Blocks::single(x.data(), x.size() * sizeof(float));
    for (int i = 0; i < 3; ++i) c.run(call);
    if (c.rank() == 0) c.abort(reason);
    c.run(call);
  });
  return errors;
}

// Also with one that hears of it from another rank of its host, as the third host does of two on the second.
TEST(AbortReason, IsSaidOnAllHosts) {
  for (const std::string layout : {"ab", "abab", "abc", "ababa", "abbc", "abbbcc"}) {
    const auto host_of = [&layout](int rank) { return layout[static_cast<std::size_t>(rank)] - 'a'; };
    const auto errors = errors_of_abort(static_cast<int>(layout.size()), host_of, "the loss is NaN");
    for (std::size_t rank = 1; rank < layout.size(); ++rank) {
      const std::string& error = errors[rank];
      EXPECT_NE(error.find("rank 0"), std::string::npos) << error;
      EXPECT_NE(error.find("gave up: it aborted the group: the loss is NaN"), std::string::npos)
          << layout << ", rank " << rank << ": " << error;
    }
  }
}

// Rank 1 alone has a link to rank 0; rank 2 hears of the abort from rank 1 of its host, and rank 3 from rank 2.
TEST(AbortReason, WhoPassesItOnHasNotAborted) {
  World world;
  world.size = 4;
  world.host_of = [](int rank) { return std::string("host ") + "abbc"[rank]; };
  std::vector<std::string> errors;
  world.errors = &errors;
  run_ranks(world, [&](Communicator& c) {
    int token = 0;
    const auto give = [&](int peer) { c.send(&token, 1, DataType::kInt32, peer, 0, {}); };
    const auto take = [&](int peer) { c.recv(&token, 1, DataType::kInt32, peer, 0, {}); };
    c.rank() % 2 == 0 ? give(c.rank() + 1) : take(c.rank() - 1);
    if (c.rank() == 0) return c.abort("the loss is NaN");
    take(c.rank() - 1);
  });
  for (std::size_t rank = 1; rank < 4; ++rank) {
    EXPECT_NE(errors[rank].find("rank 0 gave up: it aborted the group: the loss is NaN"), std::string::npos)
        << "rank " << rank << ": " << errors[rank];
  }
}

// What a rank hears that has had no connection to rank 0, and asks for one when that one is gone.
std::string late_error(const std::function<void(Communicator&)>& end_of_rank_0) {
  MemoryStore store;
  const auto make = [&store](int rank) {
    CommunicatorOptions options;
    options.timeout = std::chrono::milliseconds(20'000);
    options.config.log_level = "error";
    options.config.host_id = "host " + std::to_string(rank);
    return Communicator::create(store, "test", rank, 2, options);
  };
  std::shared_ptr<Communicator> waiting;
  {
    std::thread other([&] { waiting = make(1); });
    const auto c = make(0);
    other.join();
    end_of_rank_0(*c);
  }
  int token = 0;
  const Error error = error_of([&] { waiting->recv(&token, 1, DataType::kInt32, 0, 0, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  return error.what();
}

TEST(AbortReason, IsSaidToWhoComesLater) {
  const std::string error = late_error([](Communicator& c) { c.abort("the loss is NaN"); });
  EXPECT_NE(error.find("rank 0 gave up: it aborted the group: the loss is NaN"), std::string::npos) << error;
}

TEST(AbortReason, ACleanEndIsSaidToWhoComesLater) {
  const std::string error = late_error([](Communicator& c) { c.shutdown(); });
  EXPECT_NE(error.find("rank 0 has left the group"), std::string::npos) << error;
}

int apart(int rank) { return rank; }

// What comes from another machine is bounded, and one line.
TEST(AbortReason, IsOneBoundedLine) {
  const auto errors = errors_of_abort(2, apart, "a\nb" + std::string(10'000, 'x'));
  EXPECT_NE(errors[1].find("rank 0 gave up: it aborted the group: a?b" + std::string(61, 'x') + "."), std::string::npos)
      << errors[1];
  std::string letters = "x";
  for (int i = 0; i < 40; ++i) letters += "\u043f";
  const auto cut = errors_of_abort(2, apart, letters);
  EXPECT_NE(cut[1].find("the group: " + letters.substr(0, 63) + "."), std::string::npos) << cut[1];
  const auto silent = errors_of_abort(2, apart, "");
  EXPECT_NE(silent[1].find("rank 0 gave up: it aborted the group."), std::string::npos) << silent[1];
}

}  // namespace
}  // namespace tutti::test
