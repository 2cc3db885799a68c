// Time, thread blocks, and what they wait for.
#include "plan/simulator/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "plan/operations.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

constexpr std::uint64_t kStepsBetweenClocks = 1024;  // events, or operations between two of them
constexpr std::size_t kMostReported = 8;

std::vector<double> bandwidths_of(const Plan& plan, const Topology& topology) {
  std::vector<double> out;
  for (const Link& link : topology.links) out.push_back(link.bandwidth);
  // Behind them, what each rank copies and reduces itself.
  out.insert(out.end(), plan.ranks.size(), topology.local_bandwidth);
  return out;
}

// Before the first operation of any thread block.
Picoseconds beginning(const Plan& plan, const Topology& topology) {
  const auto tensor = [](const auto& reached) { return reached.buffer != BufferKind::kScratch; };
  const bool reaches = std::any_of(plan.ranks.begin(), plan.ranks.end(), [&](const Rank& rank) {
    return std::any_of(rank.remote_buffers.begin(), rank.remote_buffers.end(), tensor) ||
           std::any_of(rank.switch_channels.begin(), rank.switch_channels.end(), tensor);
  });
  return topology.call + (reaches ? topology.agree : 0);
}

}  // namespace

Engine::Engine(const Plan& plan, const Topology& topology, Routes& routes, std::int64_t block_bytes, OutputReads reads)
    : plan_(plan),
      topology_(topology),
      routes_(routes),
      output_reads_(std::move(reads)),
      links_(plan),
      sizes_(plan, block_bytes),
      network_(bandwidths_of(plan, topology)) {
  set_up();
}

void Engine::set_up() {
  const std::size_t count = plan_.ranks.size();
  semaphores_.resize(count);
  barriers_.resize(count);
  slots_.resize(count);
  for (auto& counters : counters_) counters.resize(count);
  for (std::size_t r = 0; r < count; ++r) {
    const Rank& rank = plan_.ranks[r];
    for (std::size_t b = 0; b < rank.blocks.size(); ++b) {
      Block block;
      block.rank = static_cast<std::int32_t>(r);
      block.index = static_cast<std::int32_t>(b);
      operations_ += operations_of(rank.blocks[b]);
      blocks_.push_back(block);
    }
    for (const ChannelKind kind : {ChannelKind::kMemory, ChannelKind::kPort}) {
      counters_[static_cast<int>(kind)][r].resize(rank.channels_of(kind).size());
    }
    first_port_.push_back(static_cast<std::int32_t>(ports_.size()));
    for (std::size_t i = 0; i < rank.channels_of(ChannelKind::kPort).size(); ++i) {
      Port port;
      port.rank = static_cast<std::int32_t>(r);
      port.channel = static_cast<std::int32_t>(i);
      ports_.push_back(std::move(port));
    }
    for (const std::int32_t initial : rank.semaphores) {
      Counter counter;
      counter.unraised = initial;
      semaphores_[r].push_back(std::move(counter));
    }
  }
}

double Engine::operations_of(const ThreadBlock& block) const {
  double out = 0;
  for (const Operation& op : block.operations) {
    const double each = op.kind == OpKind::kPipeline ? static_cast<double>(sizes_.iterations(op.iteration)) : 0;
    out += std::max(1.0, each * static_cast<double>(op.body.size()));
  }
  return out;
}

// Once the budget is spent, nothing goes on.
void Engine::check_budget(std::uint64_t steps) {
  if (!deadline_ || steps % kStepsBetweenClocks != 0) return;
  over_budget_ = over_budget_ || std::chrono::steady_clock::now() > *deadline_;
}

Simulation Engine::run(std::optional<double> budget_s) {
  if (budget_s) deadline_ = std::chrono::steady_clock::now() + std::chrono::duration<double>(*budget_s);
  const Picoseconds start = beginning(plan_, topology_);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].turn = start;
    schedule(start, EventKind::kResume, static_cast<std::int32_t>(i));
  }
  std::vector<Network::Drain> drains;
  for (std::uint64_t count = 1; !events_.empty() && !over_budget_; ++count) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    at_once_ = 0;
    handle(event);
    if (events_.empty() || events_.top().time > now_) {
      drains.clear();
      network_.share(now_, drains);
      for (const Network::Drain& drain : drains) {
        schedule(drain.time, EventKind::kDrain, drain.flow, static_cast<std::int32_t>(drain.version));
      }
    }
    check_budget(count);
  }
  Simulation out;
  out.complete = !over_budget_;
  const bool stuck = std::any_of(blocks_.begin(), blocks_.end(), [](const Block& block) { return !block.finished; });
  if (out.complete && stuck) report_stuck();
  report(out);
  return out;
}

