#include "net/tcp_socket.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "base/interruption.h"
#include "tutti/error.h"

namespace tutti {
namespace {

// Bounds the pauses between retransmissions and window probes, which otherwise grow to two minutes, and with them the
// time until a cut is seen, or until a transfer goes on after one. The kernel ends a connection after 15 pauses in a
// row (net.ipv4.tcp_retries2), 13 of them of this length. Linux 6.15; older kernels ignore it and last for a quarter of
// an hour. Not in glibc's header yet.
constexpr int kTcpRtoMaxMs = 44;
constexpr std::int64_t kLeastLongestPauseMs = 1000;    // what the kernel takes
constexpr std::int64_t kMostLongestPauseMs = 120'000;  // likewise
constexpr int kPausesInSilence = 8;                    // fewer than 13, and several before PeerWatch decides

constexpr int kProbes = 3;

constexpr std::uint32_t kTickMs = 20;  // the kernel's times are that coarse

int whole_seconds(std::chrono::milliseconds time) noexcept {
  return static_cast<int>(std::chrono::ceil<std::chrono::seconds>(time).count());
}

void set_option(int fd, int level, int name, int value) noexcept {
  ::setsockopt(fd, level, name, &value, sizeof(value));  // a kernel without it is slower, not wrong
}

// No delay for small frames, and the kernel's limits on silence.
void tune(int fd, std::chrono::milliseconds silence) noexcept {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  if (silence == kSystemsSilence) return;
  const int pause_s = std::max(1, whole_seconds(silence / (kProbes + 1)));
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, pause_s);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, pause_s);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set_option(fd, IPPROTO_TCP, kTcpRtoMaxMs,
             static_cast<int>(std::clamp<std::int64_t>(silence.count() / kPausesInSilence, kLeastLongestPauseMs,
                                                       kMostLongestPauseMs)));
}

// For want of which there is none: `fd` is closed, and errno as it was.
UniqueFd closed(UniqueFd fd) noexcept {
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

}  // namespace

UniqueFd try_listen_at(const SocketAddress& address) noexcept {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fd;
  // Not where the kernel chooses: it would give one port to two sockets that do not listen yet.
  if (address.port() != 0) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd.get(), address.raw(), address.length()) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) return fd;
  return closed(std::move(fd));
}

UniqueFd listen_at(const SocketAddress& address) {
  UniqueFd fd = try_listen_at(address);
  if (!fd) throw_system_error(ErrorKind::kExhausted, "listening at " + address.text(), errno);
  return fd;
}

UniqueFd begin_connect(const SocketAddress& address, std::chrono::milliseconds silence) noexcept {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fd;
  tune(fd.get(), silence);
  const bool began =
      ::connect(fd.get(), address.raw(), address.length()) == 0 || errno == EINPROGRESS || errno == EINTR;
  return began ? std::move(fd) : closed(std::move(fd));
}

UniqueFd accept_from(int listener, std::chrono::milliseconds silence) noexcept {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd) tune(fd.get(), silence);
  return fd;
}

bool out_of_descriptors(int error) noexcept { return error == EMFILE || error == ENFILE; }

bool out_of_resources(int error) noexcept { return out_of_descriptors(error) || error == ENOMEM || error == ENOBUFS; }

bool wait_ready(int socket, short events, Deadline& deadline) noexcept {
  pollfd fd{socket, events, 0};
  for (;;) {
    const std::int64_t left_ns = deadline.remaining_ns();
    if (left_ns <= 0) return false;
    const std::int64_t slice_ms = must_ask() ? kAskEveryMs : 60'000;
    if (::poll(&fd, 1, static_cast<int>(std::min(left_ns / 1'000'000 + 1, slice_ms))) > 0) return true;
    if (!go_on_waiting()) return false;
  }
}

namespace {

void drain(int fd) noexcept {
  std::array<std::byte, 16384> sink;
  constexpr int kMostReads = 256;  // 4 MB: what a receive buffer holds; a peer that sends on gets its reset
  for (int i = 0; i<kMostReads&& ::recv(fd, sink.data(), sink.size(), MSG_DONTWAIT)> 0; ++i) {
  }
}

}  // namespace

void close_gently(UniqueFd fd) noexcept {
  if (!fd) return;
  ::shutdown(fd.get(), SHUT_WR);
  drain(fd.get());
}

bool has_arrived(int fd) noexcept {
  drain(fd);
  int unacknowledged = 0;  // bytes, the end among them
  if (::ioctl(fd, SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0) return true;
  tcp_info info{};
  socklen_t length = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || info.tcpi_state == TCP_CLOSE;
}

bool PeerWatch::silent(int fd, std::chrono::milliseconds silence, std::uint32_t interval_ms) noexcept {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  // tcpi_last_ack_recv: milliseconds since anything came from the peer's kernel, window updates and answers to probes
  // included. An acknowledgment within the last interval makes all transmissions before it count as answered.
  if (info.tcpi_last_ack_recv <= interval_ms + kTickMs) retransmissions_when_heard_ = info.tcpi_total_retrans;
  if (info.tcpi_last_ack_recv < silence.count()) return false;
  const bool unanswered_data =
      info.tcpi_unacked > 0 && info.tcpi_total_retrans - retransmissions_when_heard_ >= kUnanswered;
  const bool unanswered_probes = info.tcpi_probes >= kUnanswered;  // the kernel resets it at each answer
  return unanswered_data || unanswered_probes;
}

}  // namespace tutti
