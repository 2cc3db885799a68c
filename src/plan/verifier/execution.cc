// Runs the blocks until all calls are over: what synchronises, and what happens between calls.
#include "plan/verifier/execution.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "plan/operations.h"

namespace tutti::plan {
namespace {

constexpr std::size_t kCounterBytes = 704;  // with what an empty std::deque keeps
constexpr std::size_t kLaneBytes = kNodeBytes + sizeof(std::size_t) + sizeof(Clock);

}  // namespace

Execution::Execution(const Plan& plan, const Cut& cut, std::int32_t invocations, Budget& budget)
    : plan_(plan),
      budget_(budget),
      links_(plan),
      layout_(plan, cut),
      invocations_(invocations),
      sites_(plan, budget),
      values_(plan.ranks.size(), budget),
      memory_(layout_, sites_, budget),
      expected_(plan, layout_, values_) {
  number_components();
}

void Execution::number_components() {
  ranks_.resize(plan_.ranks.size());
  ports_.resize(plan_.ranks.size());
  semaphores_.resize(plan_.ranks.size());
  barriers_.resize(plan_.ranks.size());
  for (const ChannelKind kind : {ChannelKind::kMemory, ChannelKind::kPort}) {
    auto& counters = counters_[static_cast<int>(kind)];
    counters.resize(plan_.ranks.size());
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
      const std::size_t channels = plan_.ranks[r].channels_of(kind).size();
      budget_.hold(channels * kCounterBytes);
      counters[r].resize(channels);
    }
  }
  std::uint32_t next = 0;
  for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
    const Rank& rank = plan_.ranks[r];
    ranks_[r].user = next++;
    first_block_.push_back(blocks_.size());
    const std::size_t ports = rank.channels_of(ChannelKind::kPort).size();
    budget_.hold(sizeof(RankState) + rank.blocks.size() * 2 * sizeof(Block) + ports * sizeof(Port) +
                 rank.semaphores.size() * kCounterBytes);
    budget_.spend(1 + rank.blocks.size() + ports + rank.semaphores.size());
    for (std::size_t b = 0; b < rank.blocks.size(); ++b) {
      Block block;
      block.rank = static_cast<std::int32_t>(r);
      block.index = static_cast<std::int32_t>(b);
      block.component = next++;
      block.number = sites_.first_of(block.rank, b);
      blocks_.push_back(std::move(block));
    }
    ports_[r].resize(ports);
    for (Port& port : ports_[r]) {
      port.reads = next++;
      port.writes = next++;
    }
    for (const std::int32_t initial : rank.semaphores) {
      Counter counter;
      counter.initial = static_cast<std::size_t>(initial);
      counter.unraised = counter.initial;
      semaphores_[r].push_back(std::move(counter));
    }
  }
}

void Execution::run() {
  for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
    fill_inputs(static_cast<std::int32_t>(r), 0, nullptr);
    // A rank without thread blocks returns at once.
    for (std::int32_t i = 0; plan_.ranks[r].blocks.empty() && i < invocations_; ++i)
      end_call(static_cast<std::int32_t>(r));
  }
  while (advance_all(true) || advance_all(false)) {
  }
  if (std::any_of(blocks_.begin(), blocks_.end(), [](const Block& block) { return !block.finished; })) {
    report_deadlock();
  }
  check_left_over();
}

// Any order of execution finds whether there is a fault. One that takes call after call finds it as the race that it
// is, before it shows as wrong data.
bool Execution::advance_all(bool oldest_call_only) {
  std::int32_t oldest = invocations_;
  for (const Block& block : blocks_) oldest = std::min(oldest, block.invocation);
  bool moved = false;
  for (Block& block : blocks_) {
    budget_.spend(1);
    while (!block.finished && (!oldest_call_only || block.invocation == oldest) && advance(block)) moved = true;
  }
  return moved;
}

// Between calls the caller reads the output and writes both buffers; without a writer, what they hold at first.
void Execution::fill_inputs(std::int32_t rank, std::int32_t invocation, const Actor* writer) {
  const Shape& shape = layout_.shape();
  const auto fill = [&](BufferKind buffer, int index, bool defined) {
    const std::int64_t chunks = shape.blocks[index] * std::int64_t{shape.block_chunks[index]};
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::int64_t unit = 0; unit < layout_.cut().units; ++unit) {
        const Layout::Cell cell = layout_.cell_of(rank, buffer, chunk, unit);
        const ValueId value =
            defined ? values_.input(rank, chunk * layout_.cut().units + unit, invocation) : kUndefined;
        const std::int32_t position = defined ? static_cast<std::int32_t>(layout_.position(buffer, chunk)) : -1;
        if (writer == nullptr) {
          memory_.set_initial(cell, value, position, ranks_[rank].user, {sites_.caller(rank), -1, 0});
        } else {
          memory_.write(cell, *writer, 0, value, position);
        }
      }
    }
  };
  fill(BufferKind::kOutput, kOut, false);
  fill(BufferKind::kInput, kIn, true);
}

