// What moves bytes: flows of synchronous operations, queues of ports, packets.
#include <algorithm>
#include <utility>

#include "plan/operations.h"
#include "plan/simulator/engine.h"

namespace tutti::plan {
namespace {

// A packet carries as many bytes of flags as of payload.
double wire_factor(OperandRule rule) { return rule.format == Format::kPackets ? 2 : 1; }

}  // namespace

const Route& Engine::route(std::int32_t from, std::int32_t to) const {
  return routes_.between(topology_.ranks[from], topology_.ranks[to]);
}

std::vector<std::int32_t> Engine::peers_of(const Block& block, const Operation& op, const Operand& operand) const {
  const ThreadBlock& own = plan_.ranks[block.rank].blocks[block.index];
  if (operand.place != Operand::Place::kGroup) return {place_of(plan_, block.rank, own, op, operand).rank};
  return links_.groups()[links_.group_of(block.rank, own.channels_of(ChannelKind::kSwitch)[operand.id])].ranks;
}

Engine::Load Engine::load_of(const Block& block, const Operation& op) const {
  const ThreadBlock& own = plan_.ranks[block.rank].blocks[block.index];
  const Operation* loop = loop_of(block);
  Load load;
  load.moves = loop != nullptr ? sizes_.moves_of(block.rank, own, op, loop->iteration, block.iteration)
                               : sizes_.moves_of(block.rank, own, op);
  load.sources.resize(op.sources.size());
  load.destinations.resize(op.destinations.size());
  const bool pairwise = rules_of(op.kind).pairwise;
  for (const Move& move : load.moves) {
    const auto bytes = static_cast<double>(move.bytes);
    load.total += bytes;
    if (pairwise) {
      load.sources[move.pair] += bytes;
      load.destinations[move.pair] += bytes;
      continue;
    }
    for (double& source : load.sources) source += bytes;
    for (double& destination : load.destinations) destination += bytes;
  }
  return load;
}

const Efficiency& Engine::local_efficiency_of(const Operation& op) const {
  const auto& with_packets = reduces(op.kind) && topology_.packet_reduce_efficiency ? topology_.packet_reduce_efficiency
                                                                                    : topology_.local_packet_efficiency;
  if (uses_packets(op) && with_packets) return *with_packets;
  if (reduces(op.kind) && topology_.reduce_efficiency) return *topology_.reduce_efficiency;
  return topology_.local_efficiency;
}

const Efficiency& Engine::efficiency_of(Format format) const {
  const bool differs = format == Format::kPackets && topology_.packet_efficiency.has_value();
  return differs ? *topology_.packet_efficiency : topology_.efficiency;
}

const Efficiency& Engine::efficiency_into(const Block& block, const Operation& op, std::size_t destination) const {
  const Operand& operand = op.destinations[destination];
  if (topology_.unread_efficiency && operand.place == Operand::Place::kRemote) {
    const Place at = place_of(plan_, block.rank, plan_.ranks[block.rank].blocks[block.index], op, operand);
    if (at.buffer == BufferKind::kOutput && !output_reads_.any_of(at.rank, operand))
      return *topology_.unread_efficiency;
  }
  return efficiency_of(destination_rule(op, destination).format);
}

// False, and the block will be resumed, while a packet that the operation reads has not arrived.
bool Engine::packets_are_here(std::int32_t id, const Operation& op, const Load& load, std::int32_t& cause) {
  Slots& slots = slots_[blocks_[id].rank];
  const bool pairwise = rules_of(op.kind).pairwise;
  for (const Move& move : load.moves) {
    for (std::size_t i = 0; i < move.sources.size(); ++i) {
      const std::size_t source = pairwise ? static_cast<std::size_t>(move.pair) : i;
      if (source_rule(op, source).format != Format::kPackets) continue;
      std::int64_t at = move.sources[i];
      const std::int64_t end = at + 2 * move.bytes;
      while (at < end) {
        const auto after = slots.ranges.upper_bound(at);
        if (after == slots.ranges.begin() || std::prev(after)->second.end <= at) {
          slots.waiting.push_back(id);
          return false;
        }
        const Slots::Range& range = std::prev(after)->second;
        if (cause == kNobody || steps_[range.step].seen > steps_[cause].seen) cause = range.step;
        at = range.end;
      }
    }
  }
  return true;
}

// True if the operation is over at once.
bool Engine::move(std::int32_t id, const Operation& op) {
  Block& block = blocks_[id];
  const bool flushes = rules_of(op.kind).flushes;
  if (block.running) return flushes && flush(id, op);
  const Load load = load_of(block, op);
  std::int32_t cause = kNobody;
  if (!packets_are_here(id, op, load, cause)) return false;
  if (op.channel == ChannelKind::kPort) {
    if (cause != kNobody && now_ > block.turn) record(id, cause);
    enqueue(id, op, load);
    block.running = true;
    return !flushes || flush(id, op);
  }
  if (load.total == 0) return true;
  block.current = record(id, cause);
  steps_[block.current].bytes = load.total;
  block.running = true;
  begin_move(id, op, load);
  return false;
}

// Reads set out at once and return after the request and the data have travelled; writes set out with the first byte
// that has been read; what the rank itself copies or reduces goes on meanwhile, or before.
void Engine::begin_move(std::int32_t id, const Operation& op, const Load& load) {
  Block& block = blocks_[id];
  Picoseconds first_byte = 0;
  double local = 0;
  bool remote = false;
  for (std::size_t i = 0; i < op.sources.size(); ++i) {
    const double bytes = load.sources[i] * wire_factor(source_rule(op, i));
    if (bytes == 0) continue;
    if (op.sources[i].place == Operand::Place::kLocal) {
      local += bytes;
      continue;
    }
    remote = true;
    const std::vector<std::int32_t> peers = peers_of(block, op, op.sources[i]);
    for (const std::int32_t peer : peers) {
      first_byte = std::max(first_byte, route(block.rank, peer).latency + route(peer, block.rank).latency);
    }
    cross(id, peers, true, op.sources[i].place == Operand::Place::kGroup && topology_.multicast, bytes,
          efficiency_of(source_rule(op, i).format), 0);
  }
  block.sends_later = topology_.in_turn && reduces(op.kind);
  if (!block.sends_later && send(id, op, load, first_byte)) remote = true;
  if (remote && !reduces(op.kind)) return;
  double packed = 0;  // packets of which a rank makes its own
  for (std::size_t i = 0; i < op.destinations.size(); ++i) {
    const bool own = op.destinations[i].place == Operand::Place::kLocal;
    if (own) packed = std::max(packed, load.destinations[i] * wire_factor(destination_rule(op, i)));
  }
  Transfer own;
  own.bytes = local;
  own.tail = topology_.local_latency;
  // Packets are unpacked while others still come.
  if (topology_.block_bandwidth > 0 && !uses_packets(op)) own.most = topology_.block_bandwidth;
  own.block = id;
  own.efficiency = &local_efficiency_of(op);
  own.looked_up_by = std::max(local, packed);
  if (topology_.local_bandwidth > 0 && local > 0) {
    own.links = {static_cast<std::int32_t>(topology_.links.size()) + block.rank};
  }
  ++block.pending;
  launch(std::move(own), 0);
}

// Whether there is anything to write to peers.
bool Engine::send(std::int32_t id, const Operation& op, const Load& load, Picoseconds after) {
  bool remote = false;
  for (std::size_t i = 0; i < op.destinations.size(); ++i) {
    const double bytes = load.destinations[i] * wire_factor(destination_rule(op, i));
    if (op.destinations[i].place == Operand::Place::kLocal || bytes == 0) continue;
    remote = true;
    cross(id, peers_of(blocks_[id], op, op.destinations[i]), false,
          op.destinations[i].place == Operand::Place::kGroup && topology_.multicast, bytes,
          efficiency_into(blocks_[id], op, i), after);
  }
  return remote;
}

// Bytes between the block's rank and each of `peers`: as a tree that crosses each link once, or one flow for each.
void Engine::cross(std::int32_t id, const std::vector<std::int32_t>& peers, bool reads, bool tree, double bytes,
                   const Efficiency& efficiency, Picoseconds after) {
  const std::int32_t rank = blocks_[id].rank;
  Transfer whole;
  Picoseconds whole_request = 0;
  for (const std::int32_t peer : peers) {
    const Route& way = reads ? route(peer, rank) : route(rank, peer);
    const Picoseconds request = reads ? route(rank, peer).latency : after;
    Transfer one;
    Transfer& transfer = tree ? whole : one;
    transfer.links.insert(transfer.links.end(), way.links.begin(), way.links.end());
    transfer.bytes = bytes;
    transfer.efficiency = &efficiency;
    transfer.block = id;
    // What is written is seen one latency after the operation is over (end_move).
    transfer.tail = std::max(transfer.tail, reads ? way.latency : 0);
    whole_request = std::max(whole_request, request);
    if (tree) continue;
    ++blocks_[id].pending;
    launch(std::move(one), request);
  }
  if (!tree) return;
  ++blocks_[id].pending;
  launch(std::move(whole), whole_request);
}

void Engine::launch(Transfer transfer, Picoseconds after) {
  std::sort(transfer.links.begin(), transfer.links.end());
  transfer.links.erase(std::unique(transfer.links.begin(), transfer.links.end()), transfer.links.end());
  if (free_transfers_.empty()) {
    free_transfers_.push_back(static_cast<std::int32_t>(transfers_.size()));
    transfers_.emplace_back();
  }
  const std::int32_t id = free_transfers_.back();
  free_transfers_.pop_back();
  transfers_[id] = std::move(transfer);
  schedule(now_ + after, EventKind::kStart, id);
}

void Engine::start(std::int32_t id) {
  const Transfer& transfer = transfers_[id];
  if (transfer.links.empty() || transfer.bytes == 0) {
    schedule(now_ + transfer.tail, EventKind::kPart, id);
  } else {
    network_.start(transfer.links, transfer.bytes,
                   transfer.efficiency->of(std::max(transfer.bytes, transfer.looked_up_by)), transfer.most,
                   static_cast<std::uint64_t>(id), now_);
  }
}

void Engine::part_done(std::int32_t id) {
  const std::int32_t block = transfers_[id].block;
  const std::int32_t port = transfers_[id].port;
  free_transfers_.push_back(id);
  if (port != kNobody) return end_put(port);
  if (--blocks_[block].pending > 0) return;
  if (std::exchange(blocks_[block].sends_later, false)) {
    const Operation& op = operation(blocks_[block]);
    if (send(block, op, load_of(blocks_[block], op), 0)) return;
  }
  end_move(block);
}

void Engine::end_move(std::int32_t id) {
  Block& block = blocks_[id];
  const Operation& op = operation(block);
  TimelineStep& step = steps_[block.current];
  step.end = step.seen = now_;
  std::map<std::int32_t, Delivery> packets;  // by rank
  const Load load = load_of(block, op);
  for (std::size_t i = 0; i < op.destinations.size(); ++i) {
    if (load.destinations[i] == 0) continue;
    const bool delivers = destination_rule(op, i).format == Format::kPackets;
    for (const std::int32_t peer : peers_of(block, op, op.destinations[i])) {
      step.seen = std::max(step.seen, now_ + route(block.rank, peer).latency);
      if (!delivers) continue;
      Delivery& delivery = packets[peer];
      delivery.rank = peer;
      delivery.step = block.current;
      const bool pairwise = rules_of(op.kind).pairwise;
      for (const Move& move : load.moves) {
        if (pairwise && static_cast<std::size_t>(move.pair) != i) continue;
        const std::int64_t begin = move.destinations[pairwise ? 0 : i];
        delivery.ranges.emplace_back(begin, begin + 2 * move.bytes);
      }
    }
  }
  for (auto& [peer, delivery] : packets) deliver(delivery, route(block.rank, peer).latency);
  next(block);
  advance(id);
}

void Engine::deliver(const Delivery& delivery, Picoseconds after) {
  deliveries_.push_back(delivery);
  schedule(now_ + after, EventKind::kPackets, static_cast<std::int32_t>(deliveries_.size()) - 1);
}

void Engine::arrive(std::int32_t id) {
  const Delivery delivery = std::move(deliveries_[id]);
  deliveries_[id] = {};
  Slots& slots = slots_[delivery.rank];
  for (const auto& [begin, end] : delivery.ranges) {
    Slots::Range& range = slots.ranges[begin];
    if (end > range.end) range = {end, delivery.step};
  }
  std::vector<std::int32_t> waiting;
  waiting.swap(slots.waiting);
  for (const std::int32_t block : waiting) advance(block);
}

// Puts, then signals, in the order of the operation's channels; the block itself goes on.
void Engine::enqueue(std::int32_t id, const Operation& op, const Load& load) {
  const Block& block = blocks_[id];
  const Rank& rank = plan_.ranks[block.rank];
  const bool signals = rules_of(op.kind).signals || op.kind == OpKind::kSignal;
  const bool pairwise = rules_of(op.kind).pairwise;
  for (std::size_t k = 0; k < op.channel_ids.size(); ++k) {
    const std::int32_t channel = rank.blocks[block.index].channels_of(ChannelKind::kPort)[op.channel_ids[k]];
    const std::int32_t port = first_port_[block.rank] + channel;
    Item item;
    item.step = step_of(block);
    item.step.port = channel;
    item.step.turn = now_;
    item.peer = rank.channels_of(ChannelKind::kPort)[channel];
    if (k < load.destinations.size() && load.destinations[k] > 0) {
      Item put = item;
      put.step.bytes = load.destinations[k];
      put.wire_bytes = load.destinations[k] * wire_factor(destination_rule(op, k));
      put.efficiency = &efficiency_into(block, op, k);
      for (const Move& move : load.moves) {
        if (destination_rule(op, k).format != Format::kPackets) break;
        if (pairwise && static_cast<std::size_t>(move.pair) != k) continue;
        const std::int64_t begin = move.destinations[pairwise ? 0 : k];
        put.slots.emplace_back(begin, begin + 2 * move.bytes);
      }
      ports_[port].items.push_back(std::move(put));
    }
    if (signals) {
      item.signals = true;
      ports_[port].items.push_back(std::move(item));
    }
    serve(port);
  }
}

void Engine::serve(std::int32_t id) {
  Port& port = ports_[id];
  while (!port.busy && !port.items.empty()) {
    Item& item = port.items.front();
    TimelineStep step = item.step;
    step.begin = step.end = now_;
    if (now_ > step.turn && port.last != kNobody) step.cause = port.last;
    const Route& way = route(port.rank, item.peer);
    step.seen = now_ + way.latency;
    port.last = add(step);
    if (item.signals) {
      schedule(step.seen, EventKind::kToken, item.peer * 2 + 1,
               links_.partner(ChannelKind::kPort, port.rank, port.channel), port.last);
      port.items.pop_front();
      continue;
    }
    port.busy = true;
    Transfer transfer;
    transfer.links = way.links;
    transfer.bytes = item.wire_bytes;
    transfer.efficiency = item.efficiency;
    transfer.port = id;
    launch(std::move(transfer), 0);
  }
  if (port.busy) return;
  std::vector<std::int32_t> flushing;
  flushing.swap(port.flushing);
  for (const std::int32_t block : flushing) advance(block);
}

void Engine::end_put(std::int32_t id) {
  Port& port = ports_[id];
  Item item = std::move(port.items.front());
  port.items.pop_front();
  port.busy = false;
  const Picoseconds latency = route(port.rank, item.peer).latency;
  steps_[port.last].end = now_;
  steps_[port.last].seen = now_ + latency;
  if (!item.slots.empty()) deliver({item.peer, port.last, std::move(item.slots)}, latency);
  serve(id);
}

}  // namespace tutti::plan
