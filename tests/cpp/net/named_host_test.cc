// A host with several addresses: this program's getaddrinfo() comes before the C library's, and knows one.
#include "net/named_host.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "net/tcp_socket.h"

namespace {

constexpr const char* kTwoAddresses = "two-addresses.test";
in_port_t first_port = 0;  // of its first address, in network byte order

}  // namespace

// NOLINTBEGIN: the C library's interface
extern "C" __attribute__((visibility("default"))) int getaddrinfo(const char* host, const char* port,
                                                                  const addrinfo* hints, addrinfo** list) {
  using Call = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto next = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host == nullptr || std::strcmp(host, kTwoAddresses) != 0) return next(host, port, hints, list);
  if (const int error = next("127.0.0.1", port, hints, list); error != 0) return error;
  reinterpret_cast<sockaddr_in*>((*list)->ai_addr)->sin_port = first_port;
  return next("127.0.0.1", port, hints, &(*list)->ai_next);
}
// NOLINTEND

namespace tutti {
namespace {

// A listener that takes no connection: who dials it hears nothing at all.
struct SilentHost {
  SilentHost() : listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const SocketAddress any = *SocketAddress::parse("127.0.0.1:0");
    EXPECT_EQ(::bind(listener.get(), any.raw(), any.length()), 0);
    EXPECT_EQ(::listen(listener.get(), 0), 0);
    const SocketAddress address = local_address(listener.get());
    // What the kernel accepts by itself, and one more.
    for (int i = 0; i < 3; ++i) crowd.push_back(begin_connect(address, std::chrono::milliseconds(3'000)));
    first_port = htons(address.port());
  }
  UniqueFd listener;
  std::vector<UniqueFd> crowd;
};

TEST(NamedHost, ASilentAddressDoesNotHideTheNext) {
  const SilentHost silent;
  const UnforkedFd listener = listen_tcp("127.0.0.1", 0);
  const std::uint16_t port = local_address(listener.get()).port();
  ConnectFailure failure;
  Deadline deadline = Deadline::after(std::chrono::seconds(3));
  EXPECT_TRUE(connect_tcp(kTwoAddresses, port, deadline, failure)) << failure.why;
}

}  // namespace
}  // namespace tutti
