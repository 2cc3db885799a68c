// Mismatches, cancelled messages, dead peers and failed ports, over the simulated network.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "channel/farewell.h"
#include "channel/message_frame.h"
#include "channel/sim_ports.h"
#include "support/child_process.h"
#include "support/sanitized.h"

namespace tutti::test {
namespace {

constexpr std::size_t kSmall = 64;
constexpr std::size_t kLarge = 300'000;

bool untouched(const Parcel& p) {
  return std::all_of(p.data.begin(), p.data.end(), [](std::byte b) { return b == std::byte{}; });
}

TEST(MessageMismatch, DtypeOrSizeRaisesOnBothSidesAndWritesNothing) {
  for (const std::size_t bytes : {kSmall, kLarge}) {
    for (const bool receive_first : {false, true}) {
      for (const bool size_differs : {false, true}) {
        SimPorts ports(2);
        Parcel out(pattern(1, bytes)), in(size_differs ? bytes - 4 : bytes);
        const DataType dtype = size_differs ? DataType::kFloat32 : DataType::kInt32;
        if (receive_first) in.recv(ports[1], 0, 5, DataType::kFloat32);
        out.send(ports[0], 1, 5, dtype);
        if (!receive_first) ports.settle();
        if (!receive_first) in.recv(ports[1], 0, 5, DataType::kFloat32);
        ASSERT_TRUE(ports.run_until([&] { return in.op.done() && out.op.done(); }));
        EXPECT_TRUE(in.ended(Status::kMismatch, 0));
        EXPECT_TRUE(untouched(in));
        EXPECT_EQ(in.op.remote.count, bytes / 4);
        EXPECT_EQ(in.op.remote.dtype, static_cast<std::uint8_t>(dtype));
        ports.settle();
        Parcel later(8);  // a small send has ended well before the receiver could object: the next call raises
        later.send(ports[0], 1, 6);
        const Parcel& raised = bytes == kSmall ? later : out;
        EXPECT_TRUE(raised.ended(Status::kMismatch, 1));
        EXPECT_EQ(describe(raised.op.record), describe(record_of(kCallSend, bytes, 5, dtype)));
        EXPECT_EQ(describe(raised.op.remote), describe(record_of(kCallRecv, in.data.size(), 5, DataType::kFloat32)));
        Parcel next(8);
        next.send(ports[0], 1, 7);
        ports.settle();
        EXPECT_TRUE(next.ok()) << "it is told once";
      }
    }
  }
}

// A sender that already waits for something else must not wait for its whole timeout.
TEST(MessageMismatch, LateRefusalEndsTheOldestWaitingOp) {
  SimPorts ports(3);
  Parcel out(kSmall), wrong(kSmall + 8), waiting(8), younger(8);
  out.send(ports[0], 1, 5);
  waiting.recv(ports[0], 2, 1);
  younger.recv(ports[0], 1, 2);
  ports.settle();
  ASSERT_TRUE(out.ok());
  wrong.recv(ports[1], 0, 5);
  ASSERT_TRUE(ports.run_until([&] { return waiting.op.done(); }));
  EXPECT_TRUE(waiting.ended(Status::kMismatch, 1));
  EXPECT_EQ(describe(waiting.op.record), describe(record_of(kCallSend, kSmall, 5)));
  EXPECT_FALSE(younger.op.done());
}

TEST(MessageMismatch, CollectivesCompareHashAndSequence) {
  for (const int what : {0, 1, 2}) {
    SimPorts ports(2);
    Parcel out(kSmall), in(kSmall);
    CallRecord mine;
    mine.sequence = 7;
    mine.hash = 1234;
    CallRecord theirs = mine;
    if (what == 1) theirs.hash = 99;
    if (what == 2) theirs.sequence = 8;
    const std::uint64_t tag = kCollectiveTag | 7;
    ports[1].post_recv(in.op, 0, tag, in.data.data(), in.data.size(), mine);
    ports[0].post_send(out.op, 1, tag, out.data.data(), out.data.size(), theirs);
    ASSERT_TRUE(ports.run_until([&] { return in.op.done(); }));
    EXPECT_EQ(in.op.outcome.status, what == 0 ? Status::kOk : Status::kMismatch) << what;
  }
}

TEST(MessageMismatch, ToOneself) {
  for (const std::size_t bytes : {kSmall, kLarge}) {
    SimPorts ports(1);
    Parcel out(bytes), in(bytes - 1), later(8);
    out.send(ports[0], 0, 1);
    in.recv(ports[0], 0, 1);
    EXPECT_TRUE(in.ended(Status::kMismatch, 0));
    later.recv(ports[0], 0, 2);
    EXPECT_TRUE((bytes == kSmall ? later : out).ended(Status::kMismatch, 0));
  }
}

// Cancels one side of a message after `steps` steps. What then happens to its memory must not show on the other side,
// and the memory of a receive must stay as it is. Returns whether the op was unfinished until then.
bool cancel_after(int steps, std::uint64_t seed, bool cancel_send, bool receive_first) {
  constexpr std::size_t kBytes = 100'000;
  SimPorts ports(2, {.seed = seed, .max_delay_ns = 100});
  auto out = std::make_unique<Parcel>(pattern(1, kBytes));
  auto in = std::make_unique<Parcel>(kBytes);
  const std::vector<std::byte> sent = out->data;
  if (receive_first) in->recv(ports[1], 0, 1);
  out->send(ports[0], 1, 1);
  if (!receive_first) {
    ports.settle();
    in->recv(ports[1], 0, 1);
  }
  for (int i = 0; i < steps; ++i) ports.step();
  Parcel& victim = cancel_send ? *out : *in;
  std::unique_ptr<Parcel>& other = cancel_send ? in : out;
  const bool unfinished = !victim.op.done();
  const bool unmatched = victim.op.phase == MessagePhase::kPosted;
  ports[cancel_send ? 0 : 1].cancel(victim.op);
  EXPECT_EQ(victim.op.outcome.status, unfinished ? Status::kAborted : Status::kOk);
  std::fill(victim.data.begin(), victim.data.end(), std::byte{0xee});
  const std::vector<std::byte> mark = victim.data;
  Parcel instead(kBytes);  // the message that no receive has been cancelled for is still there to take
  if (unmatched) instead.recv(ports[1], 0, 1);
  EXPECT_TRUE(ports.run_until([&] { return other->op.done(); }));
  EXPECT_TRUE(other->ok() || other->op.outcome.status == Status::kPeerFailed);
  EXPECT_TRUE(!cancel_send || !other->ok() || other->data == sent);
  other.reset();  // done means that the port has let go of it
  Parcel next_out(pattern(2, kBytes)), next_in(kBytes);
  next_out.send(ports[0], 1, 2);
  next_in.recv(ports[1], 0, 2);
  EXPECT_TRUE(ports.run_until([&] { return next_out.ok() && next_in.ok(); })) << "the link is no longer in step";
  EXPECT_EQ(next_in.data, next_out.data);
  EXPECT_EQ(victim.data, mark);
  return unfinished;
}

void cancel_after_every_step(bool cancel_send, bool receive_first) {
  if (kThreadSanitizer) GTEST_SKIP() << "has one thread";
  bool unfinished = true;
  for (int steps = 0; unfinished; ++steps) {
    ASSERT_LT(steps, 5000);
    unfinished = false;
    for (std::uint64_t k = 0; k < (kSanitized ? 2 : 16); ++k) {
      const std::uint64_t seed = static_cast<std::uint64_t>(steps) * 16 + k;
      SCOPED_TRACE("steps " + std::to_string(steps) + " seed " + std::to_string(seed));
      unfinished |= cancel_after(steps, seed, cancel_send, receive_first);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(MessageCancel, SendAtEveryStep) {
  for (const bool receive_first : {true, false}) cancel_after_every_step(true, receive_first);
}

TEST(MessageCancel, ReceiveAtEveryStep) {
  for (const bool receive_first : {true, false}) cancel_after_every_step(false, receive_first);
}

TEST(MessageCancel, SmallReceiveAtEveryStepLeavesItsMemory) {
  for (int steps = 0; steps < 60; ++steps) {
    SimPorts ports(2, {.seed = static_cast<std::uint64_t>(steps)});
    Parcel out(pattern(1, 5000)), in(5000);
    out.send(ports[0], 1, 1);
    in.recv(ports[1], 0, 1);
    for (int i = 0; i < steps; ++i) ports.step();
    ports[1].cancel(in.op);
    const std::vector<std::byte> mark = in.data;
    ports.settle();
    EXPECT_EQ(in.data, mark);
    EXPECT_EQ(ports[0].pending() + ports[1].pending(), 0);
  }
}

// The link is full somewhere within the message's first frame, which must be finished all the same.
TEST(MessageCancel, SendWhoseFirstFrameIsHalfWritten) {
  for (const std::size_t bytes : {std::size_t{500}, std::size_t{100'000}})
    for (std::size_t filling = kLinkSlack - 900; filling < kLinkSlack; filling += 9) {
      SimPorts ports(2, {.capacity = kLinkSlack});
      Parcel first(pattern(1, filling)), victim(pattern(2, bytes)), in_first(filling), in(bytes);
      const std::vector<std::byte> sent = victim.data;
      first.send(ports[0], 1, 1);
      victim.send(ports[0], 1, 1);
      const bool cancelled = !victim.op.done();
      ports[0].cancel(victim.op);
      std::fill(victim.data.begin(), victim.data.end(), std::byte{0xee});
      in_first.recv(ports[1], 0, 1);
      in.recv(ports[1], 0, 1);
      ASSERT_TRUE(ports.run_until([&] { return in_first.ok() && in.op.done(); })) << filling;
      EXPECT_EQ(in_first.data, first.data);
      EXPECT_TRUE(in.ok() ? in.data == sent : cancelled && in.ended(Status::kPeerFailed, 0));
    }
}

// It had its place in the order: the receive that it was for fails instead of taking the next message.
TEST(MessageCancel, AnnouncedSendKeepsItsPlace) {
  SimPorts ports(2);
  Parcel first(kLarge), second(pattern(2, kSmall)), in1(kLarge), in2(kSmall);
  first.send(ports[0], 1, 1);
  second.send(ports[0], 1, 1);
  ports.settle();
  ports[0].cancel(first.op);
  ports.settle();
  in1.recv(ports[1], 0, 1);
  in2.recv(ports[1], 0, 1);
  ASSERT_TRUE(ports.run_until([&] { return in1.op.done() && in2.op.done(); }));
  EXPECT_TRUE(in1.ended(Status::kPeerFailed, 0));
  EXPECT_TRUE(in2.ok());
  EXPECT_EQ(in2.data, second.data);
}

TEST(MessageCancel, PostedReceiveAndDoneOpAreHarmless) {
  SimPorts ports(2);
  Parcel in(8), again(8), out(pattern(1, 8));
  in.recv(ports[1], 0, 1);
  ports[1].cancel(in.op);
  ports[1].cancel(in.op);
  MessageOp never;
  ports[1].cancel(never);
  again.recv(ports[1], 0, 1);
  out.send(ports[0], 1, 1);
  ASSERT_TRUE(ports.run_until([&] { return again.ok(); }));
  EXPECT_EQ(again.data, out.data);
  EXPECT_TRUE(untouched(in));
}

TEST(MessageCancel, SendToOneself) {
  SimPorts ports(1);
  Parcel out(kLarge), in(kLarge);
  out.send(ports[0], 0, 1);
  ports[0].cancel(out.op);
  in.recv(ports[0], 0, 1);
  EXPECT_TRUE(in.ended(Status::kPeerFailed, 0));
}

TEST(MessageFail, EndsPostedAndLaterOps) {
  SimPorts ports(3);
  int calls = 0;
  Parcel send(kLarge), recv(8), any(8), self(kLarge), later(8);
  any.op.on_done = [&](MessageOp&) { ++calls; };
  send.send(ports[0], 1, 1);
  recv.recv(ports[0], 2, 1);
  any.recv(ports[0], kAnySource, 1);
  self.send(ports[0], 0, 2);
  ports[0].fail({Status::kPeerLost, 2});
  for (const Parcel* p : {&send, &recv, &any, &self}) EXPECT_TRUE(p->ended(Status::kPeerLost, 2));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(ports[0].pending(), 0);
  later.send(ports[0], 1, 1);
  EXPECT_TRUE(later.ended(Status::kPeerLost, 2));
  EXPECT_FALSE(ports[0].progress());
}

// Rank 1's frames are written by hand.
class MessageForged : public testing::Test {
 protected:
  void write(const FrameHeader& header) {
    Link& link = *ports.network.transport(1).link(0);
    ConstBytes left(reinterpret_cast<const std::byte*>(&header), sizeof header);
    for (int i = 0; i < 1000 && !left.empty(); ++i) {
      left = left.subspan(link.write_some(left, {}));
      for (int k = 0; k < 100 && (ports[0].progress() || ports.network.advance()); ++k) {
      }
    }
    ASSERT_TRUE(left.empty());
  }
  // Until rank 0 has looked at the end of its links.
  void say_farewell(const LastWords& words) {
    ports.network.transport(1).close(Status::kOk, words);
    for (int i = 0; i < 1000; ++i) ports.step();
  }

  SimPorts ports{3};
};

TEST_F(MessageForged, AFarewellNamesWhoWasLost) {
  Parcel in(8);
  in.recv(ports[0], 1, 1);
  say_farewell(last_words({Status::kPeerLost, 2}, {}));
  EXPECT_TRUE(in.ended(Status::kPeerLost, 2));
}

TEST_F(MessageForged, AFarewellForAnotherReasonNamesItsSender) {
  Parcel in(8);
  in.recv(ports[0], 1, 1);
  say_farewell(last_words({Status::kAborted, 2}, "the loss is NaN"));
  EXPECT_TRUE(in.ended(Status::kPeerFailed, 1));
  EXPECT_EQ(ports[0].said_by(1).outcome.status, Status::kAborted);
  EXPECT_EQ(ports[0].said_by(1).reason, "the loss is NaN");
}

TEST_F(MessageForged, LastWordsWithoutSenseAreNone) {
  LastWords words = last_words({Status::kAborted, 2}, {});
  for (const std::byte status : {std::byte{0}, static_cast<std::byte>(kLastStatus) | std::byte{0x80}}) {
    words[0] = status;
    EXPECT_FALSE(Farewell::of(words));
  }
  Parcel in(8);
  in.recv(ports[0], 1, 1);
  say_farewell(words);
  EXPECT_TRUE(in.ended(Status::kPeerLost, 1));
}

TEST_F(MessageForged, AFarewellNamesRanksOfTheGroupOnly) {
  for (const int blamed : {-1, 0, 3, 1 << 30}) {
    SimPorts others(3);
    Parcel in(8);
    in.recv(others[0], 1, 1);
    others.network.transport(1).close(Status::kOk, last_words({Status::kPeerLost, blamed}, {}));
    ASSERT_TRUE(others.run_until([&] { return in.op.done(); }));
    EXPECT_TRUE(in.ended(Status::kPeerFailed, 1)) << blamed;
  }
}

// However much is under way: the peer had no room for it, and has not said that it would take it.
TEST(MessageFail, IsToldToWhoHasNoRoom) {
  SimPorts ports(2);
  std::vector<std::unique_ptr<Parcel>> out;
  for (int i = 0; i < 64; ++i) {
    out.push_back(std::make_unique<Parcel>(kEagerBytes));
    out.back()->send(ports[0], 1, 1);
  }
  ASSERT_FALSE(out.back()->op.done());
  ports[0].fail({Status::kAborted, 0}, "the loss is NaN");
  Parcel in(8);
  in.recv(ports[1], 0, 2);
  ASSERT_TRUE(ports.run_until([&] { return in.op.done(); }));
  EXPECT_TRUE(in.ended(Status::kPeerFailed, 0));
  EXPECT_EQ(ports[1].said_by(0).reason, "the loss is NaN");
}

// The connections are its parent's.
TEST(MessageFail, IsToldToNobodyByAForkedChild) {
  SimPorts ports(2);
  Parcel in(8);
  in.recv(ports[1], 0, 2);
  EXPECT_EQ(run_in_child([&] {
              ports[0].fail({Status::kAborted, 0}, "the child's");
              return ports.run_until([&] { return in.op.done(); }) ? 1 : 0;
            }),
            0);
}

TEST_F(MessageForged, MoreTakenThanWasSentEndsTheLink) {
  Parcel in(8);
  in.recv(ports[0], 1, 1);
  FrameHeader header;
  header.kind = FrameKind::kWithdraw;
  write(header);
  EXPECT_FALSE(in.op.done());
  header.credit = 1;
  write(header);
  EXPECT_TRUE(in.ended(Status::kInternal, 1));
}

TEST_F(MessageForged, AFragmentPastTheEndOfItsReceiveEndsTheLink) {
  Parcel in(100'000);
  in.recv(ports[0], 1, 1);
  FrameHeader header;
  header.kind = FrameKind::kAnnounce;
  header.id = 1;
  header.tag = 1;
  header.bytes = in.data.size();
  header.record = record_of(kCallSend, in.data.size(), 1);
  write(header);
  EXPECT_FALSE(in.op.done());
  header.kind = FrameKind::kData;
  header.bytes = in.data.size() + 1;
  write(header);
  EXPECT_TRUE(in.ended(Status::kInternal, 1));
}

TEST(MessageFail, MemoryIsLeftAloneAfterwards) {
  SimPorts ports(2);
  Parcel out(pattern(1, kLarge)), in(kLarge);
  in.recv(ports[1], 0, 1);
  out.send(ports[0], 1, 1);
  ASSERT_TRUE(ports.run_until([&] { return in.op.moved > 0; }));
  ports[1].fail({Status::kAborted, -1});
  const std::vector<std::byte> mark = in.data;
  ports.settle();
  EXPECT_EQ(in.data, mark);
}

TEST(MessagePeerLost, EndsItsOpsAndNoOthers) {
  SimPorts ports(3);
  Parcel to(kLarge), from(kLarge), ok_out(pattern(1, kLarge)), ok_in(kLarge), later_out(8), later_in(8);
  to.send(ports[0], 1, 1);
  from.recv(ports[0], 1, 1);
  ports.settle();
  ports.network.kill(1);
  ASSERT_TRUE(ports.run_until([&] { return to.op.done() && from.op.done(); }));
  EXPECT_TRUE(to.ended(Status::kPeerLost, 1));
  EXPECT_TRUE(from.ended(Status::kPeerLost, 1));
  later_out.send(ports[0], 1, 2);
  later_in.recv(ports[0], 1, 2);
  EXPECT_TRUE(later_out.ended(Status::kPeerLost, 1));
  EXPECT_TRUE(later_in.ended(Status::kPeerLost, 1));
  ok_out.send(ports[0], 2, 1);
  ok_in.recv(ports[2], 0, 1);
  ASSERT_TRUE(ports.run_until([&] { return ok_out.ok() && ok_in.ok(); }));
  EXPECT_EQ(ok_in.data, ok_out.data);
}

// What a peer had sent before its end can be received after it.
TEST(MessagePeerLost, CompleteMessagesStayReceivable) {
  SimPorts ports(2);
  Parcel early(pattern(1, 100)), early_any(pattern(2, 100)), in(100), in_any(100), too_late(100);
  early.send(ports[1], 0, 1);
  early_any.send(ports[1], 0, 2);
  while (ports.network.advance()) {
  }
  ports.network.kill(1);
  Parcel wake(100);
  wake.recv(ports[0], 1, 3);
  ASSERT_TRUE(ports.run_until([&] { return wake.op.done(); }));
  EXPECT_TRUE(wake.ended(Status::kPeerLost, 1));
  in.recv(ports[0], 1, 1);
  in_any.recv(ports[0], kAnySource, 2);
  too_late.recv(ports[0], 1, 1);
  EXPECT_TRUE(in.ok() && in_any.ok());
  EXPECT_EQ(in.data, early.data);
  EXPECT_EQ(in_any.data, early_any.data);
  EXPECT_TRUE(too_late.ended(Status::kPeerLost, 1));
}

TEST(MessagePeerLost, AnySourceEndsWhenTheWakerSaysSo) {
  SimPorts ports(3);
  Parcel any(8);
  any.recv(ports[0], kAnySource, 1);
  ports.settle();
  EXPECT_FALSE(any.op.done());
  ports.network.kill(2);
  ASSERT_TRUE(ports.run_until([&] { return any.op.done(); }));
  EXPECT_TRUE(any.ended(Status::kPeerLost, 2));
}

// A rank that has told the others of its failure ends their waiting although its links stand.
TEST(MessagePeerLost, FailedPeerEndsWaiting) {
  SimPorts ports(2);
  Parcel in(8);
  in.recv(ports[0], 1, 1);
  ports.settle();
  ports.failed[1] = 1;
  ASSERT_TRUE(ports.run_until([&] { return in.op.done(); }));
  EXPECT_TRUE(in.ended(Status::kPeerFailed, 1));
}

}  // namespace
}  // namespace tutti::test
