// Sends and receives, alone and among collectives.
#include <gtest/gtest.h>

#include <numeric>

#include "communicator/calls.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

std::vector<int> numbers(std::size_t count, int start) {
  std::vector<int> x(count);
  std::iota(x.begin(), x.end(), start);
  return x;
}

class PointToPoint : public testing::TestWithParam<int> {
 protected:
  static World world(int size) {
    World w;
    w.size = size;
    if (GetParam() > 1) w.host_of = [](int r) { return "host" + std::to_string(r % 2); };
    return w;
  }
};

TEST_P(PointToPoint, EverySizeBothWays) {
  run_ranks(world(2), [](Communicator& c) {
    const int peer = 1 - c.rank();
    for (const std::size_t count : {0UL, 1UL, 100UL, 2048UL, 2049UL, 100'000UL, 1'000'001UL}) {
      std::vector<int> out = numbers(count, c.rank() * 1000);
      std::vector<int> in(count, -1);
      const WorkPtr receive = c.irecv(in.data(), count, DataType::kInt32, peer, 5);
      c.send(out.data(), count, DataType::kInt32, peer, 5);
      receive->wait();
      ASSERT_EQ(in, numbers(count, peer * 1000)) << count;
      EXPECT_EQ(receive->source(), peer);
    }
  });
}

TEST_P(PointToPoint, CollectivesBetweenPostedMessagesDoNotDeadlock) {
  run_ranks(world(2), [](Communicator& c) {
    const int peer = 1 - c.rank();
    std::vector<int> in(200'000), out = numbers(in.size(), c.rank());
    std::vector<float> x(1000, 1);
    // Large sends on both ranks before either receives; and a receive, a collective, then the send.
    const WorkPtr sent = c.isend(out.data(), out.size(), DataType::kInt32, peer, 1);
    const WorkPtr received = c.irecv(in.data(), in.size(), DataType::kInt32, peer, 1);
    sent->wait();
    received->wait();
    EXPECT_EQ(in, numbers(in.size(), peer));
    int got = -1;
    const int give = c.rank() + 10;
    const WorkPtr late = c.irecv(&got, 1, DataType::kInt32, peer, 2);
    c.run(all_reduce(x));
    c.isend(&give, 1, DataType::kInt32, peer, 2)->wait();
    late->wait();
    EXPECT_EQ(got, peer + 10);
  });
}

TEST_P(PointToPoint, AnySourceTellsWhoSent) {
  run_ranks(world(4), [](Communicator& c) {
    if (c.rank() != 0) {
      const int value = c.rank() * 7;
      c.send(&value, 1, DataType::kInt32, 0, 3);
      return;
    }
    int seen = 0;
    for (int i = 1; i < c.size(); ++i) {
      int value = 0;
      const int from = c.recv(&value, 1, DataType::kInt32, kAnySource, 3);
      EXPECT_EQ(value, from * 7);
      seen |= 1 << from;
    }
    EXPECT_EQ(seen, 0b1110);
  });
}

TEST_P(PointToPoint, TheReceiverFindsAMismatchBeforeItWrites) {
  run_ranks(world(2), [](Communicator& c) {
    std::vector<int> x(8, 42);
    if (c.rank() == 0) {
      try {
        c.send(x.data(), 4, DataType::kInt32, 1, 0);
        c.recv(x.data(), 4, DataType::kInt32, 1, 1);  // or at the next call
        FAIL() << "the sender was not told";
      } catch (const Error& e) {
        EXPECT_TRUE(e.kind() == ErrorKind::kMismatch || e.kind() == ErrorKind::kPeerLost) << e.what();
      }
    } else {
      const Error error = error_of([&] { c.recv(x.data(), 5, DataType::kInt32, 0, 0); });
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << error.what();
      EXPECT_NE(std::string(error.what()).find("i32[4]"), std::string::npos) << error.what();
      EXPECT_EQ(x, std::vector<int>(8, 42));
    }
  });
}

TEST_P(PointToPoint, AnUnansweredReceiveTimesOut) {
  run_ranks(world(2), [](Communicator& c) {
    if (c.rank() == 0) {
      int x = 0;
      const WorkPtr work = c.irecv(&x, 1, DataType::kInt32, 1, 0, std::chrono::milliseconds(200));
      const Error error = error_of([&] { work->wait(); });
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
      EXPECT_NE(std::string(error.what()).find("recv i32[1]"), std::string::npos) << error.what();
    } else {
      int x = 0;
      EXPECT_NE(
          std::string(error_of([&] { c.recv(&x, 1, DataType::kInt32, 0, 9, std::chrono::milliseconds(5000)); }).what()),
          "");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, PointToPoint, testing::Values(1, 2));

}  // namespace
}  // namespace tutti::test
