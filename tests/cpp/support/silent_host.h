// A listener that takes no connection: who dials it hears nothing at all.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <vector>

#include "base/unique_fd.h"
#include "net/tcp_socket.h"

namespace tutti::test {

struct SilentHost {
  SilentHost() : listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const SocketAddress any = *SocketAddress::parse("127.0.0.1:0");
    EXPECT_EQ(::bind(listener.get(), any.raw(), any.length()), 0);
    EXPECT_EQ(::listen(listener.get(), 0), 0);
    address = local_address(listener.get());
    // What the kernel accepts by itself, and one more.
    for (int i = 0; i < 3; ++i) crowd.push_back(begin_connect(address, std::chrono::milliseconds(3'000)));
  }

  UniqueFd listener;
  SocketAddress address;
  std::vector<UniqueFd> crowd;
};

}  // namespace tutti::test
