// Operations that move data, unit by unit.
#include <algorithm>
#include <string>

#include "plan/operations.h"
#include "plan/verifier/execution.h"

namespace tutti::plan {
namespace {

// How an operation spreads its elements over lanes.
enum class Spread : std::uint64_t { kWords, kPackets, kMulticast };

Spread spread_of(const Operation& op) {
  if (op.channel == ChannelKind::kSwitch && op.kind != OpKind::kGroupStorePackets) return Spread::kMulticast;
  return uses_packets(op) ? Spread::kPackets : Spread::kWords;
}

}  // namespace

Execution::Runs Execution::runs_of(const Block& block, const Step& step, const Operand& operand,
                                   OperandRule rule) const {
  Layout::Run run;
  run.packets = rule.format == Format::kPackets;
  run.half = block.invocation % layout_.halves();
  run.first_chunk = operand.index;
  if (operand.place != Operand::Place::kGroup) {
    const Place place = place_of(plan_, block.rank, *step.own, *step.op, operand);
    run.rank = place.rank;
    run.buffer = place.buffer;
    return {run};
  }
  const std::int32_t channel = step.own->channels_of(ChannelKind::kSwitch)[operand.id];
  const Links::Group& group = links_.groups()[links_.group_of(block.rank, channel)];
  run.buffer = group.buffer;
  Runs runs;
  budget_.spend(group.ranks.size());
  for (const std::int32_t member : group.ranks) {
    run.rank = member;
    runs.push_back(run);
  }
  return runs;
}

// Of an operation at its moment; in pairs every pair has its own.
Execution::Window Execution::window_of(const Step& step, std::size_t pair) const {
  const std::size_t source = rules_of(step.op->kind).pairwise ? pair : 0;
  const std::int64_t length = step.op->sources[source].size * layout_.cut().units;
  if (step.loop != nullptr) {
    const std::int64_t unit = layout_.cut().units_of(step.loop->iteration);
    const std::int64_t begin = std::min(length, step.moment.iteration * unit);
    return {begin, std::min(length, begin + unit)};
  }
  const GroupPart part = step.op->part.value_or(GroupPart{});
  return {length * part.index / part.size, length * (part.index + 1) / part.size};
}

std::uint64_t Execution::lane_key(const Step& step, const Layout::Run& run, std::int64_t begin) const {
  // Two operations that begin at the same cell and spread alike put each element on the same lane.
  return static_cast<std::uint64_t>(spread_of(*step.op)) << 56 |
         (static_cast<std::uint64_t>(layout_.cell(run, begin)) + 1);
}

bool Execution::packets_arrived(const Step& step, const std::vector<Runs>& from, std::int64_t begin,
                                std::int64_t end) const {
  // A proxy takes slots as bytes.
  if (step.op->kind == OpKind::kPutPackets && step.op->channel == ChannelKind::kPort) return true;
  for (const Runs& runs : from) {
    for (const Layout::Run& run : runs) {
      if (!run.packets) continue;
      for (std::int64_t unit = begin; unit < end; ++unit) {
        if (!memory_.arrived(layout_.cell(run, unit), step.moment.invocation)) return false;
      }
    }
  }
  return true;
}

bool Execution::move(Block& block, const Step& step) {
  const Operation& op = *step.op;
  const auto [begin, end] = window_of(step, 0);
  // Also what it does not get to, if it waits for packets.
  budget_.spend(static_cast<std::size_t>(end - begin) * (op.sources.size() + op.destinations.size()));
  std::vector<Runs> from;
  std::vector<Runs> to;
  for (std::size_t i = 0; i < op.sources.size(); ++i) {
    from.push_back(runs_of(block, step, op.sources[i], source_rule(op, i)));
  }
  for (std::size_t i = 0; i < op.destinations.size(); ++i) {
    to.push_back(runs_of(block, step, op.destinations[i], destination_rule(op, i)));
  }
  if (!packets_arrived(step, from, begin, end)) return false;
  if (op.channel == ChannelKind::kPort) {
    move_by_port(block, step, from, to);
    return true;
  }
  if (!rules_of(op.kind).pairwise) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      ++block.tick;
      move_unit(block, step, from, to, unit, begin);
    }
    return true;
  }
  std::vector<Window> windows;
  for (std::size_t i = 0; i < from.size(); ++i) windows.push_back(window_of(step, i));
  const auto longest = std::max_element(windows.begin(), windows.end(), [](const Window& a, const Window& b) {
    return a.end - a.begin < b.end - b.begin;
  });
  for (std::int64_t done = 0; done < longest->end - longest->begin; ++done) {
    ++block.tick;
    budget_.spend(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto [first, last] = windows[i];
      if (first + done < last) move_unit(block, step, {from[i]}, {to[i]}, first + done, first);
    }
  }
  return true;
}

