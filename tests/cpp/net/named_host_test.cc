// A host with several addresses: this program's getaddrinfo() comes before the C library's, and knows one.
#include "net/named_host.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cstring>

#include "net/tcp_socket.h"
#include "support/silent_host.h"

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

TEST(NamedHost, ASilentAddressDoesNotHideTheNext) {
  const test::SilentHost silent;
  first_port = htons(silent.address.port());
  const UnforkedFd listener = listen_tcp("127.0.0.1", 0);
  const std::uint16_t port = local_address(listener.get()).port();
  ConnectFailure failure;
  Deadline deadline = Deadline::after(std::chrono::seconds(3));
  EXPECT_TRUE(connect_tcp(kTwoAddresses, port, deadline, failure)) << failure.why;
}

}  // namespace
}  // namespace tutti
