#include "nccl/report.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>

#include "base/registry.h"
#include "nccl/real_library.h"

namespace tutti::nccl {
namespace {

struct Counters {
  const pid_t process = ::getpid();
  // relaxed throughout: nothing follows from them, and the report reads when the calls are over.
  std::array<std::array<std::atomic<std::uint64_t>, kReasons>, kFunctions> calls{};
  std::array<std::atomic<std::uint64_t>, kFunctions> bytes{}, planned{};
  std::mutex mutex;
  std::map<std::string, std::uint64_t> served;  // communicators by transport
  std::map<std::string, std::uint64_t> left;    // and by reason
};
// Never destroyed: calls may come from other libraries' destructors.
constinit std::atomic<Counters*> of_process{nullptr};

// A forked child has its own: its parent has made the other calls.
Counters& counters() {
  // acquire: pairs with the release of whoever has made them, here and below.
  Counters* here = of_process.load(std::memory_order_acquire);
  if (here != nullptr && (!forked_child() || here->process == ::getpid())) return *here;
  auto made = std::make_unique<Counters>();
  // release: publishes what was made.
  if (!of_process.compare_exchange_strong(here, made.get(), std::memory_order_acq_rel, std::memory_order_acquire)) {
    return *here;
  }
  return *made.release();
}

// Of a forked child that has made no calls nothing is said.
bool counts_here() noexcept {
  // acquire: as in counters().
  const Counters* const here = of_process.load(std::memory_order_acquire);
  return here != nullptr ? here->process == ::getpid() : !forked_child();
}

std::string size_text(std::uint64_t bytes) {
  std::array<char, 32> text{};
  const double value = static_cast<double>(bytes);
  if (bytes < 1024) {
    std::snprintf(text.data(), text.size(), "%llu B", static_cast<unsigned long long>(bytes));
  } else if (bytes < 1024 * 1024) {
    std::snprintf(text.data(), text.size(), "%.1f KB", value / 1024);
  } else {
    std::snprintf(text.data(), text.size(), "%.1f MB", value / (1024 * 1024));
  }
  return text.data();
}

std::string line_of(Function function) {
  Counters& all = counters();
  const auto& calls = all.calls[static_cast<std::size_t>(function)];
  std::uint64_t left = 0;
  std::string why;
  for (int r = 1; r < kReasons; ++r) {
    const std::uint64_t count = calls[static_cast<std::size_t>(r)].load(std::memory_order_relaxed);
    if (count == 0) continue;
    left += count;
    why += (why.empty() ? ": " : ", ") + std::string(to_string(static_cast<Reason>(r))) + " " + std::to_string(count);
  }
  const std::uint64_t here = calls[0].load(std::memory_order_relaxed);
  if (here + left == 0) return {};
  const std::uint64_t bytes = all.bytes[static_cast<std::size_t>(function)].load(std::memory_order_relaxed);
  const std::uint64_t planned = all.planned[static_cast<std::size_t>(function)].load(std::memory_order_relaxed);
  const std::string plans = planned > 0 ? ", " + std::to_string(planned) + " by plans" : "";
  return std::string("  ") + to_string(function) + ": " + std::to_string(here) + " by Tutti (" + size_text(bytes) +
         plans + "), " + std::to_string(left) + " by NCCL" + why + "\n";
}

// When the process ends in order, or the library is closed.
struct AtExit {
  ~AtExit() {
    if (settings().report && real_is_known() && counts_here()) std::fputs(report().c_str(), stderr);
  }
} at_exit;

}  // namespace

void count_call(Function function, Reason reason, std::size_t bytes, bool planned) noexcept {
  Counters& all = counters();
  all.calls[static_cast<std::size_t>(function)][static_cast<std::size_t>(reason)].fetch_add(1,
                                                                                            std::memory_order_relaxed);
  if (reason == Reason::kNone) {
    all.bytes[static_cast<std::size_t>(function)].fetch_add(bytes, std::memory_order_relaxed);
    if (planned) all.planned[static_cast<std::size_t>(function)].fetch_add(1, std::memory_order_relaxed);
  }
}

void count_communicator(const std::string& transport, const std::string& reason) {
  Counters& all = counters();
  const std::lock_guard lock(all.mutex);
  ++(reason.empty() ? all.served[transport] : all.left[reason]);
}

std::string report() {
  const Real& library = real();
  std::string why = settings().problem;
  if (why.empty() && !settings().on) why = "TUTTI_NCCL=1 is not set";
  std::string text =
      "tutti: NCCL's calls in process " + std::to_string(::getpid()) + ", above " +
      (library.problem.empty() ? "NCCL " + library.version + " (" + library.path + ")" : library.problem) +
      (why.empty() ? why : ", all left to it: " + why) + "\n";
  Counters& all = counters();
  {
    const std::lock_guard lock(all.mutex);
    for (const auto& [transport, count] : all.served) {
      text += "  communicators on Tutti, " + transport + ": " + std::to_string(count) + "\n";
    }
    for (const auto& [reason, count] : all.left) {
      text += "  communicators left to NCCL, " + reason + ": " + std::to_string(count) + "\n";
    }
  }
  for (int f = 0; f < kFunctions; ++f) text += line_of(static_cast<Function>(f));
  return text;
}

}  // namespace tutti::nccl
