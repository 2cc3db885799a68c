#include "plan/explorer/sampler.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/links.h"
#include "plan/operations.h"

namespace tutti::plan {
namespace {

// A cell is (rank, buffer, chunk, half); packets are kept apart from plain data.
using Cell = std::tuple<std::int32_t, int, std::int32_t, std::int32_t>;
// The oldest entry of a cell's history that may still be read: its place in the order of writes.
using View = std::map<Cell, double>;

struct Entry {
  std::uint64_t value = 0;
  std::int32_t call = -1;  // whose flag a packet carries
};

struct Wrong {
  std::string what;
};

std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t input_of(std::int64_t rank, std::int64_t chunk, std::int64_t call) {
  return scramble(scramble(scramble(static_cast<std::uint64_t>(rank)) + static_cast<std::uint64_t>(chunk)) +
                  static_cast<std::uint64_t>(call));
}

void join(View& into, const View& from) {
  for (const auto& [cell, place] : from) {
    auto& mine = into[cell];
    mine = std::max(mine, place);
  }
}

struct Token {
  View released;   // what an acquire learns
  View published;  // … and what anyone learns: what was there before the sender's call
};

struct BlockState {
  std::int32_t rank = 0;
  std::size_t index = 0;
  std::size_t begin = 0;              // of the operations since the last nop
  std::vector<bool> done;             // … which of them
  View known;                         // since the last nop
  View at_start;                      // of the call
  std::map<std::size_t, View> lanes;  // what waits have learned since
  // Written since the last nop: by the operation that began at this cell, which entry.
  std::map<std::pair<Cell, Cell>, double> own;
  bool ended = false;
  std::int32_t call = 0;
};

class Run {
 public:
  Run(const Plan& plan, std::int32_t calls, std::uint64_t seed)
      : plan_(plan), links_(plan), calls_(calls), random_(seed), tokens_(plan.ranks.size()) {}

  void run() {
    // Everyone knows what there is before the first call.
    View initial;
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
      initial = write_user_buffers(static_cast<std::int32_t>(r), 0, std::move(initial));
    }
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
      for (std::size_t b = 0; b < plan_.ranks[r].blocks.size(); ++b) {
        BlockState block;
        block.rank = static_cast<std::int32_t>(r);
        block.index = b;
        block.known = initial;
        block.at_start = initial;
        blocks_.push_back(block);
      }
    }
    std::size_t idle = 0;
    while (std::any_of(blocks_.begin(), blocks_.end(), [&](const BlockState& b) { return b.call < calls_; })) {
      const bool moved = step(blocks_[below(blocks_.size())]);
      idle = moved ? 0 : idle + 1;
      // Every block has been tried many times over, and each of its operations.
      if (idle > 200 * blocks_.size()) throw Wrong{"deadlock"};
    }
    for (const auto& channels : tokens_) {
      for (const auto& [channel, queue] : channels) {
        if (!queue.empty()) throw Wrong{"a token left over"};
      }
    }
  }

