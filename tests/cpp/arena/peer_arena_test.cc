// Mappings of peers' arenas: one a peer, checked before use, and really the same memory in another process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cstring>

#include "arena/memory.h"
#include "base/mapping.h"
#include "device/cpu/arena.h"
#include "support/child_process.h"

namespace tutti {
namespace {

TEST(PeerArena, ShowsThePeersMemory) {
  const auto arena = Arena::create(8 * kMiB);
  auto* const data = static_cast<std::byte*>(arena->allocate(kMiB));
  const auto peer = PeerArena::open(arena->fd(), arena->id(), arena->bytes());
  ASSERT_NE(peer, nullptr);
  ASSERT_EQ(peer->bytes(), arena->bytes());
  std::byte* const seen = peer->data() + arena->offset_of(data, kMiB);
  data[100] = std::byte{5};
  EXPECT_EQ(seen[100], std::byte{5});
  seen[200] = std::byte{6};
  EXPECT_EQ(data[200], std::byte{6});
}

TEST(PeerArena, IsMappedOnceAndUnmappedWithItsLastUser) {
  const auto arena = Arena::create(8 * kMiB);
  auto first = PeerArena::open(arena->fd(), arena->id(), arena->bytes());
  auto second = PeerArena::open(arena->fd(), arena->id(), arena->bytes());
  EXPECT_EQ(first, second);
  EXPECT_EQ(first.use_count(), 2);
  const std::weak_ptr<PeerArena> watch = first;
  first.reset();
  EXPECT_FALSE(watch.expired());
  second.reset();
  EXPECT_TRUE(watch.expired());
  EXPECT_NE(PeerArena::open(arena->fd(), arena->id(), arena->bytes()), nullptr);
}

TEST(PeerArena, OutlivesThePeersArena) {
  auto arena = Arena::create(8 * kMiB);
  auto* const data = static_cast<std::byte*>(arena->allocate(kMiB));
  data[0] = std::byte{3};
  const std::uint64_t offset = arena->offset_of(data, 1);
  const auto peer = PeerArena::open(arena->fd(), arena->id(), arena->bytes());
  arena.reset();
  EXPECT_EQ(peer->data()[offset], std::byte{3});
}

TEST(PeerArena, RefusesWhatItCannotMap) {
  const auto arena = Arena::create(8 * kMiB);
  EXPECT_EQ(PeerArena::open(-1, 1, kMiB), nullptr);
  EXPECT_EQ(PeerArena::open(arena->fd(), 2, arena->bytes() + 1), nullptr) << "larger than the file";
  EXPECT_EQ(PeerArena::open(arena->fd(), 3, 0), nullptr);
  std::array<int, 2> ends{-1, -1};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  EXPECT_EQ(PeerArena::open(read_end.get(), 4, kMiB), nullptr) << "not memory";
  const auto peer = PeerArena::open(arena->fd(), arena->id(), 4 * kMiB);
  ASSERT_NE(peer, nullptr);
  EXPECT_EQ(PeerArena::open(arena->fd(), arena->id(), 8 * kMiB), nullptr) << "larger than what is mapped";
}

TEST(PeerArena, RefusesAFileThatItsOwnerCanShrink) {
  const UniqueFd open(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open.get(), kMiB), 0);
  EXPECT_EQ(PeerArena::open(open.get(), 11, kMiB), nullptr);
  ASSERT_EQ(::fcntl(open.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_EQ(PeerArena::open(open.get(), 12, kMiB), nullptr) << "another seal";
  ASSERT_EQ(::fcntl(open.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_NE(PeerArena::open(open.get(), 13, kMiB), nullptr);
}

void send_fd(int socket, int fd) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  ::sendmsg(socket, &message, 0);
}

int receive_fd(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  int fd = -1;
  if (const cmsghdr* const header = CMSG_FIRSTHDR(&message)) std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return fd;
}

// The peer: maps what it is sent, checks it and answers in place.
int be_peer(int socket) {
  const UniqueFd fd(receive_fd(socket));
  std::array<std::uint64_t, 3> name{};  // id, bytes, offset
  if (::read(socket, name.data(), sizeof(name)) != sizeof(name)) return 1;
  const auto peer = PeerArena::open(fd.get(), name[0], name[1]);
  if (peer == nullptr) return 2;
  std::byte* const data = peer->data() + name[2];
  if (data[0] != std::byte{1} || data[kMiB - 1] != std::byte{1}) return 3;
  std::memset(data, 2, kMiB);
  return 0;
}

// Runs in a program of its own, where nothing has used the library before the two processes part.
[[noreturn]] void share_between_two_processes() {
  std::array<int, 2> ends{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) ::_exit(10);
  test::ChildProcess child([&] { return be_peer(ends[1]); });
  const auto arena = Arena::create(16 * kMiB);
  auto* const data = static_cast<std::byte*>(arena->allocate(kMiB));
  std::memset(data, 1, kMiB);
  send_fd(ends[0], arena->fd());
  const std::array<std::uint64_t, 3> name{arena->id(), arena->bytes(), arena->offset_of(data, kMiB)};
  if (::write(ends[0], name.data(), sizeof(name)) != sizeof(name)) ::_exit(11);
  const int code = child.join();
  if (code == 0 && (data[0] != std::byte{2} || data[kMiB - 1] != std::byte{2})) ::_exit(12);
  ::_exit(code);
}

TEST(PeerArena, TwoProcessesSeeEachOthersWrites) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(share_between_two_processes(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tutti
