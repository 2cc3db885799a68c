// Repairs are changes of the plan, so what they prove is proven like any other plan.
#include "plan/verifier/repair.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "plan/operations.h"
#include "plan/sizes.h"
#include "plan/verifier/verifier.h"

namespace tutti::plan {
namespace {

// Past this many groups of alike repairs, finding the least set costs more than it tells.
constexpr std::size_t kMostGroups = 64;

bool fits(const Operation& op, Repair::Kind kind) {
  if (kind == Repair::Kind::kFence) return uses_packets(op) && op.channel != ChannelKind::kPort && !op.fence;
  return op.kind == OpKind::kRelaxedSignal || op.kind == OpKind::kRelaxedWait;
}

Repair::Kind kind_for(const Operation& op, Repair::Kind kind) {
  if (kind == Repair::Kind::kFence) return kind;
  return op.kind == OpKind::kRelaxedWait ? Repair::Kind::kWait : Repair::Kind::kSignal;
}

// Port channels, as the block numbers them, whose last transfer is not followed by a flush.
std::vector<std::int32_t> unflushed(const ThreadBlock& block) {
  std::map<std::int32_t, bool> open;
  const auto note = [&open](const Operation& op) {
    if (op.channel != ChannelKind::kPort) return;
    const OperationRules& rules = rules_of(op.kind);
    for (const std::int32_t id : op.channel_ids) {
      if (moves_data(op.kind)) open[id] = !rules.flushes;
      if (rules.sync == SyncKind::kFlush) open[id] = false;
    }
  };
  for (const Operation& op : block.operations) {
    note(op);
    std::for_each(op.body.begin(), op.body.end(), note);
  }
  std::vector<std::int32_t> channels;
  for (const auto& [id, is_open] : open) {
    if (is_open) channels.push_back(id);
  }
  return channels;
}

void apply(Operation& op, Repair::Kind kind) {
  if (kind == Repair::Kind::kSignal) op.kind = OpKind::kSignal;
  if (kind == Repair::Kind::kWait) op.kind = OpKind::kWait;
  if (kind == Repair::Kind::kFence) op.fence = true;
}

}  // namespace

std::vector<Repair> possible_repairs(const Plan& plan, Repair::Kind kind) {
  std::vector<Repair> repairs;
  if (kind == Repair::Kind::kSize) {
    const std::int64_t bytes = bytes_without_ring(plan);
    const auto limit = static_cast<std::uint64_t>(bytes);
    if (bytes < std::numeric_limits<std::int64_t>::max() && plan.min_message_bytes <= limit &&
        plan.max_message_bytes > limit) {
      repairs.push_back({kind, 0, 0, -1, -1, -1, bytes});
    }
    return repairs;
  }
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for (std::size_t b = 0; b < plan.ranks[r].blocks.size(); ++b) {
      const ThreadBlock& block = plan.ranks[r].blocks[b];
      Repair repair{kind, static_cast<std::int32_t>(r), static_cast<std::int32_t>(b), -1, -1, -1, 0};
      if (kind == Repair::Kind::kFlush) {
        for (const std::int32_t channel : unflushed(block)) {
          repair.channel = channel;
          repairs.push_back(repair);
        }
        continue;
      }
      const auto note = [&](const Operation& op, std::size_t index, std::int32_t inner) {
        if (!fits(op, kind)) return;
        repair.kind = kind_for(op, kind);
        repair.op = static_cast<std::int32_t>(index);
        repair.inner = inner;
        repairs.push_back(repair);
      };
      for (std::size_t i = 0; i < block.operations.size(); ++i) {
        const auto& body = block.operations[i].body;
        note(block.operations[i], i, -1);
        for (std::size_t k = 0; k < body.size(); ++k) note(body[k], i, static_cast<std::int32_t>(k));
      }
    }
  }
  return repairs;
}

std::vector<Repair> necessary_repairs(std::vector<Repair> repairs,
                                      const std::function<bool(const std::vector<Repair>&)>& proves) {
  // Ranks mostly run the same program, so what stands at one place of it goes or stays together.
  const auto group = [](const Repair& r) { return std::make_tuple(r.kind, r.block, r.op, r.inner, r.channel); };
  std::map<decltype(group(Repair{})), int> groups;
  for (const Repair& repair : repairs) ++groups[group(repair)];
  if (groups.size() > kMostGroups) return repairs;
  for (const auto& [key, count] : groups) {
    std::vector<Repair> fewer;
    std::copy_if(repairs.begin(), repairs.end(), std::back_inserter(fewer),
                 [&, &left_out = key](const Repair& repair) { return group(repair) != left_out; });
    if (proves(fewer)) repairs = std::move(fewer);
  }
  return repairs;
}

Plan repaired(Plan plan, const std::vector<Repair>& repairs) {
  for (const Repair& repair : repairs) {
    if (repair.kind == Repair::Kind::kInput) {
      plan.writes_input = true;
      continue;
    }
    if (repair.kind == Repair::Kind::kSize) {
      plan.max_message_bytes = std::min(plan.max_message_bytes, static_cast<std::uint64_t>(repair.bytes));
      continue;
    }
    ThreadBlock& block = plan.ranks[repair.rank].blocks[repair.block];
    if (repair.kind == Repair::Kind::kFlush) {
      Operation flush;
      flush.kind = OpKind::kFlush;
      flush.channel = ChannelKind::kPort;
      flush.channel_ids = {repair.channel};
      block.operations.push_back(std::move(flush));
      continue;
    }
    Operation& op = block.operations[repair.op];
    apply(repair.inner < 0 ? op : op.body[repair.inner], repair.kind);
  }
  return plan;
}

}  // namespace tutti::plan
