// A group that is given two networks: the ranks that have both use the first, the others the second.
#include "communicator/networks.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"
#include "communicator/formed_group.h"
#include "communicator/thread_ranks.h"
#include "transport/sim/sim_network.h"

namespace tutti {
namespace {

constexpr int kRanks = 3;

// Of ranks 0 and 1.
class SimTransport final : public NetworkTransport {
 public:
  explicit SimTransport(int rank) : below_(network().transport(rank)), address_("sim " + std::to_string(rank)) {}
  static std::unique_ptr<NetworkTransport> create(const NetworkOptions& options) {
    if (options.rank == 2) return nullptr;
    return std::make_unique<SimTransport>(options.rank);
  }

  const std::string& address() const noexcept override { return address_; }
  void set_peer_addresses(const std::vector<std::string>& addresses) override {
    const std::string other = address_ == "sim 0" ? "sim 1" : "sim 0";
    EXPECT_EQ(addresses,
              other == "sim 1" ? (std::vector<std::string>{"", other, ""}) : (std::vector<std::string>{other, "", ""}));
  }
  std::string_view name() const noexcept override { return below_.name(); }
  Link* link(int peer) noexcept override { return below_.link(peer); }
  int accept_new(std::span<int> peers) noexcept override { return below_.accept_new(peers); }

 private:
  static SimNetwork& network() {
    static SimNetwork one(kRanks, {});
    return one;
  }

  Transport& below_;
  const std::string address_;
};

constexpr Network kSim{"sim", &SimTransport::create};

FormedGroup form(Store& store, int rank, std::span<const Network> networks) {
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(30'000);
  options.config.host_id = "host " + std::to_string(rank);
  return form_group(store, "networks", rank, kRanks, options, {}, {}, networks);
}

TEST(Networks, APeerIsReachedByTheFirstThatBothHave) {
  const std::array<Network, 2> networks = {kSim, built_in_networks().back()};
  MemoryStore store;
  const auto errors = test::run_threads(kRanks, [&](int rank) {
    const FormedGroup formed = form(store, rank, networks);
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      Transport& transport = *formed.transport_of_peer[static_cast<std::size_t>(peer)];
      EXPECT_EQ(transport.name(), rank + peer == 1 ? "sim" : "tcp") << rank << " to " << peer;
      EXPECT_NE(transport.link(peer), nullptr);
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(kRanks));
}

TEST(Networks, RanksThatHaveNoneInCommonAreTold) {
  MemoryStore store;
  const auto errors = test::run_threads(kRanks, [&](int rank) { form(store, rank, {&kSim, 1}); });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("have no network in common; use one build"), std::string::npos) << error;
}

}  // namespace
}  // namespace tutti
