// Operations that move data, unit by unit, and what their stores become.
#include <algorithm>

#include "plan/explorer/unroller.h"

namespace tutti::plan::explorer {

Unroller::Spots Unroller::spots_of(const Block& block, const Site& site, const Operand& operand, OperandRule rule,
                                   std::int64_t unit) const {
  Cells::Spot spot;
  spot.packets = rule.format == Format::kPackets;
  spot.half = plan_.double_scratch ? block.call % 2 : 0;
  spot.chunk = operand.index + unit / setting_.units;
  spot.unit = unit % setting_.units;
  std::vector<std::int32_t> ranks;
  if (operand.place == Operand::Place::kGroup) {
    const std::int32_t channel = site.own->channels_of(ChannelKind::kSwitch)[operand.id];
    const SwitchChannel& group = plan_.ranks[block.rank].switch_channels[channel];
    spot.buffer = group.buffer;
    ranks = group.ranks;
  } else {
    const Place place = place_of(plan_, block.rank, *site.own, *site.op, operand);
    spot.buffer = place.buffer;
    ranks = {place.rank};
  }
  Spots spots;
  for (const std::int32_t rank : ranks) {
    spot.rank = rank;
    if (spot.chunk >= plan_.ranks[rank].chunks_of(spot.buffer)) throw WrongPlan{"an access behind the end of a buffer"};
    spots.push_back(spot);
  }
  return spots;
}

std::pair<std::int64_t, std::int64_t> Unroller::range_of(const Block& block, const Site& site, std::size_t pair) const {
  // Only pairs may differ in length.
  const std::size_t source = rules_of(site.op->kind).pairwise ? pair : 0;
  const std::int64_t length = site.op->sources[source].size * setting_.units;
  if (site.loop != nullptr) {
    const std::int64_t unit = site.loop->iteration.unit_bytes / setting_.loop_bytes;
    return {std::min(length, block.round * unit), std::min(length, (block.round + 1) * unit)};
  }
  const GroupPart part = site.op->part.value_or(GroupPart{});
  return {length * part.index / part.size, length * (part.index + 1) / part.size};
}

// Whether the message is long enough for this unit of all operands, or of pair `pair` of them.
bool Unroller::fits(const Block& block, const Site& site, std::int64_t unit, int pair) const {
  const auto filled = [&](const Operand& operand, OperandRule rule) {
    return cells_.filled(spots_of(block, site, operand, rule, unit)[0]);
  };
  const Operation& op = *site.op;
  const auto counts = [pair](std::size_t i) { return pair < 0 || static_cast<std::size_t>(pair) == i; };
  for (std::size_t i = 0; i < op.sources.size(); ++i) {
    if ((counts(i) || op.sources.size() == 1) && !filled(op.sources[i], source_rule(op, i))) return false;
  }
  for (std::size_t i = 0; i < op.destinations.size(); ++i) {
    if (counts(i) && !filled(op.destinations[i], destination_rule(op, i))) return false;
  }
  return true;
}

bool Unroller::arrived(const Block& block, const Site& site) const {
  const Operation& op = *site.op;
  // A proxy takes slots as bytes.
  if (op.kind == OpKind::kPutPackets && op.channel == ChannelKind::kPort) return true;
  for (std::size_t i = 0; i < op.sources.size(); ++i) {
    const auto [begin, end] = range_of(block, site, i);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      for (const Cells::Spot& spot : spots_of(block, site, op.sources[i], source_rule(op, i), unit)) {
        if (!spot.packets) continue;
        const std::pair<int, int> slot{cells_.cell_of(spot), block.call};
        const auto come = packets_.find(slot);
        if (come == packets_.end()) return false;
        if (patient_ && survey_.any_packets.contains(slot) && come->second.size() < survey_.packets.at(slot))
          return false;
      }
    }
  }
  return true;
}

