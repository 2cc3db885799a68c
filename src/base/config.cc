// The table of TUTTI_* variables: how each is parsed, shown and explained. One row a variable.
#include "tutti/config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdlib>

#include "base/parse.h"
#include "tutti/error.h"
#include "tutti/types.h"

namespace tutti {
namespace {

struct Variable {
  const char* name;
  const char* allowed;  // completes "may be ..."
  const char* help;
  bool (*parse)(std::string_view text, Config& config);  // false: not allowed
  std::string (*show)(const Config& config);
};

// Zero, which stands for "chosen", or something from `least` to `most`.
bool parse_chosen_or_bytes(std::string_view text, std::size_t least, std::size_t most, std::size_t& value) {
  const std::optional<std::size_t> parsed = parse_bytes(text);
  if (!parsed || (*parsed != 0 && (*parsed < least || *parsed > most))) return false;
  value = *parsed;
  return true;
}

bool parse_printable(std::string_view text, std::size_t most, std::string& value) {
  const bool printable = std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isgraph(c) != 0; });
  if (!printable || text.size() > most) return false;
  value = text;
  return true;
}

// As the kernel has them: up to 15 characters each.
bool parse_interfaces(std::string_view text, Config& config) {
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    std::string name;
    if (!parse_printable(rest.substr(0, comma), 15, name)) return false;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  config.interface = text;
  return true;
}

bool parse_level(std::string_view text, Config& config) {
  constexpr std::array<std::string_view, 4> kLevels{"error", "warning", "info", "debug"};
  const std::string word = lower(text);
  for (std::size_t i = 0; i < kLevels.size(); ++i) {
    if (word == kLevels[i] || word == std::to_string(i)) {
      config.log_level = kLevels[i];
      return true;
    }
  }
  return false;
}

bool names_collective(std::string_view name) {
  for (int i = 0; i < kCollectiveCount; ++i) {
    if (name == to_string(static_cast<Collective>(i))) return true;
  }
  return false;
}

// Whether an algorithm of that name exists is for the selector to say: this layer knows none.
bool parse_algorithm(std::string_view text, Config& config) {
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view choice = rest.substr(0, comma);
    const std::size_t equals = choice.find('=');
    if (equals == std::string_view::npos || !names_collective(choice.substr(0, equals))) return false;
    std::string name;
    if (equals + 1 == choice.size() || !parse_printable(choice.substr(equals + 1), 64, name)) return false;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  config.algorithm = text;
  return true;
}

