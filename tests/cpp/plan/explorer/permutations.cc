#include "plan/explorer/permutations.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "plan/links.h"
#include "plan/operations.h"
#include "plan/sizes.h"

namespace tutti::plan::explorer {
namespace {

using Order = std::vector<std::int32_t>;

Order shuffled(std::size_t count, std::mt19937_64& random) {
  Order order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

// Calls visit(rank, block, op) for every operation, bodies included.
template <typename Visit>
void for_each_operation(Plan& plan, const Visit& visit) {
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for (ThreadBlock& block : plan.ranks[r].blocks) {
      for (Operation& op : block.operations) {
        visit(static_cast<std::int32_t>(r), block, op);
        for (Operation& inner : op.body) visit(static_cast<std::int32_t>(r), block, inner);
      }
    }
  }
}

template <typename Visit>
void for_each_operand(Operation& op, const Visit& visit) {
  std::for_each(op.sources.begin(), op.sources.end(), visit);
  std::for_each(op.destinations.begin(), op.destinations.end(), visit);
}

Place where(const Plan& plan, std::int32_t rank, const ThreadBlock& block, const Operation& op,
            const Operand& operand) {
  if (operand.place != Operand::Place::kGroup) return place_of(plan, rank, block, op, operand);
  const std::int32_t channel = block.channels_of(ChannelKind::kSwitch)[static_cast<std::size_t>(operand.id)];
  return {rank, plan.ranks[static_cast<std::size_t>(rank)].switch_channels[static_cast<std::size_t>(channel)].buffer};
}

void permute_blocks(Plan& plan, std::mt19937_64& random) {
  for (Rank& rank : plan.ranks) std::shuffle(rank.blocks.begin(), rank.blocks.end(), random);
}

void permute_semaphores(Plan& plan, std::mt19937_64& random) {
  std::vector<Order> orders;
  for (Rank& rank : plan.ranks) {
    orders.push_back(shuffled(rank.semaphores.size(), random));
    const std::vector<std::int32_t> before = rank.semaphores;
    for (std::size_t s = 0; s < before.size(); ++s) {
      rank.semaphores[static_cast<std::size_t>(orders.back()[s])] = before[s];
    }
  }
  for_each_operation(plan, [&](std::int32_t rank, ThreadBlock&, Operation& op) {
    for (std::int32_t& id : op.semaphore_ids) id = orders[static_cast<std::size_t>(rank)][static_cast<std::size_t>(id)];
  });
}

// False if an operand spans the blocks of two ranks, which then may lie apart.
bool permute_ranks(Plan& plan, std::mt19937_64& random) {
  const Shape shape = shape_of(plan);
  const Order to = shuffled(plan.ranks.size(), random);
  const auto renumber = [&to](std::int32_t& rank) { rank = to[static_cast<std::size_t>(rank)]; };
  bool possible = true;
  const Plan before = plan;
  for_each_operation(plan, [&](std::int32_t rank, ThreadBlock& block, Operation& op) {
    for_each_operand(op, [&](Operand& operand) {
      const Place place = where(before, rank, block, op, operand);
      if (place.buffer == BufferKind::kScratch) return;
      const auto buffer = static_cast<std::size_t>(place.buffer);
      const std::int32_t chunks = shape.block_chunks[buffer];
      if (shape.blocks[buffer] == 1 || chunks == 0) return;
      std::int32_t block_of = operand.index / chunks;
      possible = possible && (operand.index + operand.size - 1) / chunks == block_of;
      const std::int32_t within = operand.index % chunks;
      renumber(block_of);
      operand.index = block_of * chunks + within;
    });
  });
  if (!possible) return false;
  renumber(plan.root);
  std::vector<Rank> ranks(plan.ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    Rank& rank = ranks[static_cast<std::size_t>(to[r])];
    rank = std::move(plan.ranks[r]);
    for (auto& peers : rank.channels) std::for_each(peers.begin(), peers.end(), renumber);
    for (SwitchChannel& group : rank.switch_channels) std::for_each(group.ranks.begin(), group.ranks.end(), renumber);
    for (RemoteBuffer& remote : rank.remote_buffers) renumber(remote.rank);
  }
  plan.ranks = std::move(ranks);
  return true;
}

struct Range {
  Place place;
  std::int32_t begin, end;
  bool written;
};

std::vector<Range> ranges_of(const Plan& plan, std::int32_t rank, const ThreadBlock& block, const Operation& op) {
  std::vector<Range> ranges;
  const auto add = [&](const Operand& operand, bool written) {
    ranges.push_back({where(plan, rank, block, op, operand), operand.index, operand.index + operand.size, written});
  };
  for (const Operand& operand : op.sources) add(operand, false);
  for (const Operand& operand : op.destinations) add(operand, true);
  return ranges;
}

bool plain_move(const Operation& op) {
  return moves_data(op.kind) && !uses_packets(op) && op.channel != ChannelKind::kPort &&
         op.channel != ChannelKind::kSwitch;
}

// Whether two operations that follow each other in a thread block may change places.
bool independent(const Plan& plan, std::int32_t rank, const ThreadBlock& block, const Operation& a,
                 const Operation& b) {
  if (plain_move(a) && plain_move(b)) {
    for (const Range& x : ranges_of(plan, rank, block, a)) {
      for (const Range& y : ranges_of(plan, rank, block, b)) {
        if (!x.written && !y.written) continue;
        if (x.place.rank != y.place.rank) continue;
        const bool scratch = x.place.buffer == BufferKind::kScratch || y.place.buffer == BufferKind::kScratch;
        if (x.place.buffer != y.place.buffer && (scratch || !plan.in_place)) continue;
        if (x.place.buffer != y.place.buffer || (x.begin < y.end && y.begin < x.end)) return false;
      }
    }
    return true;
  }
  // Signals among each other, and waits.
  const SyncKind sync = rules_of(a.kind).sync;
  const bool counts = sync == SyncKind::kSignal || sync == SyncKind::kRelaxedSignal || sync == SyncKind::kWait ||
                      sync == SyncKind::kRelaxedWait;
  if (!counts || a.kind != b.kind || a.channel != ChannelKind::kMemory || b.channel != ChannelKind::kMemory) {
    return false;
  }
  return std::find_first_of(a.channel_ids.begin(), a.channel_ids.end(), b.channel_ids.begin(), b.channel_ids.end()) ==
         a.channel_ids.end();
}

bool permute_operations(Plan& plan, std::mt19937_64& random) {
  std::bernoulli_distribution half(0.5);
  bool any = false;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for (ThreadBlock& block : plan.ranks[r].blocks) {
      const auto stir = [&](std::vector<Operation>& list) {
        for (std::size_t i = 0; i + 1 < list.size(); ++i) {
          if (!half(random) || !independent(plan, static_cast<std::int32_t>(r), block, list[i], list[i + 1])) continue;
          std::swap(list[i], list[i + 1]);
          any = true;
        }
      };
      stir(block.operations);
      for (Operation& op : block.operations) stir(op.body);
    }
  }
  return any;
}

// In a thread block of its own, of a unit that others have to do with or not.
void add_loop(Plan& plan, std::mt19937_64& random) {
  std::int64_t unit = std::int64_t{1} << 25;
  for_each_operation(plan, [&unit](std::int32_t, ThreadBlock&, Operation& op) {
    if (op.kind == OpKind::kPipeline) unit = op.iteration.unit_bytes;
  });
  constexpr std::array<std::int64_t, 3> kThirds{3, 6, 9};
  Operation loop;
  loop.kind = OpKind::kPipeline;
  const std::int64_t scaled = unit * kThirds[random() % kThirds.size()] / 3;
  loop.iteration = {std::max<std::int64_t>(16, scaled), static_cast<std::int32_t>(1 + random() % 2)};
  loop.body.emplace_back();
  Rank& rank = plan.ranks[random() % plan.ranks.size()];
  rank.blocks.emplace_back().operations.push_back(std::move(loop));
}

bool add_chunk(Plan& plan, std::mt19937_64& random) {
  if (plan.reuse_resources) return false;  // which then would hold less of each
  ++plan.ranks[random() % plan.ranks.size()].chunks[static_cast<std::size_t>(BufferKind::kScratch)];
  return true;
}

}  // namespace

Permuted permuted(const Plan& plan, std::mt19937_64& random) {
  Permuted result{plan, ""};
  const auto note = [&result](const char* what) { result.how += (result.how.empty() ? "" : ", ") + std::string(what); };
  const auto wanted = [&random] { return random() % 2 == 0; };
  if (wanted() && permute_operations(result.plan, random)) note("operations");
  if (wanted()) {
    Plan other = result.plan;
    if (permute_ranks(other, random)) {
      result.plan = std::move(other);
      note("ranks");
    }
  }
  if (wanted()) {
    permute_semaphores(result.plan, random);
    note("semaphores");
  }
  if (random() % 4 == 0) {
    add_loop(result.plan, random);
    note("a loop more");
  }
  if (random() % 4 == 0 && add_chunk(result.plan, random)) note("a chunk more");
  permute_blocks(result.plan, random);
  note("thread blocks");
  return result;
}

}  // namespace tutti::plan::explorer
