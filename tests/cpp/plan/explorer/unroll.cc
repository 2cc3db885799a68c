// Control: what runs when, and what synchronises.
#include "plan/explorer/unroll.h"

#include <algorithm>

#include "plan/explorer/unroller.h"

namespace tutti::plan::explorer {

Graph unroll(const Plan& plan, const Setting& setting, Terms& terms, std::size_t most_events) {
  Unroller survey(plan, setting, terms, {}, most_events);
  survey.run();
  Unroller unroller(plan, setting, terms, survey.take_survey(), most_events);
  unroller.run();
  unroller.check_halves();
  return unroller.take_graph();
}

Unroller::Unroller(const Plan& plan, const Setting& setting, Terms& terms, Survey survey, std::size_t most_events)
    : plan_(plan),
      setting_(setting),
      terms_(terms),
      survey_(std::move(survey)),
      most_events_(most_events),
      links_(plan),
      cells_(plan, setting),
      callers_(plan.ranks.size()),
      ports_(plan.ranks.size()) {
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    caller_observer_.push_back(observers_++);
    first_block_.push_back(blocks_.size());
    for (std::size_t b = 0; b < plan.ranks[r].blocks.size(); ++b) {
      Block block;
      block.rank = rank;
      block.index = static_cast<int>(b);
      block.observer = observers_++;
      blocks_.push_back(std::move(block));
    }
    ports_[r].resize(plan.ranks[r].channels_of(ChannelKind::kPort).size());
    for (Port& port : ports_[r]) port.observer = observers_++;
    for (std::size_t s = 0; s < plan.ranks[r].semaphores.size(); ++s) {
      semaphores_[{rank, static_cast<int>(s)}].resize(static_cast<std::size_t>(plan.ranks[r].semaphores[s]));
    }
  }
}

void Unroller::run() {
  start();
  bool moved = true;
  while (moved) {
    moved = false;
    for (Block& block : blocks_) {
      while (block.call < setting_.calls && advance(block)) moved = true;
    }
    if (!moved && std::exchange(patient_, false)) moved = true;
  }
  for (const Block& block : blocks_) {
    if (block.call == setting_.calls) continue;
    throw WrongPlan{"deadlock: rank " + std::to_string(block.rank) + ", thread block " + std::to_string(block.index) +
                    " stops at operation " + std::to_string(block.op) + " of call " + std::to_string(block.call + 1)};
  }
  check_left_over();
}

void Unroller::start() {
  for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
    const std::vector<Term> first = inputs(static_cast<int>(r), 0);
    for (std::size_t i = 0; i < first.size(); ++i) {
      initial_[cells_.cell_of({static_cast<int>(r), BufferKind::kInput, false, 0, 0, static_cast<std::int64_t>(i)})] =
          first[i];
    }
    // A rank without thread blocks returns at once.
    for (int call = 0; plan_.ranks[r].blocks.empty() && call < setting_.calls; ++call) {
      Event event;
      event.rank = static_cast<int>(r);
      event.call = call;
      event.compute = Compute::kEndOfCall;
      want_outputs(event, static_cast<int>(r), call);
      const bool more = call + 1 < setting_.calls;
      const int number = emit(std::move(event), callers_[r]);
      if (more) fill_buffers(number, static_cast<int>(r), call + 1);
    }
  }
}

Unroller::Site Unroller::site_of(const Block& block) const {
  Site site;
  site.own = &plan_.ranks[block.rank].blocks[block.index];
  site.op = &site.own->operations[block.op];
  if (site.op->kind == OpKind::kPipeline && !site.op->body.empty()) {
    site.loop = site.op;
    site.op = &site.loop->body[block.inner];
  }
  return site;
}

void Unroller::step(Block& block) const {
  const Operation& op = plan_.ranks[block.rank].blocks[block.index].operations[block.op];
  block.arrived = false;
  if (op.kind == OpKind::kPipeline && !op.body.empty()) {
    if (++block.inner < op.body.size()) return;
    block.inner = 0;
    const std::int64_t unit = op.iteration.unit_bytes / setting_.loop_bytes;
    if (++block.round * unit < op.iteration.chunks * setting_.units) return;
    block.round = 0;
  }
  ++block.op;
}

bool Unroller::advance(Block& block) {
  if (block.ended) return false;
  if (block.op < plan_.ranks[block.rank].blocks[block.index].operations.size()) return perform(block, site_of(block));
  join(block);
  block.ended = true;
  const std::size_t first = first_block_[static_cast<std::size_t>(block.rank)];
  const std::size_t count = plan_.ranks[block.rank].blocks.size();
  const auto begin = blocks_.begin() + static_cast<std::ptrdiff_t>(first);
  const bool all =
      std::all_of(begin, begin + static_cast<std::ptrdiff_t>(count), [](const Block& b) { return b.ended; });
  if (all) end_call(block.rank);
  return true;
}

