// Answers that come while the link still says that a part of the message's first frame is not gone: a network has taken
// the rest and sends it by itself.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <vector>

#include "channel/message_frame.h"
#include "channel/message_port.h"

namespace tutti::test {
namespace {

constexpr std::size_t kLong = 100'000, kShort = 1000, kOwed = 60;

// Takes all of a first frame but says so of all but its end, until the peer's answer has been read.
class EagerLink final : public Link {
 public:
  explicit EagerLink(std::vector<FrameKind> answers) : answers_(std::move(answers)) {}

  std::size_t write_some(ConstBytes head, ConstBytes body) noexcept override {
    if (owed_ != 0) return answered_ && answer_.empty() ? std::exchange(owed_, 0) : 0;
    const std::size_t all = head.size() + body.size();
    FrameHeader header;
    if (head.size() != sizeof header) return all;
    std::memcpy(&header, head.data(), sizeof header);
    written_.push_back(header.kind);
    if (header.kind != FrameKind::kAnnounce && header.kind != FrameKind::kEager) return all;
    first_ = header;
    owed_ = kOwed;
    return all - kOwed;
  }
  std::size_t read_some(MutableBytes into) noexcept override {
    if (owed_ != 0 && !answered_) answer();
    std::size_t n = 0;
    for (; n < into.size() && !answer_.empty(); ++n) {
      into[n] = answer_.front();
      answer_.pop_front();
    }
    return n;
  }
  Status status() const noexcept override { return Status::kOk; }

  bool has_written(FrameKind kind) const { return std::find(written_.begin(), written_.end(), kind) != written_.end(); }

 private:
  void answer() {
    answered_ = true;
    for (const FrameKind kind : answers_) {
      FrameHeader header;
      header.kind = kind;
      header.id = first_.id;
      header.record.hash = 99;
      if (kind == FrameKind::kRefuse) header.bytes = sizeof(CallRecord);
      const auto* raw = reinterpret_cast<const std::byte*>(&header);
      answer_.insert(answer_.end(), raw, raw + sizeof header);
      raw = reinterpret_cast<const std::byte*>(&first_.record);
      answer_.insert(answer_.end(), raw, raw + header.bytes);
    }
  }

  const std::vector<FrameKind> answers_;
  std::vector<FrameKind> written_;
  std::deque<std::byte> answer_;
  FrameHeader first_;
  std::size_t owed_ = 0;
  bool answered_ = false;
};

class OneLink final : public Transport {
 public:
  explicit OneLink(std::vector<FrameKind> answers) : eager(std::move(answers)) {}
  std::string_view name() const noexcept override { return "eager"; }
  Link* link(int) noexcept override { return &eager; }
  int accept_new(std::span<int>) noexcept override { return 0; }

  EagerLink eager;
};

class NoWaker final : public PortWaker {
 public:
  bool sleep(const std::vector<struct pollfd>&, std::int64_t, Sleeper&) noexcept override { return false; }
  void nudge() noexcept override {}
  void ring(int) noexcept override {}
  Outcome check(int) noexcept override { return kOkOutcome; }
};

struct Exchange {
  explicit Exchange(std::vector<FrameKind> answers)
      : transport(std::move(answers)), port(0, 2, {nullptr, &transport}, &waker, 1), data(kLong) {}
  // False if it is still under way when nothing moves any more.
  bool send(std::size_t bytes) {
    port.post_send(op, 1, 5, data.data(), bytes, CallRecord{});
    for (int i = 0; i < 100; ++i) port.progress();
    return op.done();
  }

  OneLink transport;
  NoWaker waker;
  MessagePort port;
  std::vector<std::byte> data;
  MessageOp op;
};

TEST(MessageEarlyAnswer, AGrantIsKept) {
  Exchange call({FrameKind::kGrant});
  ASSERT_TRUE(call.send(kLong));
  EXPECT_TRUE(call.op.outcome.ok());
  EXPECT_TRUE(call.transport.eager.has_written(FrameKind::kData));
}

TEST(MessageEarlyAnswer, ARefusalEndsThatMessageAndNoOther) {
  for (const std::size_t bytes : {kLong, kShort}) {
    Exchange call({FrameKind::kRefuse});
    MessageOp older;
    call.port.post_recv(older, 1, 77, nullptr, 0, CallRecord{});
    ASSERT_TRUE(call.send(bytes)) << bytes;
    EXPECT_EQ(call.op.outcome.status, Status::kMismatch);
    EXPECT_EQ(call.op.remote.hash, 99U);
    EXPECT_FALSE(older.done());
    call.port.cancel(older);
  }
}

TEST(MessageEarlyAnswer, AGrantTakenBackEndsTheMessage) {
  Exchange call({FrameKind::kGrant, FrameKind::kDecline});
  ASSERT_TRUE(call.send(kLong));
  EXPECT_EQ(call.op.outcome.status, Status::kPeerFailed);
  EXPECT_FALSE(call.transport.eager.has_written(FrameKind::kData));
  EXPECT_EQ(call.port.pending(), 0);
}

}  // namespace
}  // namespace tutti::test
