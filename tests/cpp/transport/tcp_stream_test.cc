// A stream's promises, one by one, in one thread: the other end is a socket, or a second stream.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "base/secret.h"
#include "net/address.h"
#include "net/tcp_socket.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/tcp_link.h"
#include "transport/tcp_ranks.h"

namespace tutti::tcp::test {
namespace {

constexpr std::uint32_t kData = 0, kCredit = 1, kEnd = 2;

struct Connection {
  UniqueFd here, there;
};

Connection connection() {
  constexpr std::chrono::milliseconds kSilence{3'000};
  const UniqueFd listener = listen_at(*SocketAddress::parse("127.0.0.1:0"));
  Connection made;
  made.there = begin_connect(local_address(listener.get()), kSilence);
  EXPECT_TRUE(wait_until([&] { return (made.here = accept_from(listener.get(), kSilence)).get() >= 0; }));
  return made;
}

// A part of a group that counts how often it is woken.
struct Group {
  explicit Group(std::uint32_t inlet, std::uint64_t window) : part(wake, window) {
    part.inlet = inlet;
    wake.set([this] { ++woken; });
  }
  Wake wake;
  Part part;
  int woken = 0;
};

// A stream, and what the I/O thread is asked to do for it.
struct OneStream {
  explicit OneStream(UniqueFd socket) {
    held.emplace(
        random_nonce(), random_nonce(),
        Stream::Care{[this] { ++asked_to_flush; }, [this](Lingering rest) { outlived.push_back(std::move(rest)); }});
    held->adopt(std::move(socket));
  }
  Stream& stream() { return *held; }

  int asked_to_flush = 0;
  std::vector<Lingering> outlived;
  std::optional<Stream> held;  // last: its end may add to them
};

// What a peer that speaks the protocol by hand sends.
void send_bytes(int fd, ConstBytes bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ASSERT_GT(n, 0) << "the other end's buffer is too small for this test";
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}
void send_header(int fd, std::uint32_t inlet, std::uint32_t kind, std::size_t bytes) {
  std::array<std::byte, 8> header;
  put_u32(header.data(), inlet);
  put_u32(header.data() + 4, kind << 24 | static_cast<std::uint32_t>(bytes));
  send_bytes(fd, header);
}
void send_frame(int fd, std::uint32_t inlet, ConstBytes bytes) {
  send_header(fd, inlet, kData, bytes.size());
  send_bytes(fd, bytes);
}

// Reads for `part` until all that `peer` has sent is where it belongs.
bool all_is_sorted(Stream& stream, Part& part, int peer) {
  return wait_until([&] {
    int under_way = 1, unread = 1;
    ::ioctl(peer, SIOCOUTQ, &under_way);
    stream.take_in(part);
    ::ioctl(stream.fd(), FIONREAD, &unread);
    return under_way == 0 && unread == 0;
  });
}

bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, static_cast<int>(kBound.count())) == 1;
}

// Writes until the socket takes no more, and part of a frame is left to the stream.
void fill(Stream& stream, Part& part) {
  const std::vector<std::byte> bytes(100'000);
  while (!stream.has_rest()) stream.write(part, {}, bytes);
}

// A dead socket is always ready: the I/O thread must have no reason to poll it.
TEST(TcpStream, ADeadOneHasNoRest) {
  auto [here, there] = connection();
  OneStream one(std::move(here));
  Group group(1, std::uint64_t{1} << 40);
  one.stream().add(group.part);
  one.stream().open(group.part, 1);
  fill(one.stream(), group.part);
  EXPECT_EQ(one.asked_to_flush, 1);
  send_header(there.get(), 1, 0xff, 0);  // there is no such kind
  ASSERT_TRUE(one.stream().has_rest());
  std::array<std::byte, 8> into;
  ASSERT_TRUE(wait_until([&] { return one.stream().read(group.part, into) == 0 && one.stream().dead(); }));
  EXPECT_FALSE(one.stream().has_rest());
  one.stream().flush();
  EXPECT_FALSE(one.stream().has_rest());
  one.stream().remove(group.part);
}

// The group that reads ends for what it has read; the others sleep.
TEST(TcpStream, ItsDeathWakesAllGroupsAndIsSeenAtTheOtherEnd) {
  for (const bool nonsense : {true, false}) {
    auto [here, there] = connection();
    OneStream one(std::move(here));
    Group reader(1, 1000), sleeper(2, 1000);
    one.stream().add(reader.part);
    one.stream().add(sleeper.part);
    if (nonsense) {
      send_header(there.get(), 1, 0xff, 0);
    } else {
      ::shutdown(there.get(), SHUT_WR);
    }
    std::array<std::byte, 8> into;
    ASSERT_TRUE(wait_until([&] { return one.stream().read(reader.part, into) == 0 && one.stream().dead(); }));
    EXPECT_EQ(sleeper.woken, 1);
    EXPECT_TRUE(one.stream().over(sleeper.part));
    ASSERT_TRUE(readable(there.get()));
    EXPECT_EQ(::recv(there.get(), into.data(), into.size(), MSG_DONTWAIT), 0);
    one.stream().remove(reader.part);
    one.stream().remove(sleeper.part);
  }
}

// A long wait asks for what another group has read and laid there: by then its group has been woken.
TEST(TcpStream, TellsOfWhatLiesThereForAPart) {
  for (const int what : {0, 1, 2}) {
    auto [here, there] = connection();
    OneStream one(std::move(here));
    Group reader(1, 1000), sleeper(2, 1000);
    one.stream().add(reader.part);
    one.stream().add(sleeper.part);
    EXPECT_FALSE(one.stream().told(sleeper.part));
    const std::array<std::byte, 3> bytes{};
    if (what == 0) send_frame(there.get(), 2, bytes);
    if (what == 1) send_header(there.get(), 2, kEnd, sizeof(LastWords));
    if (what == 1) send_bytes(there.get(), LastWords{});
    if (what == 2) ::shutdown(there.get(), SHUT_WR);
    std::array<std::byte, 8> into;
    EXPECT_TRUE(wait_until([&] { return one.stream().read(reader.part, into) == 0 && sleeper.woken > 0; }));
    EXPECT_TRUE(one.stream().told(sleeper.part));
    EXPECT_EQ(one.stream().told(reader.part), what == 2);
    if (what == 0) {
      EXPECT_EQ(one.stream().read(sleeper.part, into), bytes.size());
      EXPECT_FALSE(one.stream().told(sleeper.part));
    }
    one.stream().remove(reader.part);
    one.stream().remove(sleeper.part);
  }
}

// A writer that looks for a credit takes in what has come for its own group, whose other threads may sleep.
TEST(TcpStream, WhatAWriterTakesInWakesItsOwnGroup) {
  auto [here, there] = connection();
  OneStream one(std::move(here));
  Group group(1, 1000);
  one.stream().add(group.part);
  send_frame(there.get(), 1, std::vector<std::byte>(3));
  EXPECT_TRUE(wait_until([&] {
    one.stream().take_in(group.part);
    return one.stream().told(group.part);
  }));
  EXPECT_GT(group.woken, 0);
  one.stream().remove(group.part);
}

// But no more than it comes by: the reader has a place for the rest, which is not copied twice.
TEST(TcpStream, AWriterLeavesALongFrameToItsReader) {
  constexpr std::size_t kLong = 60'000, kStage = 4096;
  auto [here, there] = connection();
  OneStream one(std::move(here));
  Group group(1, kLong);
  one.stream().add(group.part);
  const auto data = pattern(kLong, 3);
  send_frame(there.get(), 1, data);
  EXPECT_TRUE(wait_until([&] {
    one.stream().take_in(group.part);
    return one.stream().told(group.part);
  }));
  for (int i = 0; i < 100; ++i) one.stream().take_in(group.part);
  EXPECT_LE(group.part.inbox.size(), kStage);
  std::vector<std::byte> got(kLong);
  std::size_t read = 0;
  EXPECT_TRUE(wait_until([&] {
    read += one.stream().read(group.part, MutableBytes(got).subspan(read));
    return read == kLong;
  }));
  EXPECT_EQ(got, data);
  one.stream().remove(group.part);
}

// Two streams, a group with a part in each, and a second group whose reader does the first one's work.
struct TwoEnds {
  explicit TwoEnds(std::uint64_t window, Connection made = connection())
      : near(std::move(made.here)), far(std::move(made.there)), writer(1, window), reader(1, window), other(2, window) {
    near.stream().add(writer.part);
    near.stream().open(writer.part, 1);
    far.stream().add(reader.part);
    far.stream().open(reader.part, 1);
    far.stream().add(other.part);
  }
  ~TwoEnds() {
    near.stream().remove(writer.part);
    far.stream().remove(reader.part);
    far.stream().remove(other.part);
  }
  OneStream near, far;
  Group writer, reader, other;
};

// The reader never takes all that is there, so its inbox is never empty.
TEST(TcpStream, AnInboxThatIsNeverEmptyDoesNotGrow) {
  constexpr std::size_t kWindow = std::size_t{1} << 20;
  constexpr std::size_t kMostRead = std::size_t{64} << 10;  // that lies there read before the rest is moved
  TwoEnds ends(kWindow);
  const auto data = pattern(32 * kWindow, 1);
  std::vector<std::byte> got(data.size());
  std::size_t written = 0, read = 0, most = 0;
  Deadline deadline = Deadline::after(kBound);
  while (read < data.size() && !deadline.expired()) {
    ends.near.stream().take_in(ends.writer.part);  // credits
    written += ends.near.stream().write(ends.writer.part, {}, ConstBytes(data).subspan(written));
    ends.near.stream().flush();
    ends.far.stream().take_in(ends.other.part);
    const std::size_t here = ends.reader.part.inbox.size() - ends.reader.part.inbox_begin;
    EXPECT_LE(here, kWindow);
    most = std::max(most, ends.reader.part.inbox.size());
    const bool last = written == data.size() && read + here == written;
    if (here < 2 && !last) continue;
    const std::size_t piece = std::min<std::size_t>(last ? here : here - 1, 50'000);
    read += ends.far.stream().read(ends.reader.part, MutableBytes(got).subspan(read, piece));
  }
  EXPECT_EQ(read, data.size());
  EXPECT_EQ(got, data);
  EXPECT_LE(most, 2 * kWindow + kMostRead);
  EXPECT_LE(ends.reader.part.inbox.capacity(), kMostRead) << "an empty inbox keeps its memory";
}

// However much the writer has, and whoever reads.
TEST(TcpStream, WhatNobodyReceivesStaysWithinTheWindow) {
  constexpr std::size_t kWindow = 300'000;
  TwoEnds ends(kWindow);
  const std::vector<std::byte> data(2 * kWindow);
  std::size_t written = 0;
  ASSERT_TRUE(wait_until([&] {
    written += ends.near.stream().write(ends.writer.part, {}, data);
    ends.near.stream().flush();
    ends.far.stream().take_in(ends.other.part);
    return ends.reader.part.inbox.size() >= kWindow;
  }));
  for (int i = 0; i < 10; ++i) {
    written += ends.near.stream().write(ends.writer.part, {}, data);
    ends.near.stream().flush();
    ends.far.stream().take_in(ends.other.part);
  }
  EXPECT_EQ(written, kWindow);
  EXPECT_EQ(ends.reader.part.inbox.size(), kWindow);
  EXPECT_FALSE(ends.far.stream().dead());
}

// Nor does a peer that keeps to no window fill this process's memory.
TEST(TcpStream, WhoSendsBeyondTheWindowIsCut) {
  constexpr std::size_t kWindow = 100'000;
  auto [here, there] = connection();
  OneStream one(std::move(here));
  Group group(1, kWindow), other(2, kWindow);
  one.stream().add(group.part);
  one.stream().add(other.part);
  send_frame(there.get(), 1, std::vector<std::byte>(kWindow));
  send_frame(there.get(), 1, std::vector<std::byte>(1));
  ASSERT_TRUE(wait_until([&] {
    one.stream().take_in(other.part);
    return one.stream().dead();
  }));
  EXPECT_EQ(group.part.inbox.size(), kWindow);
  one.stream().remove(group.part);
  one.stream().remove(other.part);
}

// A stream that a link was to have, whose other end has written, said its end and given credit; then the link has the
// next one.
TEST(TcpStream, NothingOfAnEarlierOneIsLeftForTheNext) {
  constexpr std::size_t kWindow = 100'000;
  auto first = connection();
  auto second = connection();
  const auto made = [](UniqueFd socket) {
    auto stream = std::make_shared<Stream>(random_nonce(), random_nonce(), Stream::Care{[] {}, [](Lingering) {}});
    stream->adopt(std::move(socket));
    return stream;
  };
  const auto one = made(std::move(first.here)), two = made(std::move(second.here));
  Group other(9, kWindow);
  one->add(other.part);
  Wake wake;
  TcpLink link(wake, kWindow);
  const auto old = pattern(kWindow, 1), expected = pattern(kWindow, 2);
  std::array<std::byte, 8> credit{};
  put_u32(credit.data(), kWindow / 2);

  link.expect(one, 1);
  const int peer = first.there.get();
  send_header(peer, 1, kCredit, credit.size());
  send_bytes(peer, credit);
  send_frame(peer, 1, ConstBytes(old).first(kWindow - 10));
  send_header(peer, 1, kEnd, sizeof(LastWords));
  send_bytes(peer, LastWords{});
  send_header(peer, 1, kData, 10);
  send_bytes(peer, ConstBytes(old).first(5));
  ASSERT_TRUE(all_is_sorted(*one, other.part, peer));
  link.expect(two, 2);
  send_bytes(peer, ConstBytes(old).first(5));  // the rest of the frame
  send_frame(peer, 9, ConstBytes(old).first(1));
  ASSERT_TRUE(all_is_sorted(*one, other.part, peer));
  EXPECT_EQ(other.part.inbox.size(), 1U);

  const int next_peer = second.there.get();
  send_frame(next_peer, 2, expected);
  link.attach(7);
  std::vector<std::byte> got(2 * kWindow);
  std::size_t read = 0;
  EXPECT_TRUE(wait_until([&] {
    read += link.read_some(MutableBytes(got).subspan(read));
    return read >= kWindow;
  }));
  EXPECT_EQ(link.read_some(MutableBytes(got).subspan(read)), 0U);
  got.resize(read);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(link.status(), Status::kOk);
  std::size_t written = 0;
  EXPECT_TRUE(wait_until([&] {
    written += link.write_some(got, {});
    if (two->has_rest()) two->flush();
    while (::recv(next_peer, got.data(), got.size(), MSG_DONTWAIT) > 0) {
    }
    return !link.polls_for_room();
  }));
  EXPECT_EQ(written, kWindow) << "credit of another stream counts";
  one->remove(other.part);
}

// Of a socket that nobody uses any more: what was written arrives, though it is more than both kernels hold.
TEST(TcpStream, ASocketOutlivesItUntilAllHasArrived) {
  auto [here, there] = connection();
  std::vector<Lingering> outlived;
  std::uint64_t written = 0;
  {
    OneStream one(std::move(here));
    Group group(1, std::uint64_t{1} << 40);
    one.stream().add(group.part);
    one.stream().open(group.part, 1);
    fill(one.stream(), group.part);
    written = group.part.sent;
    one.stream().remove(group.part);
    outlived.swap(one.outlived);
    EXPECT_TRUE(outlived.empty());
    one.held.reset();
    outlived.swap(one.outlived);
  }
  ASSERT_EQ(outlived.size(), 1U);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(outlived.front().over());
  std::vector<std::byte> sink(100'000);
  std::uint64_t come = 0;
  ssize_t n = 0;
  EXPECT_TRUE(wait_until([&] {
    EXPECT_FALSE(come < written && outlived.front().over());
    while ((n = ::recv(there.get(), sink.data(), sink.size(), MSG_DONTWAIT)) > 0) come += static_cast<std::uint64_t>(n);
    return n == 0;
  }));
  EXPECT_GT(come, written);  // frames have headers
  EXPECT_TRUE(wait_until([&] { return outlived.front().over(); }));
}

}  // namespace
}  // namespace tutti::tcp::test