void Engine::schedule(Picoseconds time, EventKind kind, std::int32_t a, std::int32_t b, std::int32_t c) {
  if (time > kLongest) throw_too_long();
  events_.push({time, scheduled_++, kind, a, b, c});
}

void Engine::handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kDrain: {
      std::uint64_t transfer = 0;
      if (!network_.finish({event.time, event.a, static_cast<std::uint32_t>(event.b)}, transfer)) return;
      schedule(now_ + transfers_[transfer].tail, EventKind::kPart, static_cast<std::int32_t>(transfer));
      return;
    }
    case EventKind::kStart:
      return start(event.a);
    case EventKind::kPart:
      return part_done(event.a);
    case EventKind::kToken: {
      const auto kind = event.a % 2 == 0 ? ChannelKind::kMemory : ChannelKind::kPort;
      return give(counters_[static_cast<int>(kind)][event.a / 2][event.b], event.c);
    }
    case EventKind::kSemaphore:
      return give(semaphores_[event.a][event.b], event.c);
    case EventKind::kResume:
      return advance(event.a);
    case EventKind::kPackets:
      return arrive(event.a);
  }
}

const Operation* Engine::loop_of(const Block& block) const {
  const Operation& op = plan_.ranks[block.rank].blocks[block.index].operations[block.op];
  return op.kind == OpKind::kPipeline && !op.body.empty() ? &op : nullptr;
}

const Operation& Engine::operation(const Block& block) const {
  const Operation* loop = loop_of(block);
  return loop != nullptr ? loop->body[block.inner] : plan_.ranks[block.rank].blocks[block.index].operations[block.op];
}

void Engine::next(Block& block) {
  ++performed_;
  block.turn = now_;
  block.running = false;
  block.arrived = false;
  block.dispatched = false;
  block.current = kNobody;
  if (const Operation* loop = loop_of(block); loop != nullptr) {
    if (++block.inner < loop->body.size()) return;
    block.inner = 0;
    if (++block.iteration < sizes_.iterations(loop->iteration)) return;
    block.iteration = 0;
  }
  ++block.op;
}

void Engine::advance(std::int32_t id) {
  Block& block = blocks_[id];
  const auto& operations = plan_.ranks[block.rank].blocks[block.index].operations;
  while (block.op < operations.size()) {
    const Operation* loop = loop_of(block);
    if (loop != nullptr && sizes_.iterations(loop->iteration) == 0) {
      ++block.op;  // a loop over no bytes
      continue;
    }
    check_budget(++at_once_);
    if (over_budget_) return;
    const Picoseconds dispatch =
        topology_.packet_dispatch && uses_packets(operation(block)) ? *topology_.packet_dispatch : topology_.dispatch;
    if (dispatch > 0 && !block.dispatched && operation(block).kind != OpKind::kNop) {
      block.dispatched = true;
      return schedule(now_ + dispatch, EventKind::kResume, id);
    }
    if (!perform(id)) return;
    next(block);
  }
  block.finished = true;
}

// False if the block goes on later: what it waits for, or its own work, resumes it.
bool Engine::perform(std::int32_t id) {
  const Operation& op = operation(blocks_[id]);
  switch (rules_of(op.kind).sync) {
    case SyncKind::kNop:
      return true;
    case SyncKind::kBarrier:
      return barrier(id, op);
    case SyncKind::kSignal:
    case SyncKind::kRelaxedSignal:
      signal(id, op);
      return true;
    case SyncKind::kWait:
    case SyncKind::kRelaxedWait:
      return wait(id, op);
    case SyncKind::kSemaphoreAcquire:
      return acquire(id, op);
    case SyncKind::kSemaphoreRelease:
      release(id, op);
      return true;
    case SyncKind::kFlush:
      return flush(id, op);
    case SyncKind::kNone:
      break;
  }
  return !moves_data(op.kind) || move(id, op);
}

TimelineStep Engine::step_of(const Block& block) const {
  TimelineStep step;
  step.rank = block.rank;
  step.block = block.index;
  step.op = static_cast<std::int32_t>(block.op);
  if (loop_of(block) != nullptr) {
    step.inner = static_cast<std::int32_t>(block.inner);
    step.iteration = block.iteration;
  }
  step.kind = operation(block).kind;
  step.turn = block.turn;
  step.begin = step.end = step.seen = now_;
  step.cause = block.last;
  return step;
}

std::int32_t Engine::add(TimelineStep step) {
  steps_.push_back(step);
  return static_cast<std::int32_t>(steps_.size()) - 1;
}

