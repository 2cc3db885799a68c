// A store without descriptors, on either side: its client hears so, and does not wait for its deadline.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "bootstrap/limits.h"
#include "bootstrap/tcp_store.h"
#include "net/tcp_socket.h"
#include "support/child_process.h"
#include "support/sanitized.h"
#include "tutti/error.h"

namespace tutti {
namespace {

// Whether a client of a server in the same process, which then has `left` descriptors, raises kExhausted with `text`.
bool says(const std::string& host, int left, const std::string& text) {
  return test::run_in_child([&] {
           const TcpStoreServer server("127.0.0.1", 0, "");
           TcpStoreOptions options;
           options.host = host;
           options.port = server.port();
           options.timeout = kLong;
           const int lowest_free = ::dup(0);
           ::close(lowest_free);
           const auto bound = static_cast<rlim_t>(lowest_free + left);
           const rlimit few{bound, bound};
           ::setrlimit(RLIMIT_NOFILE, &few);
           try {
             const TcpStore store(options);
           } catch (const Error& e) {
             const bool told = std::string(e.what()).find(text) != std::string::npos;
             return e.kind() == ErrorKind::kExhausted && told ? 0 : 1;
           }
           return 2;
         }) == 0;
}

// What a server says that is made at `host` with no descriptor left.
bool server_says(const std::string& host, const std::string& text) {
  return test::run_in_child([&] {
           const int lowest_free = ::dup(0);
           ::close(lowest_free);
           const rlimit none{static_cast<rlim_t>(lowest_free), static_cast<rlim_t>(lowest_free)};
           ::setrlimit(RLIMIT_NOFILE, &none);
           try {
             const TcpStoreServer server(host, 0, "");
           } catch (const Error& e) {
             const bool told = std::string(e.what()).find(text) != std::string::npos;
             return e.kind() == ErrorKind::kExhausted && told ? 0 : 1;
           }
           return 2;
         }) == 0;
}

class StoreDescriptors : public testing::Test {
 protected:
  void SetUp() override {
    if (test::kAddressSanitizer) GTEST_SKIP() << "its checks of objects' types need descriptors themselves";
  }
};

TEST_F(StoreDescriptors, NoneForTheClient) { EXPECT_TRUE(says("127.0.0.1", 0, "no descriptor is left here")); }

TEST_F(StoreDescriptors, NoneToLookTheNameUp) { EXPECT_TRUE(says("localhost", 0, "no descriptor is left here")); }

TEST_F(StoreDescriptors, NoneToMakeAServer) {
  for (const char* host : {"127.0.0.1", "localhost", "0.0.0.0"}) {
    EXPECT_TRUE(server_says(host, "Too many open files (this process may have ")) << host;
  }
}

TEST_F(StoreDescriptors, NoneForTheServer) { EXPECT_TRUE(says("127.0.0.1", 1, "its process has no descriptor left")); }

// More of them than the server's process has descriptors. A rank that comes behind them all is served, and then the
// process can open files.
TEST_F(StoreDescriptors, SilentStrangersTakeFew) {
  constexpr int kLeft = 26;
  constexpr int kFiles = 4;
  test::Gate gate;
  std::array<int, 2> ends{-1, -1};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  test::ChildProcess process([&] {
    const int lowest_free = ::dup(0);
    ::close(lowest_free);
    const auto bound = static_cast<rlim_t>(lowest_free + kLeft);
    const rlimit few{bound, bound};
    ::setrlimit(RLIMIT_NOFILE, &few);
    const TcpStoreServer server("127.0.0.1", 0, "");
    const std::uint16_t port = server.port();
    if (::write(write_end.get(), &port, sizeof port) != sizeof port || !gate.wait()) return 2;
    for (int i = 0; i < kFiles; ++i) {
      if (::open("/dev/null", O_RDONLY | O_CLOEXEC) < 0) return 1;
    }
    return 0;
  });
  TcpStoreOptions options;
  ASSERT_EQ(::read(read_end.get(), &options.port, sizeof options.port), ssize_t{sizeof options.port});
  options.timeout = kLong;
  const SocketAddress address = *SocketAddress::parse("127.0.0.1:" + std::to_string(options.port));
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < kLeft + 4; ++i) strangers.push_back(begin_connect(address, kSystemsSilence));
  TcpStore rank(options);
  rank.set("key", "value");
  EXPECT_EQ(rank.get("key", kLong), "value");
  gate.open();
  EXPECT_EQ(process.join(), 0);
}

}  // namespace
}  // namespace tutti