void Execution::end_call(std::int32_t rank) {
  RankState& state = ranks_[rank];
  Clock all;
  for (std::size_t b = 0; b < plan_.ranks[rank].blocks.size(); ++b) {
    all.join_data(blocks_[first_block_[rank] + b].base);
  }
  const auto tick = static_cast<std::uint32_t>(state.invocation) + 1;
  Actor user{state.user, tick, tick, &all, {sites_.caller(rank), -1, state.invocation}, 0, &all};
  const Shape& shape = layout_.shape();
  const std::int64_t chunks = expected_.defined(rank) ? shape.blocks[kOut] * std::int64_t{shape.block_chunks[kOut]} : 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (std::int64_t unit = 0; unit < layout_.cut().units; ++unit) {
      const Layout::Cell cell = layout_.cell_of(rank, BufferKind::kOutput, chunk, unit);
      Moment writer;
      const bool written = memory_.last_writer(cell, writer);
      const std::string fault = expected_.fault_of(rank, chunk, unit, memory_.value(cell), state.invocation);
      if (!fault.empty()) {
        Fault wrong{FaultKind::kWrongResult, layout_.name_of(cell) + " is wrong after the call: " + fault, {}};
        if (written) {
          wrong.sites.push_back(sites_.site(writer));
          wrong.message += "; " + describe(wrong.sites[0]) + " wrote it";
        } else {
          wrong.message += "; the output has " + std::to_string(chunks) + " chunks";
        }
        throw FaultFound{std::move(wrong)};
      }
      memory_.read(cell, user, 0);
      const std::int64_t position = layout_.position(BufferKind::kOutput, chunk);
      if (memory_.shortest(cell) > position) {
        Fault lost{FaultKind::kLostData,
                   layout_.name_of(cell) + " passes through chunk " + std::to_string(memory_.shortest(cell)) +
                       " of a rank's block, which is shorter in a message that does not fill all chunks",
                   {}};
        if (written) lost.sites.push_back(sites_.site(writer));
        throw FaultFound{std::move(lost)};
      }
    }
  }
  for (Port& port : ports_[rank]) settle(port);
  fill_inputs(rank, state.invocation + 1, &user);
  all.set_data(state.user, tick, budget_);
  all.published = all.visible;
  ++state.invocation;
  state.ended = 0;
  for (std::size_t b = 0; b < plan_.ranks[rank].blocks.size(); ++b) {
    Block& block = blocks_[first_block_[rank] + b];
    block.base = all;
    block.ended = false;
    block.op = 0;
    block.number = sites_.first_of(rank, b);
    block.invocation = state.invocation;
    block.finished = state.invocation == invocations_;
  }
}

void Execution::check_left_over() const {
  const auto fail = [&](std::int32_t rank, const std::string& what, std::size_t left, std::size_t initial) {
    Site site;
    site.rank = rank;
    throw FaultFound{{FaultKind::kLeftover,
                      "rank " + std::to_string(rank) + "'s " + what + " stands at " + std::to_string(left) + " after " +
                          std::to_string(invocations_) + " calls and stood at " + std::to_string(initial) +
                          " before: a later call would take what this one left",
                      {site}}};
  };
  for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
    for (const ChannelKind kind : {ChannelKind::kMemory, ChannelKind::kPort}) {
      const auto& counters = counters_[static_cast<int>(kind)][r];
      for (std::size_t i = 0; i < counters.size(); ++i) {
        if (counters[i].tokens.empty()) continue;
        fail(static_cast<std::int32_t>(r),
             std::string(to_string(kind)) + " channel " + std::to_string(i) + " from rank " +
                 std::to_string(plan_.ranks[r].channels_of(kind)[i]),
             counters[i].tokens.size(), 0);
      }
    }
    for (std::size_t i = 0; i < semaphores_[r].size(); ++i) {
      const Counter& counter = semaphores_[r][i];
      if (counter.count() == counter.initial) continue;
      fail(static_cast<std::int32_t>(r), "semaphore " + std::to_string(i), counter.count(), counter.initial);
    }
  }
}

