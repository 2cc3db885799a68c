// What the environment says to the library under NCCL's name: docs/nccl.md lists the variables.
//
// Ownership: read once a process. Thread rule: any thread.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace tutti::nccl {

// Functions that are decided about and counted.
enum class Function {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kSend,
  kReceive,
};
inline constexpr int kFunctions = 10;
inline constexpr int kCollectives = 8;  // the first of them
const char* to_string(Function function) noexcept;

// "not said": the measured limit counts.
inline constexpr std::size_t kMeasured = static_cast<std::size_t>(-1);

struct Settings {
  bool on = false;                                  // TUTTI_NCCL
  bool report = false;                              // TUTTI_NCCL_REPORT
  std::string library;                              // TUTTI_NCCL_LIB_PATH
  std::string plan_path;                            // TUTTI_PLAN_PATH: as Config::plan_path
  std::array<std::size_t, kCollectives> max_bytes;  // TUTTI_NCCL_MAX_BYTES, TUTTI_NCCL_LEAVE: largest message a call
  std::chrono::milliseconds patience{20'000};       // TUTTI_NCCL_PATIENCE_MS: with ranks that do not answer
  std::string problem;                              // what could not be read: then all is left to NCCL
  Settings() { max_bytes.fill(kMeasured); }
};

// Reads the variables through `get` (null when unset).
Settings parse_settings(const std::function<const char*(const char*)>& get);

const Settings& settings();

// One of NCCL's own variables, as it is now; empty if it is not set. NCCL adds those of its files to the environment
// when it makes its first communicator or id.
std::string nccl_setting(const char* name);

// What they say against kernels that reach the memory of peers, or nothing. Asked when NCCL has made a communicator.
std::string peer_access_problem();

}  // namespace tutti::nccl