// What the packets of one unit tell their reader.
void Execution::learn_packets(Block& block, const Step& step, const std::vector<Runs>& from, std::int64_t unit,
                              Clock& clock) {
  bool any = false;
  for (const Runs& runs : from) {
    for (const Layout::Run& run : runs) {
      if (!run.packets) continue;
      memory_.learn(layout_.cell(run, unit), step.op->fence, clock);
      any = true;
    }
  }
  if (!any) return;
  block.told.join_data(clock);
  block.has_told = true;
}

ValueId Execution::fold(const Step& step, std::vector<ValueId> parts) {
  const Fold how = rules_of(step.op->kind).fold;
  if (how == Fold::kNone) return parts[0];
  if (how == Fold::kRestThenFirst) std::rotate(parts.begin(), parts.begin() + 1, parts.end());
  return values_.reduce(step.op->reduce, std::move(parts));
}

std::int32_t Execution::shortest_of(const std::vector<Runs>& runs, std::int64_t unit) const {
  std::int64_t shortest = -1;
  for (const Runs& members : runs) {
    const Layout::Run& run = members[0];
    shortest = std::max(shortest, layout_.position(run.buffer, run.first_chunk + unit / layout_.cut().units));
  }
  return static_cast<std::int32_t>(shortest);
}

void Execution::move_unit(Block& block, const Step& step, const std::vector<Runs>& from, const std::vector<Runs>& to,
                          std::int64_t unit, std::int64_t begin) {
  Clock clock = block.base;
  learn_packets(block, step, from, unit, clock);
  const Actor self = actor(block, step, clock);
  const auto enter = [&](const Layout::Run& run, bool writes) {
    if (run.buffer == BufferKind::kScratch) {
      memory_.enter_scratch(run, run.first_chunk + unit / layout_.cut().units, self, layout_.cell(run, unit), writes);
    }
  };
  std::int32_t shortest = std::max(shortest_of(from, unit), shortest_of(to, unit));
  std::vector<ValueId> parts;
  for (const Runs& runs : from) {
    for (const Layout::Run& run : runs) {
      const Layout::Cell cell = layout_.cell(run, unit);
      enter(run, false);
      if (run.packets) {
        memory_.read_slot(cell, self, lane_key(step, run, begin));
      } else {
        memory_.read(cell, self, lane_key(step, run, begin));
      }
      parts.push_back(memory_.value(cell));
      shortest = std::max(shortest, memory_.shortest(cell));
    }
  }
  const ValueId value = fold(step, std::move(parts));
  // A packet is written after what its lane has read for it: it passes `clock` on.
  for (const Runs& runs : to) {
    for (const Layout::Run& run : runs) {
      const Layout::Cell cell = layout_.cell(run, unit);
      enter(run, true);
      if (run.packets) {
        memory_.write_slot(cell, self, lane_key(step, run, begin), value, shortest, clock, step.op->fence);
      } else {
        memory_.write(cell, self, lane_key(step, run, begin), value, shortest);
      }
    }
  }
}