// A step of the block that begins now; `cause` is what it had to wait for.
std::int32_t Engine::record(std::int32_t id, std::int32_t cause) {
  Block& block = blocks_[id];
  TimelineStep step = step_of(block);
  if (cause != kNobody && now_ > block.turn) step.cause = cause;
  block.last = add(step);
  return block.last;
}

void Engine::give(Counter& counter, std::int32_t step) {
  counter.tokens.push_back(step);
  if (counter.waiting == kNobody) return;
  const std::int32_t block = counter.waiting;
  counter.waiting = kNobody;
  advance(block);
}

// One token of each counter, or none at all.
bool Engine::take(std::int32_t id, const std::vector<Counter*>& counters) {
  for (Counter* counter : counters) {
    if (counter->unraised > 0 || !counter->tokens.empty()) continue;
    counter->waiting = id;
    return false;
  }
  std::int32_t last = kNobody;
  for (Counter* counter : counters) {
    if (counter->unraised > 0) {
      --counter->unraised;
      continue;
    }
    const std::int32_t step = counter->tokens.front();
    counter->tokens.pop_front();
    if (last == kNobody || steps_[step].seen > steps_[last].seen) last = step;
  }
  record(id, last);
  return true;
}

bool Engine::wait(std::int32_t id, const Operation& op) {
  const Block& block = blocks_[id];
  const auto& channels = plan_.ranks[block.rank].blocks[block.index].channels_of(op.channel);
  std::vector<Counter*> counters;
  for (const std::int32_t channel : op.channel_ids) {
    counters.push_back(&counters_[static_cast<int>(op.channel)][block.rank][channels[channel]]);
  }
  return take(id, counters);
}

bool Engine::acquire(std::int32_t id, const Operation& op) {
  std::vector<Counter*> counters;
  for (const std::int32_t semaphore : op.semaphore_ids) {
    counters.push_back(&semaphores_[blocks_[id].rank][semaphore]);
  }
  return take(id, counters);
}

void Engine::release(std::int32_t id, const Operation& op) {
  const std::int32_t step = record(id, kNobody);
  steps_[step].seen = now_ + topology_.local_latency;
  for (const std::int32_t semaphore : op.semaphore_ids) {
    schedule(steps_[step].seen, EventKind::kSemaphore, blocks_[id].rank, semaphore, step);
  }
}

bool Engine::barrier(std::int32_t id, const Operation& op) {
  Block& block = blocks_[id];
  if (block.arrived) return false;
  block.arrived = true;
  auto& come = barriers_[block.rank][op.barrier_id];
  come.push_back(id);
  if (come.size() < static_cast<std::size_t>(op.barrier_blocks)) return false;
  const std::int32_t latest = block.last;
  for (const std::int32_t member : come) {
    const std::int32_t step = record(member, latest);
    steps_[step].end = steps_[step].seen = now_ + topology_.local_latency;
    next(blocks_[member]);
    blocks_[member].turn = steps_[step].end;
    schedule(steps_[step].end, EventKind::kResume, member);
  }
  come.clear();
  return false;
}

void Engine::signal(std::int32_t id, const Operation& op) {
  Block& block = blocks_[id];
  if (op.channel == ChannelKind::kPort) return enqueue(id, op, {});
  const Rank& rank = plan_.ranks[block.rank];
  const std::int32_t step = record(id, kNobody);
  for (const std::int32_t own : op.channel_ids) {
    const std::int32_t channel = rank.blocks[block.index].channels_of(op.channel)[own];
    const std::int32_t peer = rank.channels_of(op.channel)[channel];
    const Picoseconds seen = now_ + route(block.rank, peer).latency;
    steps_[step].seen = std::max(steps_[step].seen, seen);
    schedule(seen, EventKind::kToken, peer * 2, links_.partner(op.channel, block.rank, channel), step);
  }
}

bool Engine::flush(std::int32_t id, const Operation& op) {
  const Block& block = blocks_[id];
  const auto& channels = plan_.ranks[block.rank].blocks[block.index].channels_of(ChannelKind::kPort);
  std::int32_t last = kNobody;
  for (const std::int32_t own : op.channel_ids) {
    Port& port = ports_[first_port_[block.rank] + channels[own]];
    if (port.busy || !port.items.empty()) {
      port.flushing.push_back(id);
      return false;
    }
    if (port.last == kNobody) continue;
    if (last == kNobody || steps_[port.last].end > steps_[last].end) last = port.last;
  }
  record(id, last);
  return true;
}

