// Which ranks share memory, by ranks that are threads.
#include "bootstrap/host_group.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <barrier>
#include <memory>

#include "base/mapping.h"
#include "base/process.h"
#include "bootstrap/gate_store.h"
#include "bootstrap/host_group_requests.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"
#include "bootstrap/tcp_store.h"
#include "support/sanitized.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using test::ranks_of;
using test::request_of;

std::vector<std::string> none(int size) { return std::vector<std::string>(static_cast<std::size_t>(size)); }

class HostGroupThreads : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }

  // All ranks form a group; the requests may be changed first.
  std::vector<HostGroup> form(const std::function<void(HostGroupRequest&)>& change = {}) {
    std::vector<HostGroup> groups(static_cast<std::size_t>(size()));
    MemoryStore memory;
    TcpStoreServer server("127.0.0.1", 0, "");
    const auto errors = test::run_threads(size(), [&](int r) {
      HostGroupRequest request = request_of(r, size());
      if (change) change(request);
      TcpStoreOptions options;
      options.port = server.port();
      std::unique_ptr<TcpStore> tcp;
      if (std::get<1>(GetParam())) tcp = std::make_unique<TcpStore>(options);
      Store& store = tcp ? static_cast<Store&>(*tcp) : memory;
      groups[static_cast<std::size_t>(r)] = form_host_group(store, request);
    });
    EXPECT_EQ(errors, none(size()));
    return groups;
  }
};

TEST_P(HostGroupThreads, AllRanksOfOneHostSeeOneSegment) {
  const std::vector<HostGroup> groups = form();
  std::vector<int> all;
  for (int r = 0; r < size(); ++r) all.push_back(r);
  for (int r = 0; r < size(); ++r) {
    const HostGroup& g = groups[static_cast<std::size_t>(r)];
    EXPECT_EQ(g.host_of, std::vector<int>(static_cast<std::size_t>(size()), 0));
    EXPECT_EQ(ranks_of(g), all);
    EXPECT_EQ(g.index, r);
    for (const HostMember& m : g.members) {
      EXPECT_EQ(m.pid, ::getpid());
      EXPECT_FALSE(m.pidfd) << "of the own process";
    }
    EXPECT_EQ(static_cast<bool>(g.segment), size() > 1);
    EXPECT_EQ(g.segment_bytes, size() > 1 ? static_cast<std::size_t>(size()) * 4096 : 0);
    if (size() == 1) continue;
    const Mapping own = Mapping::shared(g.segment.get(), g.segment_bytes);
    own.data()[r * 4096] = static_cast<std::byte>(r + 1);
    const Mapping first = Mapping::shared(groups[0].segment.get(), groups[0].segment_bytes);
    EXPECT_EQ(first.data()[r * 4096], static_cast<std::byte>(r + 1));
  }
}

TEST_P(HostGroupThreads, DifferentHostIdsAreDifferentHosts) {
  const std::vector<HostGroup> groups =
      form([](HostGroupRequest& request) { request.host_id = "host " + std::to_string(request.rank); });
  std::vector<int> all;
  for (int r = 0; r < size(); ++r) all.push_back(r);
  for (int r = 0; r < size(); ++r) {
    const HostGroup& g = groups[static_cast<std::size_t>(r)];
    EXPECT_EQ(g.host_of, all);
    EXPECT_EQ(ranks_of(g), std::vector<int>{r});
    EXPECT_EQ(g.index, 0);
    EXPECT_FALSE(g.segment);
  }
}

// Ranks 0, 2, 4, ... on one host and 1, 3, 5, ... on the other; the second has no name of its own.
TEST_P(HostGroupThreads, HostsMayInterleave) {
  const std::vector<HostGroup> groups = form([](HostGroupRequest& request) {
    if (request.rank % 2 == 0) request.host_id = "even";
  });
  std::vector<int> host_of;
  std::vector<int> hosts[2];
  for (int r = 0; r < size(); ++r) {
    host_of.push_back(r % 2);
    hosts[r % 2].push_back(r);
  }
  for (int r = 0; r < size(); ++r) {
    const HostGroup& g = groups[static_cast<std::size_t>(r)];
    EXPECT_EQ(g.host_of, host_of);
    EXPECT_EQ(ranks_of(g), hosts[r % 2]);
    EXPECT_EQ(g.index, r / 2);
    EXPECT_EQ(static_cast<bool>(g.segment), hosts[r % 2].size() > 1);
  }
}

