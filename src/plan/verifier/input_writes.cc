// Looks for the first operation that writes an input.
#include "plan/verifier/input_writes.h"

#include <algorithm>
#include <string>

#include "plan/links.h"
#include "plan/operations.h"

namespace tutti::plan {
namespace {

bool writes_an_input(const Plan& plan, std::int32_t rank, const ThreadBlock& block, const Operation& op) {
  return std::any_of(op.destinations.begin(), op.destinations.end(), [&](const Operand& operand) {
    if (operand.place == Operand::Place::kGroup) {
      const std::int32_t channel = block.channels_of(ChannelKind::kSwitch)[operand.id];
      return plan.ranks[rank].switch_channels[channel].buffer == BufferKind::kInput;
    }
    return place_of(plan, rank, block, op, operand).buffer == BufferKind::kInput;
  });
}

Fault fault_at(const Operation& op, Site site) {
  site.name = to_string(op.kind);
  site.origin = op.origin;
  return {FaultKind::kInput,
          describe(site) + " writes an input, which is the caller's: the plan is neither in place, nor does it say " +
              "\"writes_input\" to be given a copy",
          {site}};
}

}  // namespace

std::optional<Fault> undeclared_input_write(const Plan& plan) {
  if (plan.in_place || plan.writes_input) return std::nullopt;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for (std::size_t b = 0; b < plan.ranks[r].blocks.size(); ++b) {
      const ThreadBlock& block = plan.ranks[r].blocks[b];
      Site site;
      site.rank = static_cast<std::int32_t>(r);
      site.block = static_cast<std::int32_t>(b);
      for (const Operation& op : block.operations) {
        ++site.op;
        site.inner = -1;
        if (writes_an_input(plan, site.rank, block, op)) return fault_at(op, site);
        for (const Operation& inner : op.body) {
          ++site.inner;
          if (writes_an_input(plan, site.rank, block, inner)) return fault_at(inner, site);
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace tutti::plan
