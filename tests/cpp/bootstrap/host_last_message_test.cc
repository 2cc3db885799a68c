// A host's first rank says who is in, and closes the connections: nobody loses that to the end behind it.
//
// The kernel looks for a message first, and then whether the other side has closed. That both come between its two
// looks is rare: here a member's reads are so, by this program's recvmsg(), which comes before the C library's.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/host_group_requests.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"
#include "net/local_socket.h"

namespace {

thread_local int messages_before = -1;  // that this thread reads before the end comes first; below 0: it does not
thread_local int early_ends = 0;        // that it has read

}  // namespace

// NOLINTBEGIN: the C library's interface
extern "C" __attribute__((visibility("default"))) ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static const auto next = reinterpret_cast<decltype(&::recvmsg)>(::dlsym(RTLD_NEXT, "recvmsg"));
  if (messages_before != 0) {
    const ssize_t got = next(fd, message, flags);
    if (got > 0 && messages_before > 0) --messages_before;
    return got;
  }
  messages_before = -1;
  pollfd closed{fd, 0, 0};  // POLLHUP comes unasked
  if (::poll(&closed, 1, 20'000) == 1) ++early_ends;
  message->msg_controllen = 0;
  message->msg_flags = 0;
  return 0;
}
// NOLINTEND

namespace tutti {
namespace {

// The Welcome is a member's first message, and the verdict its last.
void form(const std::vector<std::string>& hosts) {
  MemoryStore store;
  const int size = static_cast<int>(hosts.size());
  const auto errors = test::run_threads(size, [&](int rank) {
    if (rank == 1) messages_before = 1, early_ends = 0;
    const HostGroup group = form_host_group(store, test::request_of(rank, size, hosts[static_cast<std::size_t>(rank)]));
    EXPECT_EQ(test::ranks_of(group), rank < 2 ? (std::vector<int>{0, 1}) : std::vector<int>{rank});
    EXPECT_EQ(early_ends, rank == 1 ? 1 : 0);
  });
  EXPECT_EQ(errors, std::vector<std::string>(hosts.size()));
}

TEST(HostLastMessage, IsHeardBehindAnEndOnOneHost) { form({"a", "a"}); }

TEST(HostLastMessage, IsHeardBehindAnEndOnOneHostOfTwo) { form({"a", "a", "b"}); }

// What comes behind an end: descriptors with their message, nothing where none is.
TEST(HostLastMessage, BehindAnEndIsOneOrNone) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  UniqueFd from(ends[0]);
  const UniqueFd to(ends[1]);
  const std::array<int, 1> fds{0};
  for (const char* bytes : {"first", "second"}) ASSERT_EQ(send_message(from.get(), bytes, fds), SocketStatus::kOk);
  from.reset();
  LocalMessage message;
  for (const char* bytes : {"first", "second"}) {
    messages_before = early_ends = 0;
    ASSERT_EQ(receive_message(to.get(), message), SocketStatus::kOk);
    EXPECT_EQ(message.bytes, bytes);
    EXPECT_EQ(message.fds.size(), 1U);
    EXPECT_EQ(early_ends, 1);
  }
  EXPECT_EQ(receive_message(to.get(), message), SocketStatus::kEnd);
  EXPECT_TRUE(message.fds.empty());
  EXPECT_EQ(message.error, 0);
}

TEST(HostLastMessage, AnEmptyOneIsAnEnd) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd from(ends[0]), to(ends[1]);
  const std::array<int, 1> fds{0};
  for (const bool with_descriptors : {false, true}) {
    ASSERT_EQ(send_message(from.get(), "", with_descriptors ? fds : std::span<const int>{}), SocketStatus::kOk);
    if (with_descriptors) {
      ASSERT_EQ(send_message(from.get(), "the next", {}), SocketStatus::kOk);
    }
    LocalMessage message;
    EXPECT_EQ(receive_message(to.get(), message), SocketStatus::kEnd);
    EXPECT_TRUE(message.fds.empty());
    EXPECT_EQ(message.error, 0);
  }
}

}  // namespace
}  // namespace tutti
