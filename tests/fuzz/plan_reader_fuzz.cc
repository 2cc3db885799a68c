// Plans from arbitrary bytes: an Error of kind InvalidArgument, or a plan that comes back equal when written and read.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "plan/reader.h"
#include "plan/sizes.h"
#include "plan/verifier/verifier.h"
#include "plan/writer.h"
#include "tutti/error.h"

namespace {

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// Whatever the reader lets through, the verifier comes to a verdict on it. Only small ones, for speed.
void prove(const tutti::plan::Plan& plan) {
  std::size_t operations = 0;
  for (const auto& rank : plan.ranks) {
    for (const std::int32_t chunks : rank.chunks) {
      if (chunks > 256) return;
    }
    for (const auto& block : rank.blocks) operations += block.operations.size();
  }
  if (operations > 500 || plan.ranks.size() > 16) return;
  const auto verdict = tutti::plan::verify(plan);
  if (verdict.outcome != tutti::plan::Outcome::kRejected) return;
  if (verdict.fault.message.empty()) stop("rejected without a reason");
}

// Cutting into bytes must hold for every plan that the reader lets through.
void cut(const tutti::plan::Plan& plan, std::int64_t bytes) {
  try {
    const tutti::plan::Sizes sizes(plan, bytes);
    for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
      for (const auto& block : plan.ranks[rank].blocks) {
        for (const auto& op : block.operations) {
          if (!op.sources.empty() && op.sources[0].size > 64) continue;  // only slow
          for (const auto& move : sizes.moves_of(static_cast<std::int32_t>(rank), block, op)) {
            if (move.bytes <= 0) stop("an empty move");
          }
        }
      }
    }
  } catch (const tutti::Error& error) {
    if (error.kind() != tutti::ErrorKind::kUnsupported) stop(error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tutti::plan::Plan plan;
  try {
    plan = tutti::plan::read_plan(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const tutti::Error& error) {
    if (error.kind() != tutti::ErrorKind::kInvalidArgument) stop(error.what());
    return 0;
  }
  const tutti::plan::Plan again = tutti::plan::read_plan(tutti::plan::write_plan(plan, -1));
  if (!(again == plan)) stop("the plan came back different");
  cut(plan, 1000);
  prove(plan);
  return 0;
}