std::string Engine::why_blocked(const Block& block) const {
  const Operation& op = operation(block);
  const Rank& rank = plan_.ranks[block.rank];
  switch (rules_of(op.kind).sync) {
    case SyncKind::kBarrier:
      return "waits at barrier " + std::to_string(op.barrier_id) + " for other thread blocks";
    case SyncKind::kSemaphoreAcquire:
      return "waits for a semaphore that nobody releases";
    case SyncKind::kWait:
    case SyncKind::kRelaxedWait:
      for (const std::int32_t own : op.channel_ids) {
        const std::int32_t channel = rank.blocks[block.index].channels_of(op.channel)[own];
        if (!counters_[static_cast<int>(op.channel)][block.rank][channel].tokens.empty()) continue;
        return "waits for a signal from rank " + std::to_string(rank.channels_of(op.channel)[channel]) + " on its " +
               std::string(to_string(op.channel)) + " channel " + std::to_string(channel);
      }
      break;
    default:
      break;
  }
  return "waits for packets that nobody writes";
}

void Engine::report_stuck() const {
  std::string text;
  std::size_t count = 0;
  for (const Block& block : blocks_) {
    if (block.finished || ++count > kMostReported) continue;
    const Operation& op = operation(block);
    text += (text.empty() ? "" : "; ") + std::string("rank ") + std::to_string(block.rank) + ", thread block " +
            std::to_string(block.index) + ", operation " + std::to_string(block.op) +
            (loop_of(block) != nullptr ? "." + std::to_string(block.inner) : "") + " (" +
            std::string(to_string(op.kind)) + (op.origin.empty() ? "" : ", " + op.origin) + ") " + why_blocked(block);
  }
  if (count > kMostReported) text += "; and " + std::to_string(count - kMostReported) + " more";
  throw_error(ErrorKind::kInvalidArgument,
              "plan: stuck after " + std::to_string(static_cast<double>(now_) / kPicosecondsPerUs) + " us: " + text);
}

std::vector<std::int32_t> Engine::path_to(std::int32_t step) const {
  std::vector<std::int32_t> path;
  for (; step != kNobody; step = steps_[step].cause) path.push_back(step);
  std::reverse(path.begin(), path.end());
  return path;
}

void Engine::report(Simulation& out) const {
  std::int32_t last = kNobody;
  Picoseconds end = out.complete ? 0 : now_;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Picoseconds seen = std::max(steps_[i].end, steps_[i].seen);
    if (!out.complete && seen > now_) continue;
    if (last != kNobody && seen < std::max(steps_[last].end, steps_[last].seen)) continue;
    last = static_cast<std::int32_t>(i);
    end = std::max(end, seen);
  }
  out.done = out.complete ? 1.0 : static_cast<double>(performed_) / std::max(operations_, 1.0);
  out.time_us = static_cast<double>(end) / kPicosecondsPerUs / (out.done > 0 ? out.done : 1);
  out.critical_path = path_to(last);
  for (std::size_t i = 0; i < topology_.links.size(); ++i) {
    const auto link = static_cast<std::int32_t>(i);
    const double carried = network_.bytes_over(link);
    if (carried == 0) continue;
    const double most = topology_.links[i].bandwidth * static_cast<double>(end);
    out.links.push_back({link, carried, most > 0 ? std::min(1.0, carried / most) : 0});
  }
  std::stable_sort(out.links.begin(), out.links.end(),
                   [](const LinkUse& a, const LinkUse& b) { return a.share > b.share; });
  out.steps = steps_;
}

void check_ranks(const Topology& topology, std::size_t ranks) {
  if (topology.ranks.size() >= ranks) return;
  throw_error(ErrorKind::kInvalidArgument, "topology: \"" + topology.name + "\" has " +
                                               std::to_string(topology.ranks.size()) + " ranks, the plan " +
                                               std::to_string(ranks));
}

void finish(Simulation& out, const Plan& plan, const Topology& topology, Routes& routes, std::int64_t block_bytes) {
  out.bounds = bounds_of(plan, topology, routes, block_bytes);
  out.algorithm_gbs = out.time_us > 0 ? counted_bytes(plan, block_bytes) / out.time_us / 1e3 : 0;
}

Simulation simulate(const Plan& plan, const Topology& topology, std::int64_t block_bytes,
                    std::optional<double> budget_s) {
  check_ranks(topology, plan.ranks.size());
  Routes routes(topology);
  OutputReads reads;
  if (topology.unread_efficiency) reads = OutputReads(plan);
  Simulation out = Engine(plan, topology, routes, block_bytes, std::move(reads)).run(budget_s);
  finish(out, plan, topology, routes, block_bytes);
  return out;
}

}  // namespace tutti::plan
