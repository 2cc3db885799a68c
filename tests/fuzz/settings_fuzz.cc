// What comes as text from the environment, the kernel's files and other ranks: settings, launch variables, addresses,
// quotas.
#include <algorithm>
#include <map>

#include "base/cgroup.h"
#include "bootstrap/launch.h"
#include "fuzz_main.h"
#include "net/address.h"
#include "tutti/config.h"
#include "tutti/error.h"

namespace tutti::fuzz {
namespace {

using Variables = std::map<std::string, std::string>;

// Lines "NAME=value", as `env` prints them.
Variables variables_of(std::string_view text) {
  Variables variables;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos) variables[std::string(line.substr(0, equals))] = line.substr(equals + 1);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return variables;
}

// A refusal is an Error of the user's making; anything else that is thrown is a finding.
template <class Act>
void refuse_or_take(Act&& act) {
  try {
    act();
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kInvalidArgument, "what is not understood is an invalid argument");
  }
}

void read_environment(const Variables& variables) {
  const auto get = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  refuse_or_take([&] {
    const Config config = parse_config(get);
    describe(config);
    require(config.spins >= -1 && config.flight_recorder_entries >= 0, "numbers stay within their bounds");
    require(config.heartbeat.count() >= 10 && config.heartbeat.count() <= 60'000, "times too");
    require(config.shared_threshold_bytes >= 1, "sizes too");
  });
  refuse_or_take([&] {
    const LaunchInfo info = launch_info(get);
    require(info.size >= 1 && info.rank >= 0 && info.rank < info.size && info.local_rank >= -1, "a rank of the job");
  });
}

void read_address(std::string_view text) {
  const auto address = SocketAddress::parse(text);
  if (!address) return;
  const std::string shown = address->text();
  const auto again = SocketAddress::parse(shown);
  require(again && again->text() == shown && again->port() == address->port(), "an address is what it shows");
}

void read_quota(std::string_view text) {
  const std::optional<double> quota = parse_cpu_max(text);
  require(!quota || *quota > 0, "a quota is positive");
  const std::string whole(text);
  const auto everywhere = cgroup_cpu_quota([&](const std::string&) { return std::optional<std::string>(whole); });
  require(!everywhere || *everywhere > 0, "on all levels");
  const std::optional<std::uint64_t> limit = parse_memory_limit(text);
  const auto of_all = cgroup_memory_limit([&](const std::string&) { return std::optional<std::string>(whole); });
  require(!of_all || (limit && *of_all == *limit), "a limit of memory is the same on all levels");
}

}  // namespace

void run(std::string_view bytes) {
  read_environment(variables_of(bytes));
  read_address(bytes);
  read_quota(bytes);
}

std::vector<std::string> seeds() {
  return {"RANK=1\nWORLD_SIZE=2\nLOCAL_RANK=1",
          "OMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=0",
          "SLURM_PROCID=3\nSLURM_NTASKS=4\nSLURM_LOCALID=1",
          "TUTTI_ALGORITHM=all_reduce=ring,all_gather=staged\nTUTTI_LOG_LEVEL=debug\nTUTTI_SPINS=-1",
          "TUTTI_STAGE_BYTES=256KiB\nTUTTI_ARENA_BYTES=64G\nTUTTI_SHARED_THRESHOLD=64k\nTUTTI_SHARED_ALLOCATOR=on",
          "TUTTI_HEARTBEAT_MS=500\nTUTTI_HOST_ID=a\nTUTTI_SOCKET_IFNAME=eth0\nTUTTI_FLIGHT_RECORDER_ENTRIES=10",
          "TUTTI_SECRET=s\nMASTER_ADDR=10.0.0.1\nLOCAL_WORLD_SIZE=2",
          "127.0.0.1:29500",
          "[fe80::1]:1",
          "150000 100000",
          "0::/user.slice\n4:cpu,cpuacct:/docker/1"};
}

}  // namespace tutti::fuzz