// Each pair is enqueued by its lane; the proxy reads the source and writes the destination later, in the order of the
// channel. What the transfer itself must come after is what the lane knew when it enqueued.
void Execution::move_by_port(Block& block, const Step& step, const std::vector<Runs>& from,
                             const std::vector<Runs>& to) {
  const Operation& op = *step.op;
  if (op.kind == OpKind::kReadPutPackets) {
    // It looks at the flags first, then joins its lanes.
    const Window window = window_of(step, 0);
    for (std::int64_t unit = window.begin; unit < window.end; ++unit) {
      ++block.tick;
      Clock clock = block.base;
      learn_packets(block, step, from, unit, clock);
      for (const Layout::Run& run : from[0]) memory_.read_slot(layout_.cell(run, unit), actor(block, step, clock), 1);
    }
    join(block);
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    post(block, step, i, from.size() == to.size() ? from[i] : from[0], to[i], window_of(step, i));
  }
  const OperationRules& rules = rules_of(op.kind);
  if (rules.signals) signal(block, step, true);
  for (std::size_t k = 0; rules.flushes && k < op.channel_ids.size(); ++k) drain(block, step, k);
}

void Execution::post(Block& block, const Step& step, std::size_t i, const Runs& source, const Runs& target,
                     Window window) {
  const auto [rank, channel] = counter_of(block, step, i, true);
  Port& port = ports_[rank][channel];
  Post now = posts_before(port, block, i);
  const std::uint32_t ordered = now.since - 1;  // the channel's ticks up to this one precede
  now.component = block.component;
  now.tick = ++block.tick;
  now.lane = i;
  now.since = port.tick + 1;
  Clock before = lane(block, i);
  before.happened.join(now.passed.happened);
  const Clock reading = before;
  // Writes of one channel land in order.
  before.visible.join(now.passed.visible);
  now.drained.join_order(before);
  now.passed.join_order(before);
  const Clock earlier = now.passed;
  const auto key_of = [&now](std::uint32_t component) { return std::uint64_t{component} << 32 | now.since; };
  for (std::int64_t unit = window.begin; unit < window.end; ++unit) {
    ++port.tick;
    // Another block's transfers through the channel may know less.
    const Actor reader{port.reads, port.tick, ordered, &reading, step.moment, key_of(port.reads), &reading};
    const Actor writer{port.writes, port.tick, ordered, &before, step.moment, key_of(port.writes), &before};
    const std::uint64_t lane = std::uint64_t{now.since} << 32;  // no other transfer's
    const Layout::Run& in = source[0];
    const Layout::Run& out = target[0];
    const Layout::Cell source_cell = layout_.cell(in, unit);
    const std::int64_t chunk = unit / layout_.cut().units;
    const Layout::Cell target_cell = layout_.cell(out, unit);
    if (in.buffer == BufferKind::kScratch) {
      memory_.enter_scratch(in, in.first_chunk + chunk, reader, source_cell, false);
    }
    if (out.buffer == BufferKind::kScratch) {
      memory_.enter_scratch(out, out.first_chunk + chunk, writer, target_cell, true);
    }
    const std::int32_t shortest =
        std::max({shortest_of({source}, unit), shortest_of({target}, unit), memory_.shortest(source_cell)});
    if (in.packets) {
      memory_.read_slot_raw(source_cell, reader);
    } else {
      memory_.read(source_cell, reader, lane);
    }
    const ValueId value = memory_.value(source_cell);
    if (out.packets) {
      // A packet tells that it has come, not what else the same transfer brings.
      Clock passed = earlier;
      passed.happened.add(port.reads, port.tick, budget_);
      memory_.write_slot(target_cell, writer, lane, value, shortest, passed, false);
    } else {
      memory_.write(target_cell, writer, lane, value, shortest);
    }
  }
  const bool alone = ordered + 1 == now.since;  // then one tick says it all
  for (std::uint32_t tick = alone ? port.tick : now.since; tick <= port.tick; ++tick) {
    const auto add = [&](ClockVector& clock, std::uint32_t component) {
      alone ? clock.set(component, tick, budget_) : clock.add(component, tick, budget_);
    };
    add(now.drained.happened, port.reads);
    add(now.passed.happened, port.reads);
    add(now.passed.happened, port.writes);
    add(now.passed.visible, port.writes);
  }
  merge_joined(port, block);
  std::erase_if(port.posts, [&](const Post& other) {
    const bool covered = other.component == now.component && other.tick > block.joined && other.lane == i;
    if (covered) now.since = std::min(now.since, other.since);
    return covered;
  });
  budget_.append(port.posts, std::move(now));
}

}  // namespace tutti::plan