bool Unroller::move(Block& block, const Site& site) {
  if (!arrived(block, site)) return false;
  if (site.op->channel == ChannelKind::kPort) {
    enqueue(block, site);
    return true;
  }
  const bool pairwise = rules_of(site.op->kind).pairwise;
  const int pairs = pairwise ? static_cast<int>(site.op->sources.size()) : 1;
  for (int pair = 0; pair < pairs; ++pair) {
    const auto [begin, end] = range_of(block, site, static_cast<std::size_t>(pair));
    for (std::int64_t unit = begin; unit < end; ++unit) move_unit(block, site, unit, begin, pairwise ? pair : -1);
  }
  return true;
}

void Unroller::move_unit(Block& block, const Site& site, std::int64_t unit, std::int64_t begin, int pair) {
  const Operation& op = *site.op;
  const bool multicast = op.channel == ChannelKind::kSwitch && op.kind != OpKind::kGroupStorePackets;
  const LaneKind kind = multicast ? LaneKind::kMulticast : uses_packets(op) ? LaneKind::kPackets : LaneKind::kWords;
  Lane& own = lane(block, kind, unit - begin);
  const auto counts = [pair](std::size_t i) { return pair < 0 || static_cast<std::size_t>(pair) == i; };
  const bool whole = fits(block, site, unit, pair);
  Event event = make(block);
  event.reduce = op.reduce;
  if (reduces(op.kind)) event.compute = Compute::kReduce;
  // Where the message has ended plain data stay, but packets come and go, of zeros.
  const auto moves = [whole](OperandRule rule) { return whole || rule.format == Format::kPackets; };
  Spots sources;
  for (std::size_t i = 0; i < op.sources.size(); ++i) {
    if (!counts(i) || !moves(source_rule(op, i))) continue;
    for (const Cells::Spot& spot : spots_of(block, site, op.sources[i], source_rule(op, i), unit)) {
      load(event, block, own, op, spot);
      sources.push_back(spot);
    }
  }
  Spots targets;
  for (std::size_t i = 0; i < op.destinations.size(); ++i) {
    if (!counts(i) || !moves(destination_rule(op, i))) continue;
    const Spots spots = spots_of(block, site, op.destinations[i], destination_rule(op, i), unit);
    targets.insert(targets.end(), spots.begin(), spots.end());
  }
  if (sources.empty() && targets.empty()) return;
  if (!whole) event.compute = Compute::kZero;
  const int number = emit(std::move(event), own);
  for (const Cells::Spot& spot : sources) note_use(spot, block.call, number, block.observer, -1);
  std::vector<int> made;
  for (const Cells::Spot& spot : targets) {
    made.push_back(store(number, block.observer, own, spot, spot.packets ? block.call + 1 : kPlain));
    note_use(spot, block.call, number, block.observer, made.back());
  }
  // A fence covers the plain data of its own operation.
  for (const int store : made) {
    if (op.fence) store_released_[static_cast<std::size_t>(store)] = own.knows;
  }
}

void Unroller::load(Event& event, const Block& block, Lane& lane, const Operation& op, const Cells::Spot& spot) {
  const int cell = cells_.cell_of(spot);
  found_.observers[cell].insert(block.observer);
  event.loads.push_back({copy_of(cell, block.observer), spot.packets ? block.call + 1 : kPlain});
  if (!spot.packets) return;
  const auto come = packets_.find({cell, block.call});
  const auto known = survey_.packets.find({cell, block.call});
  if (known == survey_.packets.end()) return;
  if (survey_.any_packets.contains({cell, block.call})) {
    // Whichever it finds: what precedes all of them precedes this.
    if (come->second.size() < known->second) return;
    Bits common = graph_.before[static_cast<std::size_t>(store_event_[static_cast<std::size_t>(come->second[0])])];
    for (const int store : come->second) {
      common.intersect(graph_.before[static_cast<std::size_t>(store_event_[static_cast<std::size_t>(store)])]);
    }
    event.implied.unite(common);
    return;
  }
  // It is the first one written. The payload is acquired, and the order of what was before.
  const auto written = static_cast<std::size_t>(come->second[0]);
  Bits payload;
  payload.set(written);
  if (op.fence) payload.unite(store_released_[written]);
  payload.unite(store_published_[written]);
  const Bits published = store_published_[written];
  learn(event, block.observer, lane, payload, published);
}

