#include "bootstrap/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"
#include "net/named_host.h"
#include "net/tcp_socket.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

void expect_refused(const Variables& variables, const std::string& named) {
  try {
    launch_info(environment(variables));
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find(named), std::string::npos) << e.what();
  }
}

TEST(Launch, ReadsEachLaunchersVariables) {
  const Variables torchrun = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}};
  const Variables mpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                         {"SLURM_PROCID", "0"},
                         {"SLURM_NTASKS", "1"}};
  const Variables slurm = {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "6"}, {"SLURM_LOCALID", "2"}};
  const LaunchInfo a = launch_info(environment(torchrun));
  EXPECT_EQ(std::tuple(a.rank, a.size, a.local_rank, a.launcher), std::tuple(3, 8, 1, "environment"));
  const LaunchInfo b = launch_info(environment(mpi));
  EXPECT_EQ(std::tuple(b.rank, b.size, b.local_rank, b.launcher), std::tuple(2, 4, 0, "Open MPI"));
  const LaunchInfo c = launch_info(environment(slurm));
  EXPECT_EQ(std::tuple(c.rank, c.size, c.local_rank, c.launcher), std::tuple(5, 6, 2, "SLURM"));
  const Variables nothing;
  const LaunchInfo d = launch_info(environment(nothing));
  EXPECT_EQ(std::tuple(d.rank, d.size, d.local_rank, d.launcher), std::tuple(0, 1, -1, ""));
}

TEST(Launch, NamesTheVariableThatIsWrong) {
  expect_refused({{"RANK", "0"}}, "WORLD_SIZE");
  expect_refused({{"WORLD_SIZE", "4"}}, "WORLD_SIZE is set but RANK is not");
  expect_refused({{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK");
  expect_refused({{"RANK", "two"}, {"WORLD_SIZE", "4"}}, "RANK is \"two\"");
  expect_refused({{"RANK", "4"}, {"WORLD_SIZE", "4"}}, "RANK=4");
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE is \"0\"");
  expect_refused({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK is \"-1\"");
}

TEST(Launch, OneRankNeedsNoAddress) {
  const Variables nothing;
  const auto store = store_from_environment(0, 1, std::chrono::seconds(1), environment(nothing));
  store->set("key", "value");
  EXPECT_EQ(store->get("key", std::chrono::seconds(1)), "value");
}

TEST(Launch, SaysWhichAddressIsMissing) {
  const Variables half = {{"MASTER_ADDR", "127.0.0.1"}};
  try {
    store_from_environment(0, 2, std::chrono::seconds(1), environment(half));
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find("MASTER_PORT is not set"), std::string::npos) << e.what();
  }
}

int free_port() { return local_address(listen_tcp("127.0.0.1", 0).get()).port(); }

void expect_ranks_meet(const Variables& variables) {
  const auto errors = test::run_threads(3, [&](int rank) {
    const auto store = store_from_environment(rank, 3, std::chrono::seconds(20), environment(variables));
    store->set("rank " + std::to_string(rank), "");
    store->multi_get({"rank 0", "rank 1", "rank 2"}, std::chrono::seconds(20));
    // Rank 0 serves: it goes last.
    store->set("rank " + std::to_string(rank) + " is done", "");
    if (rank == 0) store->multi_get({"rank 1 is done", "rank 2 is done"}, std::chrono::seconds(20));
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(Launch, RanksMeetAtTheMastersAddress) {
  expect_ranks_meet(
      {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", std::to_string(free_port())}, {"TUTTI_SECRET", "s"}});
  // Ours wins, so that torch's own store may keep its port.
  expect_ranks_meet({{"MASTER_ADDR", "no such host"},
                     {"MASTER_PORT", "1"},
                     {"TUTTI_MASTER_ADDR", "127.0.0.1"},
                     {"TUTTI_MASTER_PORT", std::to_string(free_port())}});
}

TEST(Launch, UnderTorchrunItsOwnPortIsLeftAlone) {
  UnforkedFd agent;
  int port = 65535;
  for (bool next_is_free = false; !next_is_free;) {
    agent = listen_tcp("127.0.0.1", 0);
    port = local_address(agent.get()).port();
    try {
      listen_tcp("127.0.0.1", static_cast<std::uint16_t>(port + 1));
      next_is_free = port < 65535;
    } catch (const Error&) {
      next_is_free = false;
    }
  }
  expect_ranks_meet(
      {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(port)}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
}

}  // namespace
}  // namespace tutti
