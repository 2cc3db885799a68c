// What every transport must do, as one suite over a factory of worlds.
//
// A transport joins by a test file of its own that includes this header, derives a TransportWorld (or uses ThreadWorld)
// and says INSTANTIATE_TEST_SUITE_P(Name, TransportConformance, ::testing::Values(WorldFactory{"name", make})). The
// tests themselves are in conformance.cc.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/link.h"

namespace tutti::test {

// Some ranks that reach each other by the transport under test.
class TransportWorld {
 public:
  virtual ~TransportWorld() = default;

  // Runs `body` once for each rank, side by side, in threads or processes. All transports live until the last body has
  // returned. A failed expectation in any of them fails the test.
  virtual void run(const std::function<void(int rank, Transport& transport)>& body) = 0;

  // Called by a rank that has nothing to read or no room to write. Returns soon; sleeps at most some milliseconds.
  virtual void idle(int rank) = 0;

  // This rank ends without a word: its peers' links die. Its body touches its transport no more.
  virtual void vanish(int rank) = 0;
};

struct WorldFactory {
  std::string name;
  std::function<std::unique_ptr<TransportWorld>(int ranks)> make;
};

inline std::ostream& operator<<(std::ostream& out, const WorldFactory& factory) { return out << factory.name; }

// Ranks are threads of this process; each transport belongs to the world.
class ThreadWorld : public TransportWorld {
 public:
  void run(const std::function<void(int, Transport&)>& body) override {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < static_cast<int>(transports_.size()); ++rank)
      threads.emplace_back([&, rank] { body(rank, *transports_[static_cast<std::size_t>(rank)]); });
    for (std::thread& t : threads) t.join();
  }
  void idle(int) override { std::this_thread::yield(); }
  void vanish(int rank) override { transports_[static_cast<std::size_t>(rank)].reset(); }

 protected:
  std::vector<std::unique_ptr<Transport>> transports_;
};

class TransportConformance : public ::testing::TestWithParam<WorldFactory> {};

}  // namespace tutti::test