int Unroller::copy_of(int cell, int observer) {
  const auto [found, added] = copies_.try_emplace({cell, observer}, static_cast<int>(graph_.copies.size()));
  if (added) {
    const auto initial = initial_.find(cell);
    graph_.copies.push_back(initial == initial_.end() ? kNothing : initial->second);
  }
  return found->second;
}

// Of an event that has been emitted; by whom, and what it knows.
int Unroller::store(int event, int observer, Lane& lane, const Cells::Spot& spot, int flag, const Bits& follows) {
  const int cell = cells_.cell_of(spot);
  const int number = static_cast<int>(graph_.stores.size());
  graph_.stores.push_back({cell, flag, -1});
  graph_.events[static_cast<std::size_t>(event)].stores.push_back(number);
  store_event_.push_back(event);
  store_observer_.push_back(observer);
  store_published_.push_back(lane.published);
  store_released_.emplace_back();
  store_follows_.push_back(follows);
  acquired_at_.emplace_back();
  deliver(number, observer, lane);
  stores_to_[cell].push_back(number);
  lane.knows.set(static_cast<std::size_t>(number));
  if (spot.packets) {
    const int call = graph_.events[static_cast<std::size_t>(event)].call;
    packets_[{cell, call}].push_back(number);
    ++found_.packets[{cell, call}];
    const int first = packets_[{cell, call}][0];
    const Bits& before = graph_.before[static_cast<std::size_t>(event)];
    const bool after_first = before.test(static_cast<std::size_t>(store_event_[static_cast<std::size_t>(first)])) &&
                             lane.knows.test(static_cast<std::size_t>(first));
    if (first != number && !after_first) found_.any_packets.insert({cell, call});
  }
  return number;
}

// One event for each copy that it reaches, after those of the earlier stores that the storing lane knows of.
void Unroller::deliver(int store, int observer, const Lane& lane) {
  Store& made = graph_.stores[static_cast<std::size_t>(store)];
  const int event = store_event_[static_cast<std::size_t>(store)];
  const auto observers = survey_.observers.find(made.cell);
  if (observers == survey_.observers.end()) return;
  for (const int other : observers->second) {
    const int copy = copy_of(made.cell, other);
    if (other == observer) {
      made.own_copy = copy;
      deliveries_[{store, other}] = event;
      continue;
    }
    Event delivery;
    const Event& cause = graph_.events[static_cast<std::size_t>(event)];
    delivery.rank = cause.rank;
    delivery.block = cause.block;
    delivery.op = cause.op;
    delivery.call = cause.call;
    delivery.after.push_back(event);
    delivery.delivers = store;
    delivery.to_copy = copy;
    for (const int earlier : stores_to_[made.cell]) {
      if (lane.knows.test(static_cast<std::size_t>(earlier))) {
        delivery.after.push_back(deliveries_.at({earlier, other}));
      }
    }
    store_follows_[static_cast<std::size_t>(store)].for_each_not_in({}, [&](std::size_t earlier) {
      const auto found = deliveries_.find({static_cast<int>(earlier), other});
      if (found != deliveries_.end()) delivery.after.push_back(found->second);
    });
    Lane alone;
    deliveries_[{store, other}] = emit(std::move(delivery), alone);
  }
}

Unroller::Port& Unroller::port_of(const Block& block, const Site& site, std::size_t k) {
  const std::int32_t channel = site.own->channels_of(ChannelKind::kPort)[site.op->channel_ids[k]];
  return ports_[static_cast<std::size_t>(block.rank)][static_cast<std::size_t>(channel)];
}