bool Unroller::perform(Block& block, const Site& site) {
  switch (rules_of(site.op->kind).sync) {
    case SyncKind::kNop:
      join(block);
      break;
    case SyncKind::kBarrier:
      return barrier(block, site);
    case SyncKind::kSignal:
    case SyncKind::kRelaxedSignal:
      signal(block, site);
      break;
    case SyncKind::kWait:
    case SyncKind::kRelaxedWait:
      if (!wait(block, site)) return false;
      break;
    case SyncKind::kSemaphoreAcquire:
    case SyncKind::kSemaphoreRelease:
      if (!semaphore(block, site)) return false;
      break;
    case SyncKind::kFlush:
      flush(block, site);
      break;
    case SyncKind::kNone:
      if (moves_data(site.op->kind) && !move(block, site)) return false;
  }
  step(block);
  return true;
}

Event Unroller::make(const Block& block) const {
  Event event;
  event.rank = block.rank;
  event.block = block.index;
  event.op = static_cast<int>(block.op);
  event.call = block.call;
  return event;
}

// The event follows the lane, and the lane the event.
int Unroller::emit(Event event, Lane& lane) {
  event.after.insert(event.after.end(), lane.last.begin(), lane.last.end());
  std::sort(event.after.begin(), event.after.end());
  event.after.erase(std::unique(event.after.begin(), event.after.end()), event.after.end());
  if (graph_.events.size() >= most_events_) throw TooManyEvents{};
  const int number = static_cast<int>(graph_.events.size());
  Bits before = event.implied;
  for (const int other : event.after) {
    before.unite(graph_.before[static_cast<std::size_t>(other)]);
    before.set(static_cast<std::size_t>(other));
  }
  graph_.before.push_back(std::move(before));
  graph_.events.push_back(std::move(event));
  lane.last = {number};
  return number;
}

// The event waits until what is released to the observer has reached its copies.
void Unroller::learn(Event& event, int observer, Lane& lane, const Bits& knows, const Bits& published) {
  const int number = static_cast<int>(graph_.events.size());
  knows.for_each_not_in(lane.knows, [&](std::size_t store) {
    if (store_observer_[store] != observer) acquired_at_[store].push_back(number);
    store_follows_[store].for_each_not_in({}, [&](std::size_t earlier) {
      acquired_at_[earlier].push_back(number);
      if (graph_.stores[earlier].flag == kPlain) return;  // has landed, but an old value may still be seen
      const int first = static_cast<int>(earlier);
      for (auto all = deliveries_.lower_bound({first, 0}); all != deliveries_.end() && all->first.first == first;
           ++all) {
        event.after.push_back(all->second);
      }
    });
    const auto delivery = deliveries_.find({static_cast<int>(store), observer});
    if (delivery != deliveries_.end()) event.after.push_back(delivery->second);
  });
  lane.knows.unite(knows);
  lane.published.unite(published);
}

void Unroller::join(Block& block) {
  Event event = make(block);
  for (const auto& [key, lane] : block.lanes) {
    event.after.insert(event.after.end(), lane.last.begin(), lane.last.end());
    block.base.knows.unite(lane.knows);
    block.base.published.unite(lane.published);
  }
  block.lanes.clear();
  emit(std::move(event), block.base);
}

Unroller::Lane& Unroller::lane(Block& block, LaneKind kind, std::int64_t index) {
  return block.lanes.try_emplace({kind, index}, block.base).first->second;
}

std::deque<Unroller::Token>& Unroller::tokens_of(const Block& block, const Site& site, std::size_t k, bool peer) {
  const ChannelKind kind = site.op->channel;
  const std::int32_t channel = site.own->channels_of(kind)[site.op->channel_ids[k]];
  if (!peer) return counters_[{static_cast<int>(kind), block.rank, channel}];
  return counters_[{static_cast<int>(kind), plan_.ranks[block.rank].channels_of(kind)[channel],
                    links_.partner(kind, block.rank, channel)}];
}

void Unroller::signal(Block& block, const Site& site) {
  for (std::size_t k = 0; k < site.op->channel_ids.size(); ++k) {
    Lane& own = lane(block, LaneKind::kChannels, static_cast<std::int64_t>(k));
    Token token;
    token.published = own.published;
    token.released = own.published;
    token.event = emit(make(block), own);
    if (site.op->channel == ChannelKind::kPort) {
      // The proxy signals after the channel's earlier transfers and passes on nothing else.
      Event posted = make(block);
      posted.after.push_back(token.event);
      for (const Item& item : port_of(block, site, k).items) {
        const bool earlier = item.enqueued == token.event || graph_.before[static_cast<std::size_t>(token.event)].test(
                                                                 static_cast<std::size_t>(item.enqueued));
        if (!earlier) continue;
        posted.after.push_back(item.transfer);
        token.released.unite(item.stores);
      }
      Lane proxy;
      token.event = emit(std::move(posted), proxy);
    } else if (site.op->kind == OpKind::kSignal) {
      token.released = own.knows;
    }
    tokens_of(block, site, k, true).push_back(std::move(token));
  }
}

