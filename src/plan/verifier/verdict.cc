// Verdicts in words.
#include "plan/verifier/verdict.h"

#include <array>

namespace tutti::plan {

std::string_view to_string(Outcome outcome) noexcept {
  constexpr std::array<std::string_view, 3> kNames{"proven", "proven after repair", "rejected"};
  return kNames[static_cast<std::size_t>(outcome)];
}

std::string_view to_string(FaultKind kind) noexcept {
  constexpr std::array<std::string_view, 10> kNames{
      "none",      "race",    "deadlock",  "leftover",         "wrong result",
      "lost data", "packets", "too large", "nothing to check", "input"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view to_string(Repair::Kind kind) noexcept {
  constexpr std::array<std::string_view, 6> kNames{"signal", "wait", "flush", "fence", "size", "input"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string describe(const Site& site) {
  std::string text = "rank " + std::to_string(site.rank);
  if (site.block < 0) return site.name + " of " + text;
  text += ", thread block " + std::to_string(site.block) + ", operation " + std::to_string(site.op);
  if (site.inner >= 0) text += "." + std::to_string(site.inner);
  text += " (" + site.name;
  if (!site.origin.empty()) text += ", " + site.origin;
  if (site.iteration >= 0) text += ", iteration " + std::to_string(site.iteration);
  if (site.invocation > 0) text += ", call " + std::to_string(site.invocation + 1);
  return text + ")";
}

std::string describe(const Repair& repair) {
  if (repair.kind == Repair::Kind::kInput) {
    return "all ranks: writes_input becomes true: each call runs on a copy of its input";
  }
  if (repair.kind == Repair::Kind::kSize) {
    return "all ranks: max_message_size becomes " + std::to_string(repair.bytes) +
           ", past which loops would use scratch anew";
  }
  std::string where = "rank " + std::to_string(repair.rank) + ", thread block " + std::to_string(repair.block);
  if (repair.kind == Repair::Kind::kFlush) {
    return where + ": flush of its port channel " + std::to_string(repair.channel) + " added at the end";
  }
  where += ", operation " + std::to_string(repair.op);
  if (repair.inner >= 0) where += "." + std::to_string(repair.inner);
  switch (repair.kind) {
    case Repair::Kind::kSignal:
      return where + ": rlxsignal becomes signal";
    case Repair::Kind::kWait:
      return where + ": rlxwait becomes wait";
    default:
      return where + ": its packets also order plain data";
  }
}

}  // namespace tutti::plan
