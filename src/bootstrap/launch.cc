#include "bootstrap/launch.h"

#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>

#include "base/parse.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/tcp_store.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::optional<std::string> variable(const Environment& get, const char* name) {
  const char* value = get(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> number(const Environment& get, const char* name, int least, int most) {
  const std::optional<std::string> text = variable(get, name);
  if (!text) return std::nullopt;
  int value = 0;
  if (!parse_number(*text, least, most, value)) {
    throw_error(ErrorKind::kInvalidArgument, std::string(name) + " is \"" + *text + "\"; it must be a number from " +
                                                 std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

// One launcher's names of the three numbers.
struct Dialect {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  bool both;  // there is no size without a rank
};
constexpr Dialect kDialects[] = {
    {"environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", true},
    // Before SLURM: mpirun inside of an allocation sets both, and SLURM's then count mpirun's own processes.
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", true},
    {"SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", false},
};

}  // namespace

Environment process_environment() {
  return [](const char* name) -> const char* { return std::getenv(name); };
}

LaunchInfo launch_info(const Environment& get) {
  constexpr int kMost = std::numeric_limits<int>::max();
  for (const Dialect& dialect : kDialects) {
    const std::optional<int> rank = number(get, dialect.rank, 0, kMost);
    if (!rank) continue;
    const std::optional<int> size = number(get, dialect.size, 1, kMost);
    if (!size) {
      throw_error(ErrorKind::kInvalidArgument,
                  std::string(dialect.rank) + " is set but " + dialect.size + " is not: set both or none");
    }
    if (*rank >= *size) {
      throw_error(ErrorKind::kInvalidArgument, std::string(dialect.rank) + "=" + std::to_string(*rank) +
                                                   " does not exist with " + dialect.size + "=" +
                                                   std::to_string(*size));
    }
    return {*rank, *size, number(get, dialect.local_rank, 0, kMost).value_or(-1), dialect.launcher};
  }
  // A program that was to be one of several would go on alone.
  for (const Dialect& dialect : kDialects) {
    if (!dialect.both || number(get, dialect.size, 1, kMost).value_or(1) == 1) continue;
    throw_error(ErrorKind::kInvalidArgument,
                std::string(dialect.size) + " is set but " + dialect.rank + " is not: set both or none");
  }
  return {};
}

std::shared_ptr<Store> store_from_environment(int rank, int size, std::chrono::milliseconds timeout,
                                              const Environment& get) {
  if (size == 1) return std::make_shared<MemoryStore>();
  TcpStoreOptions options;
  std::optional<std::string> host = variable(get, "TUTTI_MASTER_ADDR");
  if (!host) host = variable(get, "MASTER_ADDR");
  std::optional<int> port = number(get, "TUTTI_MASTER_PORT", 1, 65535);
  if (!port) {
    port = number(get, "MASTER_PORT", 1, 65535);
    const bool torchrun = variable(get, "TORCHELASTIC_USE_AGENT_STORE") == "True";
    if (port && torchrun) port = *port < 65535 ? *port + 1 : *port - 1;
  }
  if (!host || !port) {
    throw_error(ErrorKind::kInvalidArgument, std::string(!host ? "MASTER_ADDR" : "MASTER_PORT") +
                                                 " is not set: give all ranks the address of rank 0's machine and a "
                                                 "free port there (TUTTI_MASTER_ADDR and TUTTI_MASTER_PORT, or "
                                                 "MASTER_ADDR and MASTER_PORT)");
  }
  options.host = *host;
  options.port = static_cast<std::uint16_t>(*port);
  options.serve = rank == 0;
  options.secret = variable(get, "TUTTI_SECRET").value_or("");
  options.logger = Logger(parse_log_level(variable(get, "TUTTI_LOG_LEVEL").value_or("")), rank);
  options.timeout = timeout;
  return std::make_shared<TcpStore>(options);
}

}  // namespace tutti
