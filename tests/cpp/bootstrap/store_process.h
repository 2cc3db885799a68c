// A store's server in a process of its own, so that tests can fork ranks from a process without threads.
//
// Ownership: ends the process when destroyed. Thread rule: the test's own thread.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>

#include "bootstrap/ranks.h"
#include "bootstrap/tcp_store.h"

namespace tutti::test {

class StoreProcess {
 public:
  explicit StoreProcess(std::string secret = {}) : secret_(std::move(secret)) {
    int to_parent[2];
    int to_child[2];
    if (::pipe(to_parent) != 0 || ::pipe(to_child) != 0) ADD_FAILURE() << "pipe";
    pid_ = fork_rank([&] {
      ::close(to_child[1]);
      TcpStoreServer server("127.0.0.1", 0, secret_);
      const std::uint16_t port = server.port();
      char end = 0;
      return ::write(to_parent[1], &port, sizeof(port)) == sizeof(port) && ::read(to_child[0], &end, 1) == 0;
    });
    ::close(to_parent[1]);
    ::close(to_child[0]);
    alive_ = UniqueFd(to_child[1]);
    if (::read(to_parent[0], &port_, sizeof(port_)) != sizeof(port_)) ADD_FAILURE() << "the store did not start";
    ::close(to_parent[0]);
  }
  ~StoreProcess() {
    alive_.reset();
    EXPECT_TRUE(wait_for(pid_));
  }

  // For a rank: in its process, which must not keep this store alive.
  std::unique_ptr<TcpStore> connect() {
    alive_.reset();
    return connect_here();
  }
  std::unique_ptr<TcpStore> connect_here() const {
    TcpStoreOptions options;
    options.port = port_;
    options.secret = secret_;
    options.timeout = std::chrono::seconds(20);
    return std::make_unique<TcpStore>(options);
  }
  std::uint16_t port() const noexcept { return port_; }

 private:
  std::string secret_;
  std::uint16_t port_ = 0;
  pid_t pid_ = -1;
  UniqueFd alive_;
};

}  // namespace tutti::test