Execution::Step Execution::step_of(const Block& block) const {
  Step step;
  step.own = &plan_.ranks[block.rank].blocks[block.index];
  const auto& operations = step.own->operations;
  step.op = &operations[block.op];
  step.moment = {block.number, -1, block.invocation};
  if (step.op->kind == OpKind::kPipeline && !step.op->body.empty()) {
    step.loop = step.op;
    step.op = &step.loop->body[block.inner];
    step.moment.op += 1 + static_cast<std::uint32_t>(block.inner);
    step.moment.iteration = block.iteration;
  }
  return step;
}

void Execution::next(Block& block) const {
  const auto& operations = plan_.ranks[block.rank].blocks[block.index].operations;
  const Operation& op = operations[block.op];
  block.arrived = false;
  if (op.kind == OpKind::kPipeline && !op.body.empty()) {
    if (++block.inner < op.body.size()) return;
    block.inner = 0;
    const std::int64_t unit = layout_.cut().units_of(op.iteration);
    const std::int64_t iterations = (op.iteration.chunks * layout_.cut().units + unit - 1) / unit;
    if (++block.iteration < iterations) return;
    block.iteration = 0;
  }
  block.number += 1 + static_cast<std::uint32_t>(op.body.size());
  ++block.op;
}

bool Execution::advance(Block& block) {
  budget_.spend(1);
  const auto& operations = plan_.ranks[block.rank].blocks[block.index].operations;
  if (block.op == operations.size()) {
    if (block.ended) return false;
    join(block);
    block.ended = true;
    if (++ranks_[block.rank].ended == plan_.ranks[block.rank].blocks.size()) end_call(block.rank);
    return true;
  }
  return perform(block, step_of(block));
}

// False if the block has to wait.
bool Execution::perform(Block& block, const Step& step) {
  switch (rules_of(step.op->kind).sync) {
    case SyncKind::kNop:
      join(block);
      break;
    case SyncKind::kBarrier:
      return barrier(block, step);
    case SyncKind::kSignal:
    case SyncKind::kRelaxedSignal:
      signal(block, step, step.op->kind == OpKind::kSignal);
      break;
    case SyncKind::kWait:
    case SyncKind::kRelaxedWait:
      if (!wait(block, step, step.op->kind == OpKind::kWait)) return false;
      break;
    case SyncKind::kSemaphoreAcquire:
    case SyncKind::kSemaphoreRelease:
      if (!semaphore(block, step, step.op->kind == OpKind::kSemAcquire)) return false;
      break;
    case SyncKind::kFlush:
      flush(block, step);
      break;
    case SyncKind::kNone:
      if (!moves_data(step.op->kind)) break;  // a pipeline without operations
      if (!move(block, step)) return false;
  }
  next(block);
  return true;
}

void Execution::join(Block& block) {
  for (const auto& [index, clock] : block.lanes) block.base.join_data(clock);
  budget_.release(block.lanes.size() * kLaneBytes);
  block.lanes.clear();
  if (block.has_told) block.base.join_data(block.told);
  block.told = {};
  block.has_told = false;
  if (block.joined == block.tick) return;
  block.joined = block.tick;
  block.base.set_data(block.component, block.tick, budget_);
}

Clock& Execution::lane(Block& block, std::size_t index) {
  budget_.spend(1);
  const auto [found, added] = block.lanes.try_emplace(index, block.base);
  if (added) budget_.hold(kLaneBytes);
  return found->second;
}

Actor Execution::actor(const Block& block, const Step& step, const Clock& clock) const {
  return {block.component, block.tick, block.joined, &clock, step.moment, std::uint64_t{block.component} << 32,
          &block.base};
}

// Which counter the k-th channel of an operation means: of this rank, or the one that it raises at the peer.
std::pair<std::int32_t, std::int32_t> Execution::counter_of(const Block& block, const Step& step, std::size_t k,
                                                            bool own) const {
  const ChannelKind kind = step.op->channel;
  const std::int32_t channel = step.own->channels_of(kind)[step.op->channel_ids[k]];
  if (own) return {block.rank, channel};
  return {plan_.ranks[block.rank].channels_of(kind)[channel], links_.partner(kind, block.rank, channel)};
}

void Execution::signal(Block& block, const Step& step, bool releases) {
  for (std::size_t k = 0; k < step.op->channel_ids.size(); ++k) {
    const auto [rank, channel] = counter_of(block, step, k, false);
    const Clock& knows = lane(block, k);
    Token token{knows, releases};
    if (step.op->channel == ChannelKind::kPort) {
      // The proxy's signal follows the channel's puts, and publishes nothing else.
      const auto [own_rank, own_channel] = counter_of(block, step, k, true);
      token.clock = posts_before(ports_[own_rank][own_channel], block, k).passed;
      token.clock.join_order(knows);
    }
    budget_.hold(sizeof(Token));
    counters_[static_cast<int>(step.op->channel)][rank][channel].tokens.push_back(std::move(token));
  }
}