TEST_P(HostGroupThreads, ARankWithAnotherSecretIsAHostOfItsOwnToAll) {
  const int odd_one = size() - 1;
  if (odd_one == 0) return;
  const std::vector<HostGroup> groups = form([&](HostGroupRequest& request) {
    if (request.rank == odd_one) request.secret = "another";
  });
  std::vector<int> host_of(static_cast<std::size_t>(size()), 0);
  host_of.back() = odd_one;
  for (int r = 0; r < size(); ++r) {
    const HostGroup& g = groups[static_cast<std::size_t>(r)];
    EXPECT_EQ(g.host_of, host_of);
    EXPECT_EQ(ranks_of(g).size(), r == odd_one ? 1u : static_cast<std::size_t>(size() - 1));
  }
}
TEST_P(HostGroupThreads, RanksWithoutASecretTakeTheOneOfRank0) {
  const std::vector<HostGroup> groups = form([](HostGroupRequest& request) { request.secret.clear(); });
  for (const HostGroup& g : groups) {
    EXPECT_EQ(g.secret.size(), 64u);
    EXPECT_EQ(g.secret, groups[0].secret);
    EXPECT_EQ(g.members.size(), groups.size());
  }
  // None at all where rank 0 was given one: such a rank is no better than a stranger.
  const std::vector<HostGroup> split = form([](HostGroupRequest& request) {
    if (request.rank != 0) request.secret.clear();
  });
  for (int r = 0; r < size(); ++r) EXPECT_EQ(split[static_cast<std::size_t>(r)].members.size(), 1u);
}
INSTANTIATE_TEST_SUITE_P(Sizes, HostGroupThreads, testing::Combine(testing::Values(1, 2, 3, 4, 8), testing::Bool()),
                         [](const auto& param) {
                           return std::to_string(std::get<0>(param.param)) +
                                  (std::get<1>(param.param) ? "OverTcp" : "InMemory");
                         });

TEST(HostGroup, AChosenIdCannotMeetAFoundOne) {
  MemoryStore store;
  std::vector<HostGroup> groups(2);
  const auto errors = test::run_threads(2, [&](int r) {
    // What rank 0 finds, rank 1 chooses.
    HostGroupRequest request = request_of(r, 2, r == 1 ? host_hint() : "");
    groups[static_cast<std::size_t>(r)] = form_host_group(store, request);
  });
  EXPECT_EQ(errors, none(2));
  EXPECT_EQ(groups[0].host_of, (std::vector<int>{0, 1}));
}

// The price that the header names: one set and one wait a rank on one host, one wait more with several.
TEST(HostGroup, CostsOneExchangeOnOneHost) {
  for (const bool two_hosts : {false, true}) {
    MemoryStore below;
    std::vector<int> sets(4);
    std::vector<int> waits(4);
    const auto errors = test::run_threads(4, [&](int r) {
      test::GateStore store(below);
      form_host_group(store, request_of(r, 4, two_hosts && r >= 2 ? "second" : ""));
      sets[static_cast<std::size_t>(r)] = store.sets;
      waits[static_cast<std::size_t>(r)] = store.waits;
    });
    EXPECT_EQ(errors, none(4));
    // A slow machine may add looks for ranks that left; they are round trips of the leaders alone.
    EXPECT_EQ(sets, two_hosts ? (std::vector<int>{2, 1, 2, 1}) : (std::vector<int>{1, 1, 1, 1}));
    EXPECT_EQ(waits[1], two_hosts ? 2 : 1);
    EXPECT_EQ(waits[3], two_hosts ? 2 : 1);
  }
}

TEST(HostGroup, AMissingRankIsNamedByAll) {
  MemoryStore store;
  const auto errors = test::run_threads(3, [&](int r) {
    HostGroupRequest request = request_of(r < 2 ? r : 3, 4);
    request.timeout = std::chrono::milliseconds(400);
    try {
      form_host_group(store, request);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kTimeout);
      throw;
    }
  });
  for (const std::string& e : errors) EXPECT_NE(e.find("rank 2 did not come"), std::string::npos) << e;
}

