#include "net/local_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/process.h"

namespace tutti {
namespace {

#ifdef SO_PEERPIDFD
constexpr int kSoPeerPidfd = SO_PEERPIDFD;
#else
constexpr int kSoPeerPidfd = 77;  // Linux 6.5; older headers lack the name
#endif

// An abstract name starts with a zero byte and has no file.
socklen_t abstract_address(std::string_view name, sockaddr_un& address) noexcept {
  address = {};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

bool would_block(int error) noexcept { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

bool credentials_of(int socket, ucred& credentials) noexcept {
  socklen_t length = sizeof(credentials);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0;
}

// Whether the process that connected, or that listened, did so as this process's user. The kernel noted that then, so a
// socket that is passed on stays its maker's. Users that this user namespace does not know are read as its "nobody".
bool same_user(int socket) noexcept {
  ucred credentials{};
  return credentials_of(socket, credentials) && credentials.uid == ::geteuid();
}

}  // namespace

UniqueFd new_local_socket() noexcept {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

UniqueFd listen_local(std::string_view name) noexcept {
  UniqueFd listener = new_local_socket();
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  if (!listener || ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    return {};
  }
  return listener;
}

Accepted accept_local(int listener) noexcept {
  UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    return {exhausted ? AcceptStatus::kExhausted : AcceptStatus::kNone, {}, errno};
  }
  if (!same_user(socket.get())) return {AcceptStatus::kStranger, {}, 0};
  return {AcceptStatus::kOk, std::move(socket), 0};
}

SocketStatus connect_local(int socket, std::string_view name) noexcept {
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), length) == 0) {
    return same_user(socket) ? SocketStatus::kOk : SocketStatus::kStranger;
  }
  if (errno == ECONNREFUSED) return SocketStatus::kRefused;
  return would_block(errno) ? SocketStatus::kAgain : SocketStatus::kEnd;
}

SocketStatus send_message(int socket, std::string_view bytes, std::span<const int> fds) noexcept {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxMessageFds * sizeof(int))> control{};
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fds.size() > kMaxMessageFds) return SocketStatus::kEnd;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return SocketStatus::kOk;
  // ETOOMANYREFS: this user has RLIMIT_NOFILE descriptors under way; they arrive as the others read.
  return would_block(errno) || errno == ETOOMANYREFS || errno == ENOBUFS ? SocketStatus::kAgain : SocketStatus::kEnd;
}

SocketStatus receive_message(int socket, LocalMessage& message) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxMessageFds * sizeof(int))> control;
  std::array<char, kMaxMessageBytes> buffer;
  iovec part{buffer.data(), buffer.size()};
  msghdr header{};
  const auto read = [&] {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    return ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  };
  message.error = 0;
  message.fds.clear();
  message.fds.reserve(kMaxMessageFds);  // before they arrive, so that none is lost to a failed allocation
  ssize_t got = read();
  // The kernel looks for a message first, and then whether the other side has closed. What is said and closed between
  // its two looks reads as an end, and the last words lie behind it: nothing can come after them, so a second read
  // takes them, or finds the end once more.
  const bool ended = got == 0 && header.msg_controllen == 0;
  if (ended) got = read();
  if (got < 0) {
    if (ended) return SocketStatus::kEnd;  // an empty message, and not one of ours
    if (would_block(errno)) return SocketStatus::kAgain;
    message.error = errno;
    return SocketStatus::kEnd;
  }
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      message.fds.emplace_back(fd);
    }
  }
  if (got == 0 || (header.msg_flags & MSG_TRUNC) != 0) {
    message.fds.clear();
    return SocketStatus::kEnd;
  }
  message.bytes.assign(buffer.data(), static_cast<std::size_t>(got));
  if ((header.msg_flags & MSG_CTRUNC) == 0) return SocketStatus::kOk;
  message.fds.clear();  // a part of them is of no use
  return SocketStatus::kNoRoom;
}

LocalPeer local_peer(int socket) noexcept {
  LocalPeer peer;
  ucred credentials{};
  if (credentials_of(socket, credentials)) peer.pid = credentials.pid;
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &fd, &length) == 0 && fd >= 0) {
    peer.pidfd = UniqueFd(fd);
  } else if (peer.pid > 0) {
    peer.pidfd = open_pidfd(peer.pid);
  }
  return peer;
}

std::uint64_t pid_namespace() noexcept {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? static_cast<std::uint64_t>(status.st_ino) : 0;
}

}  // namespace tutti
