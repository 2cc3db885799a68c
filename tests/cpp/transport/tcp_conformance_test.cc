// TCP under the conformance suite of all transports.

#include <poll.h>

#include "transport/conformance.h"
#include "transport/tcp_ranks.h"

namespace tutti::tcp::test {
namespace {

class TcpWorld final : public tutti::test::ThreadWorld {
 public:
  explicit TcpWorld(int size) {
    Ranks ranks(size);
    for (auto& transport : ranks.transports) transports_.push_back(std::move(transport));
  }
  void idle(int) override { ::poll(nullptr, 0, 1); }
};

using tutti::test::TransportConformance;
using tutti::test::WorldFactory;

INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance,
                         ::testing::Values(WorldFactory{"loopback",
                                                        [](int size) { return std::make_unique<TcpWorld>(size); }}));

}  // namespace
}  // namespace tutti::tcp::test