bool Unroller::wait(Block& block, const Site& site) {
  const std::size_t count = site.op->channel_ids.size();
  for (std::size_t k = 0; k < count; ++k) {
    if (tokens_of(block, site, k, false).empty()) return false;
  }
  for (std::size_t k = 0; k < count; ++k) {
    Lane& own = lane(block, LaneKind::kChannels, static_cast<std::int64_t>(k));
    auto& tokens = tokens_of(block, site, k, false);
    const Token token = std::move(tokens.front());
    tokens.pop_front();
    Event event = make(block);
    event.after.push_back(token.event);
    const bool acquires = site.op->kind == OpKind::kWait;
    learn(event, block.observer, own, acquires ? token.released : token.published, token.published);
    emit(std::move(event), own);
  }
  return true;
}

bool Unroller::barrier(Block& block, const Site& site) {
  if (block.arrived) return false;  // the last to come moves all on
  join(block);
  block.arrived = true;
  auto& come = barriers_[{block.rank, site.op->barrier_id}];
  come.push_back(&block);
  if (come.size() < static_cast<std::size_t>(site.op->barrier_blocks)) return true;
  Event event = make(block);
  Lane all;
  for (const Block* member : come) {
    event.after.insert(event.after.end(), member->base.last.begin(), member->base.last.end());
    all.knows.unite(member->base.knows);
    all.published.unite(member->base.published);
  }
  for (Block* member : come) learn(event, member->observer, member->base, all.knows, all.published);
  emit(std::move(event), all);
  for (Block* member : come) {
    member->base.last = all.last;
    step(*member);
  }
  come.clear();
  return true;
}

bool Unroller::semaphore(Block& block, const Site& site) {
  const bool acquires = site.op->kind == OpKind::kSemAcquire;
  const auto& ids = site.op->semaphore_ids;
  const auto empty = [&](std::int32_t id) { return semaphores_[{block.rank, id}].empty(); };
  if (acquires && std::any_of(ids.begin(), ids.end(), empty)) return false;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    auto& tokens = semaphores_[{block.rank, ids[k]}];
    Lane& own = lane(block, LaneKind::kChannels, static_cast<std::int64_t>(k));
    Event event = make(block);
    if (acquires) {
      const Token token = std::move(tokens.front());
      tokens.pop_front();
      if (token.event >= 0) event.after.push_back(token.event);
      learn(event, block.observer, own, token.released, token.published);
      emit(std::move(event), own);
    } else {
      const int number = emit(std::move(event), own);
      tokens.push_back({number, own.knows, own.published});
    }
  }
  return true;
}

void Unroller::flush(Block& block, const Site& site) {
  for (std::size_t k = 0; k < site.op->channel_ids.size(); ++k) {
    Lane& own = lane(block, LaneKind::kChannels, static_cast<std::int64_t>(k));
    const int asked = emit(make(block), own);
    Event done = make(block);
    for (const Item& item : port_of(block, site, k).items) {
      if (graph_.before[static_cast<std::size_t>(asked)].test(static_cast<std::size_t>(item.enqueued))) {
        done.after.push_back(item.transfer);
      }
    }
    emit(std::move(done), own);
  }
}

void Unroller::check_left_over() const {
  for (const auto& [key, tokens] : counters_) {
    if (!tokens.empty()) throw WrongPlan{"a token left over on a channel of rank " + std::to_string(std::get<1>(key))};
  }
  for (const auto& [key, tokens] : semaphores_) {
    if (tokens.size() == static_cast<std::size_t>(plan_.ranks[key.first].semaphores[key.second])) continue;
    throw WrongPlan{"semaphore " + std::to_string(key.second) + " of rank " + std::to_string(key.first) +
                    " does not return to its initial value"};
  }
}

// Offsets change with the size of a call, so whatever one use of a half does may meet whatever the next one does.
void Unroller::check_halves() const {
  for (const auto& [key, use] : uses_) {
    const auto [rank, half, number] = key;
    const auto next = uses_.find({rank, half, number + 1});
    if (next == uses_.end()) continue;
    for (const auto& [later, observer] : next->second.events) {
      const Bits& before = graph_.before[static_cast<std::size_t>(later)];
      const auto is_before = [&before](int event) { return before.test(static_cast<std::size_t>(event)); };
      bool over = std::all_of(use.events.begin(), use.events.end(), [&](const auto& e) { return is_before(e.first); });
      for (const int store : use.stores) {
        const auto& acquired = acquired_at_[static_cast<std::size_t>(store)];
        const bool own = store_observer_[static_cast<std::size_t>(store)] == observer;
        over = over && (own || std::any_of(acquired.begin(), acquired.end(), is_before));
      }
      if (over) continue;
      throw WrongPlan{"rank " + std::to_string(rank) + "'s scratch is used by a call while another still uses it"};
    }
  }
}

}  // namespace tutti::plan::explorer
