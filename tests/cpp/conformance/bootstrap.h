// What must be so however the ranks of a group come together, as one suite over seeds.
//
// A seed joins by a test file that includes this header and says INSTANTIATE_TEST_SUITE_P(Name, BootstrapConformance,
// ::testing::Values(BootstrapSeed{"name", enter})). The tests themselves are in bootstrap.cc; their ranks are threads,
// and processes where one dies. Settings, host and rank come with the test, so nothing but the seed differs.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "bootstrap/bootstrap.h"
#include "tutti/communicator.h"
#include "tutti/store.h"

namespace tutti::test {

// One rank at the seed. Whoever has been told of others by it stays until they have ended.
class SeededRank {
 public:
  virtual ~SeededRank() = default;
  // Among all; `id` is new each time.
  virtual BootstrapPtr bootstrap(const std::string& id) = 0;
  // Collective, once.
  virtual std::shared_ptr<Communicator> form(const CommunicatorOptions& options) = 0;
};

struct BootstrapSeed {
  std::string name;
  // Collective. `carrier` brings the ranks what they must have to begin, and is there as long as they are.
  std::function<std::unique_ptr<SeededRank>(Store& carrier, int rank, int size, const CommunicatorOptions& options)>
      enter;
};

inline std::ostream& operator<<(std::ostream& out, const BootstrapSeed& seed) { return out << seed.name; }

class BootstrapConformance : public ::testing::TestWithParam<BootstrapSeed> {};

}  // namespace tutti::test