 private:
  std::size_t below(std::size_t count) { return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_); }

  static const std::vector<Operation>& ops(const Plan& plan, const BlockState& block) {
    return plan.ranks[block.rank].blocks[block.index].operations;
  }

  // Where the next nop or the end is.
  std::size_t end_of(const BlockState& block) const {
    const auto& all = ops(plan_, block);
    std::size_t end = block.begin;
    while (end < all.size() && all[end].kind != OpKind::kNop) ++end;
    return end;
  }

  bool step(BlockState& block) {
    if (block.ended || block.call == calls_) return false;
    const auto& all = ops(plan_, block);
    const std::size_t end = end_of(block);
    block.done.resize(end - block.begin, false);
    std::vector<std::size_t> open;
    for (std::size_t i = block.begin; i < end; ++i) {
      if (!block.done[i - block.begin]) open.push_back(i);
    }
    if (open.empty()) {
      join_lanes(block);
      block.begin = end + 1;
      if (end == all.size()) end_call(block);
      return true;
    }
    const std::size_t chosen = open[below(open.size())];
    for (const std::size_t earlier : open) {
      if (earlier < chosen && ordered(block, all[earlier], all[chosen])) return false;
    }
    if (!perform(block, all[chosen])) return false;
    block.done[chosen - block.begin] = true;
    return true;
  }

  // Two operations since the last nop that share a lane for whatever they both touch.
  bool ordered(const BlockState& block, const Operation& first, const Operation& second) const {
    if (!moves_data(first.kind) || !moves_data(second.kind)) return moves_data(first.kind) == moves_data(second.kind);
    if (uses_packets(first) != uses_packets(second)) return false;
    for (const Cell& a : starts_of(block, first)) {
      for (const Cell& b : starts_of(block, second)) {
        if (a == b) return true;
      }
    }
    return false;
  }

  std::vector<Cell> starts_of(const BlockState& block, const Operation& op) const {
    std::vector<Cell> starts;
    for (std::size_t i = 0; i < op.sources.size(); ++i) {
      starts.push_back(cell(block, op, op.sources[i], source_rule(op, i), 0));
    }
    for (std::size_t i = 0; i < op.destinations.size(); ++i) {
      starts.push_back(cell(block, op, op.destinations[i], destination_rule(op, i), 0));
    }
    return starts;
  }

  Cell cell(const BlockState& block, const Operation& op, const Operand& operand, OperandRule rule,
            std::int32_t offset) const {
    const ThreadBlock& own = plan_.ranks[block.rank].blocks[block.index];
    const Place place = place_of(plan_, block.rank, own, op, operand);
    const bool scratch = place.buffer == BufferKind::kScratch;
    const int kind = rule.format == Format::kPackets ? 3 : static_cast<int>(place.buffer);
    return {place.rank, kind, operand.index + offset, scratch && plan_.double_scratch ? block.call % 2 : 0};
  }

  void join_lanes(BlockState& block) {
    for (const auto& [lane, view] : block.lanes) join(block.known, view);
    for (const auto& [key, place] : block.own) {
      auto& mine = block.known[key.first];
      mine = std::max(mine, place);
    }
    block.lanes.clear();
    block.own.clear();
    block.done.clear();
  }

  bool perform(BlockState& block, const Operation& op) {
    if (moves_data(op.kind)) return move(block, op);
    const bool waits = op.kind == OpKind::kWait || op.kind == OpKind::kRelaxedWait;
    const auto& table = plan_.ranks[block.rank].blocks[block.index].channels_of(ChannelKind::kMemory);
    for (const std::int32_t id : op.channel_ids) {
      if (waits && tokens_[block.rank][table[id]].empty()) return false;
    }
    for (std::size_t k = 0; k < op.channel_ids.size(); ++k) {
      const std::int32_t channel = table[op.channel_ids[k]];
      View& lane = block.lanes.try_emplace(k, block.known).first->second;
      if (waits) {
        auto& queue = tokens_[block.rank][channel];
        join(lane, op.kind == OpKind::kWait ? queue.front().released : queue.front().published);
        queue.pop_front();
        continue;
      }
      const std::int32_t peer = plan_.ranks[block.rank].channels_of(ChannelKind::kMemory)[channel];
      const std::int32_t theirs = links_.partner(ChannelKind::kMemory, block.rank, channel);
      tokens_[peer][theirs].push_back({op.kind == OpKind::kSignal ? lane : block.at_start, block.at_start});
    }
    return true;
  }

  static double oldest(const View& view, const Cell& at) {
    const auto found = view.find(at);
    return found == view.end() ? 0 : found->second;
  }

  // Any entry that may still be seen.
  std::uint64_t read(const View& view, const Cell& at, double at_least = 0) {
    const auto& history = memory_[at];
    auto first = history.lower_bound(std::max(oldest(view, at), at_least));
    const auto count = static_cast<std::size_t>(std::distance(first, history.end()));
    if (count == 0) return 0;
    std::advance(first, static_cast<std::ptrdiff_t>(below(count)));
    return first->second.value;
  }

  // Lands anywhere after what the writer knows of.
  double write(const View& view, const Cell& at, Entry entry, double after = 0) {
    auto& history = memory_[at];
    auto next = history.upper_bound(std::max(oldest(view, at), after));
    const auto count = static_cast<std::size_t>(std::distance(next, history.end()));
    std::advance(next, static_cast<std::ptrdiff_t>(below(count + 1)));
    const double low = next == history.begin() ? 0 : std::prev(next)->first;
    const double place = next == history.end() ? low + 1 : (low + next->first) / 2;
    history[place] = entry;
    return place;
  }

  bool move(BlockState& block, const Operation& op) {
    const std::int32_t chunks = op.sources[0].size;
    for (std::size_t i = 0; i < op.sources.size(); ++i) {
      for (std::int32_t c = 0; source_rule(op, i).format == Format::kPackets && c < chunks; ++c) {
        const auto& history = memory_[cell(block, op, op.sources[i], source_rule(op, i), c)];
        if (history.empty() || history.rbegin()->second.call < block.call) return false;
        if (history.rbegin()->second.call > block.call) throw Wrong{"packets overwritten before they were read"};
      }
    }
    for (std::int32_t c = 0; c < chunks; ++c) {
      std::vector<std::uint64_t> values;
      for (std::size_t i = 0; i < op.sources.size(); ++i) values.push_back(read_operand(block, op, i, c));
      std::uint64_t sum = 0;
      for (const std::uint64_t value : values) sum += value;
      for (std::size_t i = 0; i < op.destinations.size(); ++i) {
        const std::uint64_t value = reduces(op.kind) ? sum : rules_of(op.kind).pairwise ? values[i] : values[0];
        const Cell at = cell(block, op, op.destinations[i], destination_rule(op, i), c);
        const Cell start = cell(block, op, op.destinations[i], destination_rule(op, i), 0);
        const double place = write(block.known, at, {value, block.call}, own_place(block, at, start));
        block.own[{at, start}] = place;
      }
    }
    return true;
  }

  static double own_place(const BlockState& block, const Cell& at, const Cell& start) {
    const auto found = block.own.find({at, start});
    return found == block.own.end() ? 0 : found->second;
  }

  std::uint64_t read_operand(BlockState& block, const Operation& op, std::size_t i, std::int32_t c) {
    const Cell at = cell(block, op, op.sources[i], source_rule(op, i), c);
    if (source_rule(op, i).format == Format::kPackets) return memory_[at].rbegin()->second.value;
    return read(block.known, at, own_place(block, at, cell(block, op, op.sources[i], source_rule(op, i), 0)));
  }

  void end_call(BlockState& block) {
    block.ended = true;
    View all;
    std::vector<BlockState*> mates;
    for (BlockState& other : blocks_) {
      if (other.rank != block.rank) continue;
      if (!other.ended) return;
      mates.push_back(&other);
      join(all, other.known);
    }
    for (std::int32_t chunk = 0; chunk < plan_.ranks[block.rank].chunks_of(BufferKind::kOutput); ++chunk) {
      const Cell at{block.rank, static_cast<int>(BufferKind::kOutput), chunk, 0};
      if (read(all, at) != expected(chunk, block.call)) {
        throw Wrong{"rank " + std::to_string(block.rank) + " has a wrong chunk " + std::to_string(chunk)};
      }
    }
    all = write_user_buffers(block.rank, block.call + 1, std::move(all));
    for (BlockState* mate : mates) {
      mate->known = all;
      mate->at_start = all;
      mate->begin = 0;
      mate->ended = false;
      ++mate->call;
    }
  }

  std::uint64_t expected(std::int32_t chunk, std::int32_t call) const {
    const auto ranks = static_cast<std::int32_t>(plan_.ranks.size());
    if (plan_.collective == PlanCollective::kAllGather) {
      const std::int32_t block = plan_.ranks[0].chunks_of(BufferKind::kInput);
      return input_of(chunk / block, chunk % block, call);
    }
    std::uint64_t sum = 0;
    for (std::int32_t r = 0; r < ranks; ++r) sum += input_of(r, chunk, call);
    return sum;
  }

  View write_user_buffers(std::int32_t rank, std::int32_t call, View view) {
    for (const BufferKind buffer : {BufferKind::kInput, BufferKind::kOutput}) {
      for (std::int32_t chunk = 0; chunk < plan_.ranks[rank].chunks_of(buffer); ++chunk) {
        const Cell at{rank, static_cast<int>(buffer), chunk, 0};
        const std::uint64_t value = buffer == BufferKind::kInput ? input_of(rank, chunk, call) : 0xdead;
        view[at] = write(view, at, {value, call});
      }
    }
    return view;
  }

  const Plan& plan_;
  Links links_;
  std::int32_t calls_;
  std::mt19937_64 random_;
  std::map<Cell, std::map<double, Entry>> memory_;
  std::vector<std::map<std::int32_t, std::deque<Token>>> tokens_;  // [rank][channel that waits]
  std::vector<BlockState> blocks_;
};

}  // namespace

std::string run_random_schedule(const Plan& plan, std::int32_t calls, std::uint64_t seed) {
  try {
    Run(plan, calls, seed).run();
  } catch (const Wrong& wrong) {
    return wrong.what;
  }
  return "";
}

}  // namespace tutti::plan
