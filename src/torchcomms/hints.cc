#include "torchcomms/hints.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/parse.h"

namespace tutti::torchcomms {
namespace {

constexpr std::string_view kPrefix = "tutti.";
// What group.h's make_group() reads.
constexpr std::array<std::string_view, 2> kSettled = {"tutti.algorithm", "tutti.max_blocks"};
constexpr const char* kMaxBlocks = "tutti.max_blocks";
constexpr const char* kAbortProcess = "tutti.abort_process";

bool settled(std::string_view name) { return std::find(kSettled.begin(), kSettled.end(), name) != kSettled.end(); }

bool ours(const std::string& name) { return name.compare(0, kPrefix.size(), kPrefix) == 0; }

}  // namespace

std::string wrong_hint(const Hints& hints) {
  for (const auto& [name, value] : hints) {
    int blocks = 0;
    if (name == kMaxBlocks && !parse_number(std::string_view(value), 0, 64, blocks)) {
      return "hint '" + name + "' is 0 (chosen) to 64, not '" + value + "'";
    }
    if (!ours(name) || settled(name)) continue;
    if (name != kAbortProcess) {
      return "hint '" + name + "' is not known: tutti takes tutti.algorithm, tutti.max_blocks and tutti.abort_process";
    }
    if (value != "0" && value != "1") return "hint '" + name + "' is 0 or 1, not '" + value + "'";
  }
  return {};
}

std::string wrong_hint_of_call(const Hints& hints) {
  for (const auto& [name, value] : hints) {
    if (ours(name)) {
      return "hint '" + name + "' is not for a call: tutti's hints are those of new_comm, reconfigure and set_hints";
    }
  }
  return {};
}

std::string unchangeable_hint(const Hints& made, const Hints& hints) {
  for (const auto& [name, value] : hints) {
    if (!settled(name)) continue;
    const auto found = made.find(name);
    if (found != made.end() && found->second == value) continue;
    return "hint '" + name +
           "' settles how the communicator's group is made, and that has been: pass it to reconfigure";
  }
  return {};
}

void keep_settled(const Hints& made, Hints& hints) {
  for (const auto& [name, value] : made) {
    if (settled(name)) hints.emplace(name, value);
  }
}

bool failure_aborts(const Hints& hints) {
  const auto found = hints.find(kAbortProcess);
  return found != hints.end() && found->second == "1";
}

}  // namespace tutti::torchcomms