void Unroller::enqueue(Block& block, const Site& site) {
  const Operation& op = *site.op;
  if (op.kind == OpKind::kReadPutPackets) {
    // It waits for the flags, joins its lanes, and then enqueues.
    const auto [begin, end] = range_of(block, site, 0);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      Lane& own = lane(block, LaneKind::kPackets, unit - begin);
      Event event = make(block);
      const Cells::Spot spot = spots_of(block, site, op.sources[0], source_rule(op, 0), unit)[0];
      load(event, block, own, op, spot);
      note_use(spot, block.call, emit(std::move(event), own), block.observer, -1);
    }
    join(block);
  }
  const bool pairwise = rules_of(op.kind).pairwise;
  for (std::size_t i = 0; i < op.destinations.size(); ++i) {
    std::vector<std::int64_t> units;
    const auto [begin, end] = range_of(block, site, i);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      if (fits(block, site, unit, pairwise ? static_cast<int>(i) : -1)) units.push_back(unit);
    }
    Lane& own = lane(block, LaneKind::kChannels, static_cast<std::int64_t>(i));
    const int enqueued = emit(make(block), own);
    if (!units.empty()) transfer(block, site, i, enqueued, own, units);
  }
  const OperationRules& rules = rules_of(op.kind);
  if (rules.signals) signal(block, site);
  if (rules.flushes) flush(block, site);
}

// The proxy's part: it knows what the enqueuing lane knew, and takes what one thread enqueued in that order.
void Unroller::transfer(const Block& block, const Site& site, std::size_t i, int enqueued, const Lane& lane,
                        const std::vector<std::int64_t>& units) {
  const Operation& op = *site.op;
  Port& port = port_of(block, site, i);
  Event event = make(block);
  event.after.push_back(enqueued);
  Lane proxy;
  for (const Item& item : port.items) {
    if (!graph_.before[static_cast<std::size_t>(enqueued)].test(static_cast<std::size_t>(item.enqueued))) continue;
    proxy.last.push_back(item.transfer);
    proxy.knows.unite(item.knows);
  }
  learn(event, port.observer, proxy, lane.knows, lane.published);
  const std::size_t source = op.sources.size() == 1 ? 0 : i;
  Spots from;
  Spots to;
  for (const std::int64_t unit : units) {
    from.push_back(spots_of(block, site, op.sources[source], source_rule(op, source), unit)[0]);
    to.push_back(spots_of(block, site, op.destinations[i], destination_rule(op, i), unit)[0]);
    const int cell = cells_.cell_of(from.back());
    found_.observers[cell].insert(port.observer);
    // What the enqueuing block has seen in a slot the proxy sees too.
    const bool looked = op.kind == OpKind::kReadPutPackets;
    event.loads.push_back({copy_of(cell, port.observer), looked ? block.call + 1 : kPlain});
  }
  Item item;
  item.enqueued = enqueued;
  item.transfer = emit(std::move(event), proxy);
  Bits earlier;  // what the channel has stored before: all lands in order
  proxy.knows.for_each_not_in({}, [&](std::size_t store) {
    if (store_observer_[store] == port.observer) earlier.set(store);
  });
  for (std::size_t u = 0; u < units.size(); ++u) {
    note_use(from[u], block.call, item.transfer, port.observer, -1);
    const int made = store(item.transfer, port.observer, proxy, to[u], to[u].packets ? kAsLoaded : kPlain, earlier);
    note_use(to[u], block.call, item.transfer, port.observer, made);
    item.stores.set(static_cast<std::size_t>(made));
  }
  item.knows = proxy.knows;
  port.items.push_back(std::move(item));
}

void Unroller::note_use(const Cells::Spot& spot, int call, int event, int observer, int store) {
  if (spot.buffer != BufferKind::kScratch) return;
  int& format = formats_[{spot.rank, spot.chunk}];
  format |= spot.packets ? 2 : 1;
  if (format == 3) throw WrongPlan{"a chunk of scratch holds packets and plain data"};
  const int halves = plan_.double_scratch ? 2 : 1;
  HalfUse& use = uses_[{spot.rank, call % halves, call / halves}];
  if (use.events.empty() || use.events.back().first != event) use.events.emplace_back(event, observer);
  if (store >= 0) use.stores.push_back(store);
}

}  // namespace tutti::plan::explorer
