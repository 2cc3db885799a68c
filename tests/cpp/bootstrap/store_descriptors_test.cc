// A store without descriptors, on either side: its client hears so, and does not wait for its deadline.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "bootstrap/limits.h"
#include "bootstrap/tcp_store.h"
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

}  // namespace
}  // namespace tutti