bool Execution::wait(Block& block, const Step& step, bool acquires) {
  auto& counters = counters_[static_cast<int>(step.op->channel)];
  const std::size_t count = step.op->channel_ids.size();
  budget_.spend(count);
  for (std::size_t k = 0; k < count; ++k) {
    const auto [rank, channel] = counter_of(block, step, k, true);
    if (counters[rank][channel].tokens.empty()) return false;
  }
  for (std::size_t k = 0; k < count; ++k) {
    const auto [rank, channel] = counter_of(block, step, k, true);
    Counter& counter = counters[rank][channel];
    const Token& token = counter.tokens.front();
    if (acquires && token.releases) {
      lane(block, k).join_data(token.clock);
    } else {
      lane(block, k).join_order(token.clock);
    }
    counter.tokens.pop_front();
    budget_.release(sizeof(Token));
  }
  return true;
}

bool Execution::barrier(Block& block, const Step& step) {
  if (block.arrived) return false;  // the last to come moves all on
  join(block);
  block.arrived = true;
  auto& come = barriers_[block.rank][step.op->barrier_id];
  come.push_back(&block);
  if (come.size() < static_cast<std::size_t>(step.op->barrier_blocks)) return true;
  Clock all;
  for (const Block* member : come) all.join_data(member->base);
  for (Block* member : come) {
    member->base = all;
    next(*member);
  }
  come.clear();
  return true;
}

bool Execution::semaphore(Block& block, const Step& step, bool acquire) {
  auto& counters = semaphores_[block.rank];
  const auto& ids = step.op->semaphore_ids;
  budget_.spend(ids.size());
  const bool ready = std::all_of(ids.begin(), ids.end(), [&](std::int32_t id) { return counters[id].count() > 0; });
  if (acquire && !ready) return false;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    Counter& counter = counters[ids[k]];
    if (!acquire) {
      budget_.hold(sizeof(Token));
      counter.tokens.push_back({lane(block, k), true});
    } else if (counter.unraised > 0) {
      --counter.unraised;
    } else {
      lane(block, k).join_data(counter.tokens.front().clock);
      counter.tokens.pop_front();
      budget_.release(sizeof(Token));
    }
  }
  return true;
}

void Execution::flush(Block& block, const Step& step) {
  for (std::size_t k = 0; k < step.op->channel_ids.size(); ++k) drain(block, step, k);
}

void Execution::drain(Block& block, const Step& step, std::size_t k) {
  const auto [rank, channel] = counter_of(block, step, k, true);
  lane(block, k).join_order(posts_before(ports_[rank][channel], block, k).drained);
}

// What of a channel's transfers precedes what the lane posts now; `since` is the first tick that does not.
Execution::Post Execution::posts_before(const Port& port, Block& block, std::size_t k) {
  budget_.spend(1 + port.posts.size());
  Post before = port.settled;
  before.since = port.tick + 1;
  for (const Post& other : port.posts) {
    const bool precedes = other.component == block.component
                              ? other.tick <= block.joined || other.lane == k
                              : lane(block, k).happened.covers(other.component, other.tick);
    if (precedes) {
      before.passed.join_data(other.passed);
      before.drained.join_data(other.drained);
    } else {
      before.since = std::min(before.since, other.since);
    }
  }
  return before;
}

// What the block posted before its lanes joined precedes what each of them posts from then on, so all of it stays on
// record, as one.
void Execution::merge_joined(Port& port, const Block& block) {
  const auto joined = [&block](const Post& post) {
    return post.component == block.component && post.tick <= block.joined;
  };
  const auto all = std::find_if(port.posts.begin(), port.posts.end(), joined);
  if (all == port.posts.end()) return;
  for (auto other = std::next(all); other != port.posts.end(); ++other) {
    if (!joined(*other)) continue;
    all->tick = std::max(all->tick, other->tick);
    all->since = std::min(all->since, other->since);
    all->passed.join_data(other->passed);
    all->drained.join_data(other->drained);
  }
  port.posts.erase(std::remove_if(std::next(all), port.posts.end(), joined), port.posts.end());
}

// At the end of a call.
void Execution::settle(Port& port) {
  for (const Post& post : port.posts) {
    port.settled.passed.join_data(post.passed);
    port.settled.drained.join_data(post.drained);
  }
  port.posts.clear();
}

}  // namespace tutti::plan