// Rank 2 gives its card and is never seen again: rank 0 finds out, and rank 1 and the other host hear it from there.
TEST(HostGroup, ARankThatStopsAfterTheExchangeIsNamedByAll) {
  constexpr int kMs = test::kSanitized ? 4000 : 400;  // in which rank 1 comes, however slow
  MemoryStore store;
  std::barrier<> others_done(4);
  const auto errors = test::run_threads(4, [&](int r) {
    test::GateStore gate(store);
    HostGroupRequest request = request_of(r, 4, r == 3 ? "elsewhere" : "");
    request.timeout = std::chrono::milliseconds(kMs);
    if (r == 2) gate.after_exchange = [&] { others_done.arrive_and_wait(); };
    try {
      form_host_group(gate, request);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kTimeout);
      if (r != 2) others_done.arrive_and_wait();
      throw;
    }
  });
  for (const int r : {0, 1, 3}) {
    const std::string& e = errors[static_cast<std::size_t>(r)];
    EXPECT_NE(e.find("rank 2 did not reach rank 0"), std::string::npos) << r << ": " << e;
    EXPECT_NE(e.find("within " + std::to_string(kMs) + " ms"), std::string::npos) << "the time that was given: " << e;
  }
  EXPECT_NE(errors[2], "");
}

TEST(HostGroup, DifferentLayoutsAreAMismatchToAll) {
  MemoryStore store;
  const auto errors = test::run_threads(3, [&](int r) {
    HostGroupRequest request = request_of(r, 3);
    if (r == 1) request.segment_bytes = [](int) { return std::size_t{8192}; };
    try {
      form_host_group(store, request);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kMismatch);
      throw;
    }
  });
  for (const std::string& e : errors) EXPECT_NE(e.find("rank 1"), std::string::npos) << e;
}

TEST(HostGroup, SettingsThatDifferAreNamedWithTheirValuesToAll) {
  MemoryStore store;
  const auto errors = test::run_threads(4, [&](int r) {
    HostGroupRequest request = request_of(r, 4, r == 3 ? "other" : "");
    request.settings = {{"SAME", "written as rank " + std::to_string(r) + " has it", "same"},
                        {"FIRST", r == 1 ? "one" : "none", r == 1 ? "1" : ""},
                        {"SECOND", r < 2 ? "low" : "high", r < 2 ? "0" : "1"}};
    try {
      form_host_group(store, request);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kMismatch);
      throw;
    }
  });
  for (const std::string& e : errors) {
    EXPECT_NE(e.find("FIRST is none on ranks 0, 2 and 3 and one on rank 1; SECOND is low on ranks 0 and 1 and high on "
                     "ranks 2 and 3"),
              std::string::npos)
        << e;
    EXPECT_EQ(e.find("SAME"), std::string::npos) << e;
  }
}

TEST(HostGroup, TooManyRanksOfAHostAreRefusedOnAll) {
  MemoryStore store;
  const auto errors = test::run_threads(4, [&](int r) {
    HostGroupRequest request = request_of(r, 4, r == 3 ? "small" : "large");
    request.most_ranks = 2;
    form_host_group(store, request);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("3 of its ranks are on one host (rank 0 is the first), and at most 2 can"), std::string::npos)
        << error;
    EXPECT_NE(error.find("TUTTI_HOST_ID"), std::string::npos) << error;
  }
}

TEST(HostGroup, LeavesNoDescriptor) {
  const auto round = [](int n) {
    MemoryStore store;
    const auto errors = test::run_threads(3, [&](int r) {
      HostGroupRequest request = request_of(r, 3, n % 3 == 0 && r == 2 ? "other" : "");
      form_host_group(store, request);
    });
    EXPECT_EQ(errors, none(3));
  };
  round(0);
  round(1);
  const int before = test::open_descriptors();
  for (int n = 0; n < 200; ++n) round(n);
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST(HostGroup, TwoHundredLiveAtOnce) {
  MemoryStore store;
  std::vector<std::vector<HostGroup>> groups(2);
  const auto errors = test::run_threads(2, [&](int r) {
    for (int n = 0; n < 200; ++n) {
      HostGroupRequest request = request_of(r, 2);
      request.id = "group " + std::to_string(n);
      groups[static_cast<std::size_t>(r)].push_back(form_host_group(store, request));
    }
  });
  EXPECT_EQ(errors, none(2));
  const Mapping a = Mapping::shared(groups[0][199].segment.get(), groups[0][199].segment_bytes);
  const Mapping b = Mapping::shared(groups[1][198].segment.get(), groups[1][198].segment_bytes);
  a.data()[0] = std::byte{1};
  EXPECT_EQ(b.data()[0], std::byte{0}) << "two groups, two segments";
}

}  // namespace
}  // namespace tutti
