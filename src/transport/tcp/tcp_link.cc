#include "transport/tcp/tcp_link.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "transport/tcp/socket.h"

namespace tutti::tcp {
namespace {

bool would_block(int error) noexcept { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS; }

}  // namespace

TcpLink::~TcpLink() { close_gently(UniqueFd(fd_.exchange(-1, std::memory_order_acquire))); }

std::size_t TcpLink::write_some(ConstBytes head, ConstBytes body) noexcept {
  const int fd = fd_.load(std::memory_order_acquire);
  if (fd < 0 || write_failed_ || status() != Status::kOk || head.size() + body.size() == 0) return 0;
  iovec parts[2] = {{const_cast<std::byte*>(head.data()), head.size()},
                    {const_cast<std::byte*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = head.empty() ? parts + 1 : parts;
  message.msg_iovlen = head.empty() || body.empty() ? 1 : 2;
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (!would_block(errno)) on_write_error(fd);
  return 0;
}

// What the peer said before it went may still lie here unread, its reason for going among it. So the link is dead for
// writing at once, but its status says so only when nothing is left to read.
void TcpLink::on_write_error(int fd) noexcept {
  write_failed_ = true;
  std::byte one;
  const ssize_t left = ::recv(fd, &one, 1, MSG_PEEK | MSG_DONTWAIT);
  if (left <= 0) status_.store(Status::kPeerLost, std::memory_order_relaxed);
}

std::size_t TcpLink::read_some(MutableBytes into) noexcept {
  const int fd = fd_.load(std::memory_order_acquire);
  if (fd < 0 || into.empty()) return 0;
  ssize_t got = 0;
  do {
    got = ::recv(fd, into.data(), into.size(), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got == 0 || !would_block(errno) || write_failed_) status_.store(Status::kPeerLost, std::memory_order_relaxed);
  return 0;
}

Status TcpLink::status() const noexcept { return status_.load(std::memory_order_relaxed); }

// A dead socket is always ready: whoever polled it would never sleep.
int TcpLink::poll_fd() const noexcept { return status() == Status::kOk ? fd_.load(std::memory_order_acquire) : -1; }

void TcpLink::attach(UniqueFd socket) noexcept { fd_.store(socket.release(), std::memory_order_release); }

void TcpLink::fail(Status status) noexcept {
  const int fd = fd_.load(std::memory_order_relaxed);
  // With a socket, the port learns of it by reading to the end of what has arrived.
  if (fd >= 0) {
    ::shutdown(fd, SHUT_RDWR);
  } else {
    status_.store(status, std::memory_order_relaxed);
  }
}

void TcpLink::abandon() noexcept { UniqueFd(fd_.exchange(-1, std::memory_order_relaxed)); }

void TcpLink::end_writing() noexcept {
  const int fd = fd_.load(std::memory_order_relaxed);
  if (fd >= 0) ::shutdown(fd, SHUT_WR);
}

}  // namespace tutti::tcp