bool parse_heartbeat(std::string_view text, Config& config) {
  std::int64_t ms = 0;
  if (!parse_number<std::int64_t>(text, 10, 60'000, ms)) return false;
  config.heartbeat = std::chrono::milliseconds(ms);
  return true;
}

std::string show_bytes(std::size_t bytes) {
  if (bytes == 0) return "chosen";
  constexpr std::string_view kPrefixes = "KMGT";
  std::size_t power = 0;
  while (power < kPrefixes.size() && bytes % 1024 == 0) {
    bytes /= 1024;
    ++power;
  }
  return std::to_string(bytes) + (power == 0 ? std::string() : std::string(1, kPrefixes[power - 1]));
}

std::string show_text(const std::string& text) { return text.empty() ? "unset" : text; }

std::string show_place(const std::string& path) { return path.empty() ? "chosen" : path; }

// Tutti's folder among the user's files of one sort, as the XDG base directory specification has it: a variable that
// is set to an absolute path counts, else a folder in the user's home.
std::string user_folder(const std::function<const char*(const char*)>& get, const char* variable, const char* at_home) {
  const char* const set = get(variable);
  if (set != nullptr && *set == '/') return std::string(set) + "/tutti";
  const char* const home = get("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + at_home : std::string();
}

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kGiB = 1024 * kMiB;
constexpr std::size_t kTiB = 1024 * kGiB;

constexpr std::array<Variable, 24> kVariables{{
    {"TUTTI_LOG_LEVEL", "error, warning, info or debug", "how much is written to standard error", parse_level,
     [](const Config& c) { return c.log_level; }},
    {"TUTTI_HOST_ID", "up to 255 printable characters without blanks",
     "ranks with different ids never share memory: splits one machine into several hosts",
     [](std::string_view t, Config& c) { return parse_printable(t, 255, c.host_id); },
     [](const Config& c) { return show_text(c.host_id); }},
    {"TUTTI_SECRET", "up to 4096 bytes", "shared secret that every connection proves; random when unset",
     [](std::string_view t, Config& c) {
       c.secret = t;
       return t.size() <= 4096;
     },
     [](const Config& c) { return std::string(c.secret.empty() ? "unset" : "set"); }},
    {"TUTTI_SOCKET_IFNAME", "the name of a network interface, or several, separated by commas",
     "interface for connections between hosts", parse_interfaces,
     [](const Config& c) { return show_text(c.interface); }},
    {"TUTTI_STAGE_BYTES", "0 (chosen from the caches) or a size from 256 to 1G, such as 256K",
     "staging memory a rank for messages that are not mapped",
     [](std::string_view t, Config& c) { return parse_chosen_or_bytes(t, 256, kGiB, c.stage_bytes); },
     [](const Config& c) { return show_bytes(c.stage_bytes); }},
    {"TUTTI_ARENA_BYTES", "0 (chosen from the memory) or a size from 2M to 16T, such as 64G",
     "address space of the arena of mapped tensors",
     [](std::string_view t, Config& c) { return parse_chosen_or_bytes(t, 2 * kMiB, 16 * kTiB, c.arena_bytes); },
     [](const Config& c) { return show_bytes(c.arena_bytes); }},
    {"TUTTI_SHARED_THRESHOLD", "a size from 1 to 1T, such as 64K",
     "smallest CPU tensor that the shared allocator serves",
     [](std::string_view t, Config& c) {
       const auto parsed = parse_bytes(t);
       if (!parsed || *parsed < 1 || *parsed > kTiB) return false;
       c.shared_threshold_bytes = *parsed;
       return true;
     },
     [](const Config& c) { return show_bytes(c.shared_threshold_bytes); }},
    {"TUTTI_CROSS_MEMORY", "1 or 0",
     "ranks of one host may read each other's tensors by the kernel (process_vm_readv), where that pays",
     [](std::string_view t, Config& c) { return parse_bool(t, c.cross_memory); },
     [](const Config& c) { return std::string(c.cross_memory ? "1" : "0"); }},
    {"TUTTI_SHARED_ALLOCATOR", "1 or 0", "every large CPU tensor is mapped by all ranks of the host",
     [](std::string_view t, Config& c) { return parse_bool(t, c.shared_allocator); },
     [](const Config& c) { return std::string(c.shared_allocator ? "1" : "0"); }},
    {"TUTTI_SPINS", "-1 (chosen from cores and ranks) or 0 to 1000000000", "polls before a wait sleeps",
     [](std::string_view t, Config& c) { return parse_number(t, -1, 1'000'000'000, c.spins); },
     [](const Config& c) { return c.spins < 0 ? std::string("chosen") : std::to_string(c.spins); }},
    {"TUTTI_FLIGHT_RECORDER_ENTRIES", "0 to 10000000", "calls that a communicator remembers",
     [](std::string_view t, Config& c) { return parse_number(t, 0, 10'000'000, c.flight_recorder_entries); },
     [](const Config& c) { return std::to_string(c.flight_recorder_entries); }},
    {"TUTTI_ALGORITHM", "a list such as all_reduce=ring,all_gather=staged", "forces the algorithm of a collective",
     parse_algorithm, [](const Config& c) { return show_text(c.algorithm); }},
    {"TUTTI_PLAN_PATH", "a file or a folder", "plans that are used before the built-in algorithms",
     [](std::string_view t, Config& c) {
       c.plan_path = t;
       return true;
     },
     [](const Config& c) { return show_text(c.plan_path); }},
    {"TUTTI_TUNING_PATH", "a file, a folder or none", "what `tutti tune` has measured",
     [](std::string_view t, Config& c) {
       c.tuning_path = t;
       return true;
     },
     [](const Config& c) { return show_place(c.tuning_path); }},
    {"TUTTI_CACHE_DIR", "a folder or none",
     "where it is kept which plans have been proven, and what was compiled of them",
     [](std::string_view t, Config& c) {
       c.cache_dir = t;
       return true;
     },
     [](const Config& c) { return show_place(c.cache_dir); }},
    {"TUTTI_PLUGIN_PATH", "directories separated by ':'", "where libtutti_cuda.so is looked for before libtutti's own",
     [](std::string_view t, Config& c) {
       c.plugin_path = t;
       return true;
     },
     [](const Config& c) { return show_text(c.plugin_path); }},
    {"TUTTI_NCCL_LIB_PATH", "a file", "NCCL's library, for groups on GPUs of several hosts; looked for when unset",
     [](std::string_view t, Config& c) {
       c.nccl_library = t;
       return true;
     },
     [](const Config& c) { return show_place(c.nccl_library); }},
    {"TUTTI_CUDA_TRANSPORT", "peer or host", "memory through which GPUs exchange data; chosen by a probe when unset",
     [](std::string_view t, Config& c) {
       c.cuda_transport = t;
       return t == "peer" || t == "host";
     },
     [](const Config& c) { return show_text(c.cuda_transport); }},
    {"TUTTI_CUDA_ALGORITHM", "a name such as ll_one_shot, then if wanted @BLOCKS or @BLOCKSxTHREADS",
     "forces the algorithm on GPUs where it can run the call",
     [](std::string_view t, Config& c) { return parse_printable(t, 64, c.cuda_algorithm); },
     [](const Config& c) { return show_text(c.cuda_algorithm); }},
    {"TUTTI_CUDA_MAX_BLOCKS", "0 (chosen) to 64", "most blocks of a kernel on GPUs: leaves the rest to the model",
     [](std::string_view t, Config& c) { return parse_number(t, 0, 64, c.cuda_max_blocks); },
     [](const Config& c) {
       return c.cuda_max_blocks == 0 ? std::string("chosen") : std::to_string(c.cuda_max_blocks);
     }},
    {"TUTTI_CUDA_COMPILE", "off, on or wait",
     "whether plans are compiled for GPUs: not, beside the calls, or before the first call of a size",
     [](std::string_view t, Config& c) {
       c.cuda_compile = t;
       return t == "off" || t == "on" || t == "wait";
     },
     [](const Config& c) { return c.cuda_compile; }},
    {"TUTTI_NVRTC", "a file", "the library that compiles plans for GPUs; looked for when unset",
     [](std::string_view t, Config& c) {
       c.nvrtc = t;
       return true;
     },
     [](const Config& c) { return show_place(c.nvrtc); }},
    {"TUTTI_CUDA_WATCHDOG", "log, end or none",
     "what follows a failure on a GPU: a line on standard error, or the process's end",
     [](std::string_view t, Config& c) {
       c.cuda_watchdog = t;
       return t == "log" || t == "end" || t == "none";
     },
     [](const Config& c) { return c.cuda_watchdog; }},
    {"TUTTI_HEARTBEAT_MS", "10 to 60000", "a sixth of the milliseconds for which another host may be silent",
     parse_heartbeat, [](const Config& c) { return std::to_string(c.heartbeat.count()); }},
}};

}  // namespace

Config parse_config(const std::function<const char*(const char*)>& get) {
  Config config;
  for (const Variable& variable : kVariables) {
    const char* const text = get(variable.name);
    if (text == nullptr || *text == '\0') continue;  // set but empty is how shells unset
    if (!variable.parse(text, config)) {
      // The secret's value stays out of messages and logs.
      const bool secret = std::string_view(variable.name) == "TUTTI_SECRET";
      throw_error(ErrorKind::kInvalidArgument, std::string(variable.name) + "=" + (secret ? "(hidden)" : text) +
                                                   " is not valid: it may be " + variable.allowed);
    }
  }
  config.user_config = user_folder(get, "XDG_CONFIG_HOME", "/.config/tutti");
  config.user_cache = user_folder(get, "XDG_CACHE_HOME", "/.cache/tutti");
  // Set by launchers, not by users: what is not understood is passed over.
  if (const char* const address = get("MASTER_ADDR"); address != nullptr) config.master_address = address;
  if (const char* const ranks = get("LOCAL_WORLD_SIZE"); ranks != nullptr) {
    if (!parse_number(std::string_view(ranks), 1, 1'000'000, config.local_world_size)) config.local_world_size = 0;
  }
  return config;
}

Config config_from_environment() {
  return parse_config([](const char* name) -> const char* { return std::getenv(name); });
}

std::vector<ConfigVariable> describe(const Config& config) {
  std::vector<ConfigVariable> rows;
  rows.reserve(kVariables.size());
  for (const Variable& variable : kVariables) {
    rows.push_back({variable.name, variable.show(config), std::string(variable.help) + "; may be " + variable.allowed});
  }
  return rows;
}

}  // namespace tutti
