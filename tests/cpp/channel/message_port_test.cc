// What the message port promises, one promise a test, over the simulated network.
#include "channel/message_port.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "channel/message_frame.h"
#include "channel/sim_ports.h"

namespace tutti::test {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 8, kEagerBytes - 1, kEagerBytes, kEagerBytes + 1, 8192, 200'001};

TEST(MessagePort, CarriesEverySizeWhoeverIsFirst) {
  for (const std::size_t bytes : kSizes) {
    for (const bool receive_first : {false, true}) {
      SimPorts ports(2);
      Parcel out(pattern(1, bytes));
      Parcel in(bytes);
      if (receive_first) in.recv(ports[1], 0, 3);
      out.send(ports[0], 1, 3);
      if (!receive_first) {
        ports.settle();
        EXPECT_FALSE(in.op.done());
        in.recv(ports[1], 0, 3);
      }
      ASSERT_TRUE(ports.run_until([&] { return out.ok() && in.ok(); })) << bytes;
      EXPECT_EQ(in.data, out.data);
      EXPECT_EQ(in.op.source, 0);
      EXPECT_EQ(ports[0].pending() + ports[1].pending(), 0);
    }
  }
}

TEST(MessagePort, SmallSendEndsWithoutAReceiver) {
  SimPorts ports(2);
  Parcel small(kEagerBytes);
  Parcel large(kEagerBytes + 1);
  small.send(ports[0], 1, 1);
  large.send(ports[0], 1, 1);
  ports.settle();
  EXPECT_TRUE(small.ok());
  EXPECT_FALSE(large.op.done());
}

TEST(MessagePort, SameTagKeepsTheOrderOfPosting) {
  SimPorts ports(2);
  std::vector<std::unique_ptr<Parcel>> out;
  std::vector<std::unique_ptr<Parcel>> in;
  for (std::size_t i = 0; i < 12; ++i) {
    const std::size_t bytes = kSizes[(i * 5) % std::size(kSizes)];
    out.push_back(std::make_unique<Parcel>(pattern(i, bytes)));
    in.push_back(std::make_unique<Parcel>(bytes));
    if (i < 6) in.back()->recv(ports[1], 0, 9);
  }
  for (auto& p : out) p->send(ports[0], 1, 9);
  ports.settle();
  for (std::size_t i = 6; i < 12; ++i) in[i]->recv(ports[1], 0, 9);
  ASSERT_TRUE(ports.run_until([&] { return std::all_of(in.begin(), in.end(), [](auto& p) { return p->ok(); }); }));
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(in[i]->data, out[i]->data) << i;
}

// A large message that nobody has received must not stand in the way of a later one.
TEST(MessagePort, TagsOvertakeUnreceivedLargeMessages) {
  SimPorts ports(2);
  Parcel big(pattern(1, 1 << 20));
  Parcel small(pattern(2, 8));
  Parcel other(pattern(3, 1 << 20));
  big.send(ports[0], 1, 1);
  small.send(ports[0], 1, 2);
  other.send(ports[0], 1, 3);
  Parcel in2(8);
  Parcel in3(1 << 20);
  Parcel in1(1 << 20);
  in2.recv(ports[1], 0, 2);
  ASSERT_TRUE(ports.run_until([&] { return in2.ok(); }));
  EXPECT_FALSE(big.op.done());
  in3.recv(ports[1], 0, 3);
  ASSERT_TRUE(ports.run_until([&] { return in3.ok() && other.ok(); }));
  in1.recv(ports[1], 0, 1);
  ASSERT_TRUE(ports.run_until([&] { return in1.ok() && big.ok(); }));
  EXPECT_EQ(in1.data, big.data);
  EXPECT_EQ(in2.data, small.data);
  EXPECT_EQ(in3.data, other.data);
}

TEST(MessagePort, BothRanksSendLargeBeforeTheyReceive) {
  SimPorts ports(2);
  Parcel out0(pattern(1, 1 << 20)), out1(pattern(2, 1 << 20)), in0(1 << 20), in1(1 << 20);
  out0.send(ports[0], 1, 0);
  out1.send(ports[1], 0, 0);
  ports.settle();
  in0.recv(ports[0], 1, 0);
  in1.recv(ports[1], 0, 0);
  ASSERT_TRUE(ports.run_until([&] { return in0.ok() && in1.ok() && out0.ok() && out1.ok(); }));
  EXPECT_EQ(in0.data, out1.data);
  EXPECT_EQ(in1.data, out0.data);
}

// Control frames and small messages go between the fragments of a large one.
TEST(MessagePort, SmallMessageDoesNotWaitForALargeOne) {
  SimPorts ports(2);
  Parcel big(pattern(1, 8 << 20)), small(pattern(2, 8)), in_big(8 << 20), in_small(8);
  in_big.recv(ports[1], 0, 1);
  in_small.recv(ports[1], 0, 2);
  big.send(ports[0], 1, 1);
  ASSERT_TRUE(ports.run_until([&] { return in_big.op.moved > 0; }));
  small.send(ports[0], 1, 2);
  ASSERT_TRUE(ports.run_until([&] { return in_small.ok(); }));
  EXPECT_FALSE(in_big.op.done());
  ASSERT_TRUE(ports.run_until([&] { return in_big.ok(); }));
  EXPECT_EQ(in_big.data, big.data);
}

TEST(MessagePort, AnySourceTakesMessagesAsTheyCame) {
  for (const std::size_t bytes : {std::size_t{8}, kEagerBytes + 1}) {
    SimPorts ports(3);
    std::vector<std::unique_ptr<Parcel>> out;
    for (const int from : {2, 1, 2}) {
      out.push_back(std::make_unique<Parcel>(pattern(out.size(), bytes)));
      out.back()->send(ports[from], 0, 4);
      ports.settle();
    }
    const int expected[] = {2, 1, 2};
    for (std::size_t i = 0; i < 3; ++i) {
      Parcel in(bytes);
      in.recv(ports[0], kAnySource, 4);
      ASSERT_TRUE(ports.run_until([&] { return in.ok(); }));
      EXPECT_EQ(in.op.source, expected[i]);
      EXPECT_EQ(in.data, out[i]->data);
    }
  }
}

TEST(MessagePort, OldestReceiveTakesTheMessage) {
  SimPorts ports(3);
  Parcel from1(8), any(8), later1(8), out(pattern(1, 8)), out2(pattern(2, 8));
  any.recv(ports[0], kAnySource, 4);
  from1.recv(ports[0], 1, 4);
  out.send(ports[1], 0, 4);
  ASSERT_TRUE(ports.run_until([&] { return any.ok(); }));
  EXPECT_EQ(any.op.source, 1);
  EXPECT_FALSE(from1.op.done());
  Parcel any2(8);
  any2.recv(ports[0], kAnySource, 4);
  out2.send(ports[1], 0, 4);
  ASSERT_TRUE(ports.run_until([&] { return from1.ok(); }));
  EXPECT_FALSE(any2.op.done());
  EXPECT_EQ(from1.data, out2.data);
}

TEST(MessagePort, MessagesToOneself) {
  for (const std::size_t bytes : kSizes) {
    for (const bool receive_first : {false, true}) {
      for (const int source : {1, kAnySource}) {
        SimPorts ports(2);
        Parcel out(pattern(5, bytes)), in(bytes);
        if (receive_first) in.recv(ports[1], source, 6);
        out.send(ports[1], 1, 6);
        EXPECT_EQ(out.op.done(), receive_first || bytes <= kEagerBytes);
        if (!receive_first) in.recv(ports[1], source, 6);
        ASSERT_TRUE(out.ok() && in.ok());
        EXPECT_EQ(in.data, out.data);
        EXPECT_EQ(in.op.source, 1);
      }
    }
  }
}

TEST(MessagePort, AGroupOfOne) {
  SimPorts ports(1);
  Parcel out(pattern(5, 100)), in(100);
  out.send(ports[0], 0, 1);
  in.recv(ports[0], kAnySource, 1);
  EXPECT_TRUE(out.ok() && in.ok());
  EXPECT_FALSE(ports[0].progress());
}

// The memory for messages without a receive is bounded: beyond the window small sends wait for their receives too.
TEST(MessagePort, UnreceivedSmallMessagesAreBounded) {
  SimPorts ports(2);
  constexpr std::size_t kCount = 240;  // of 32 KB: more than the window of 4 MB
  std::vector<std::unique_ptr<Parcel>> out;
  for (std::size_t i = 0; i < kCount; ++i) {
    out.push_back(std::make_unique<Parcel>(pattern(i, kEagerBytes)));
    out.back()->send(ports[0], 1, 1);
  }
  ports.settle();
  const auto left = std::count_if(out.begin(), out.end(), [](auto& p) { return !p->op.done(); });
  EXPECT_GT(left, 100);
  for (std::size_t i = 0; i < kCount; ++i) {
    Parcel in(kEagerBytes);
    in.recv(ports[1], 0, 1);
    ASSERT_TRUE(ports.run_until([&] { return in.ok(); }));
    ASSERT_EQ(in.data, out[i]->data) << i;
  }
  ASSERT_TRUE(ports.run_until([&] { return ports[0].pending() == 0; }));
  Parcel again(kEagerBytes);
  again.send(ports[0], 1, 1);
  ports.settle();
  EXPECT_TRUE(again.ok()) << "the window has opened again";
}

TEST(MessagePort, ReceivesThatWaitedOpenTheWindow) {
  SimPorts ports(2);
  for (std::size_t i = 0; i < 700; ++i) {
    Parcel out(kEagerBytes), in(kEagerBytes), answer(8), answered(8);
    in.recv(ports[1], 0, 1);
    out.send(ports[0], 1, 1);
    answered.recv(ports[0], 1, 2);  // what was taken is said by what is sent back
    ASSERT_TRUE(ports.run_until([&] { return in.ok(); })) << i;
    answer.send(ports[1], 0, 2);
    ASSERT_TRUE(ports.run_until([&] { return answered.ok() && answer.ok() && out.ok(); })) << i;
  }
  Parcel again(kEagerBytes);
  again.send(ports[0], 1, 1);
  ports.settle();
  EXPECT_TRUE(again.ok());
}

TEST(MessagePort, OnDoneIsCalledOnceAndBeforeDone) {
  SimPorts ports(2);
  int calls = 0;
  Parcel out(8), in(8);
  in.op.on_done = [&](MessageOp& op) {
    ++calls;
    EXPECT_TRUE(op.outcome.ok());
    EXPECT_FALSE(op.done());
    EXPECT_EQ(ports[1].pending(), 0) << "the port's lock is free";
  };
  in.recv(ports[1], 0, 1);
  out.send(ports[0], 1, 1);
  ASSERT_TRUE(ports.run_until([&] { return in.op.done(); }));
  ports.settle();
  EXPECT_EQ(calls, 1);
}

TEST(MessagePort, OnDoneMayPostTheNextOp) {
  SimPorts ports(2);
  Parcel out1(pattern(1, 8)), out2(pattern(2, 8)), in1(8), in2(8);
  in1.op.on_done = [&](MessageOp&) { in2.recv(ports[1], 0, 1); };
  in1.recv(ports[1], 0, 1);
  out1.send(ports[0], 1, 1);
  out2.send(ports[0], 1, 1);
  ASSERT_TRUE(ports.run_until([&] { return in1.ok() && in2.ok(); }));
  EXPECT_EQ(in2.data, out2.data);
}

TEST(MessagePort, PeerThatDoesNotSpeakTheProtocolIsInternal) {
  SimPorts ports(2);
  Parcel in(8);
  in.recv(ports[0], 1, 1);
  const std::vector<std::byte> noise = pattern(1, 1000);
  std::size_t sent = 0;
  while (sent < noise.size()) {
    sent += ports.network.transport(1).link(0)->write_some(ConstBytes(noise).subspan(sent), {});
    ports.network.advance();
    ports[0].progress();
    if (in.op.done()) break;
  }
  ASSERT_TRUE(ports.run_until([&] { return in.op.done(); }));
  EXPECT_TRUE(in.ended(Status::kInternal, 1));
}

// Past the window even messages without a payload are announced.
TEST(MessagePort, EmptyMessagesPastTheWindowArrive) {
  constexpr std::size_t kCount = kEagerWindow / eager_cost(0) + 3;
  SimPorts ports(2);
  std::deque<Parcel> sent;
  std::deque<Parcel> got;
  for (std::size_t i = 0; i < kCount; ++i) sent.emplace_back(0).send(ports[0], 1, 7);
  ports.settle();
  EXPECT_FALSE(sent.back().op.done()) << "the window bounds empty messages too";
  for (std::size_t i = 0; i < kCount; ++i) got.emplace_back(0).recv(ports[1], 0, 7);
  const auto all_done = [](const Parcel& p) { return p.op.done(); };
  ASSERT_TRUE(ports.run_until([&] {
    return std::all_of(sent.rbegin(), sent.rend(), all_done) && std::all_of(got.rbegin(), got.rend(), all_done);
  }));
  for (const Parcel& p : got) ASSERT_TRUE(p.ok());
  for (const Parcel& p : sent) ASSERT_TRUE(p.ok());
}

}  // namespace
}  // namespace tutti::test
