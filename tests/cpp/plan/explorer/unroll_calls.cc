// The caller: reads the output of every call and writes both buffers before the next.
#include <algorithm>
#include <set>

#include "plan/explorer/unroller.h"

namespace tutti::plan::explorer {
namespace {

constexpr int kIn = static_cast<int>(BufferKind::kInput);
constexpr int kOut = static_cast<int>(BufferKind::kOutput);
constexpr int kReductions = 8;

bool has_result(const Plan& plan, int rank) {
  switch (plan.collective) {
    case PlanCollective::kTest:
    case PlanCollective::kCustom:
      return false;
    case PlanCollective::kReduce:
    case PlanCollective::kGather:
      return rank == plan.root;
    default:
      return true;
  }
}

}  // namespace

void Unroller::end_call(int rank) {
  const std::size_t first = first_block_[static_cast<std::size_t>(rank)];
  const std::size_t count = plan_.ranks[static_cast<std::size_t>(rank)].blocks.size();
  Lane& caller = callers_[static_cast<std::size_t>(rank)];
  Event event = make(blocks_[first]);
  event.block = event.op = -1;
  event.compute = Compute::kEndOfCall;
  const int call = event.call;
  for (std::size_t b = first; b < first + count; ++b) {
    const Lane& base = blocks_[b].base;
    event.after.insert(event.after.end(), base.last.begin(), base.last.end());
    learn(event, caller_observer_[static_cast<std::size_t>(rank)], caller, base.knows, base.published);
  }
  want_outputs(event, rank, call);
  const int number = emit(std::move(event), caller);
  if (call + 1 < setting_.calls) fill_buffers(number, rank, call + 1);
  caller.published = caller.knows;
  for (std::size_t b = first; b < first + count; ++b) {
    Block& block = blocks_[b];
    ++block.call;
    block.op = 0;
    block.ended = false;
    block.base.last = {number};
    Event begin = make(block);
    learn(begin, block.observer, block.base, caller.knows, caller.published);
    emit(std::move(begin), block.base);
    block.base.published = block.base.knows;
  }
}

std::vector<Term> Unroller::inputs(int rank, int call) const {
  const std::int64_t units =
      std::int64_t{cells_.shape().blocks[kIn]} * cells_.shape().block_chunks[kIn] * setting_.units;
  std::vector<Term> terms;
  for (std::int64_t unit = 0; unit < units; ++unit) terms.push_back(terms_.input({rank, unit, call}));
  return terms;
}

void Unroller::fill_buffers(int event, int rank, int call) {
  Lane& caller = callers_[static_cast<std::size_t>(rank)];
  const int observer = caller_observer_[static_cast<std::size_t>(rank)];
  const std::vector<Term> input = inputs(rank, call);
  std::set<int> filled;
  const auto fill = [&](BufferKind buffer, std::int64_t units, bool defined) {
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const Cells::Spot spot{rank, buffer, false, 0, unit / setting_.units, unit % setting_.units};
      if (!filled.insert(cells_.cell_of(spot)).second) continue;
      graph_.events[static_cast<std::size_t>(event)].constants.push_back(defined ? input[static_cast<std::size_t>(unit)]
                                                                                 : kNothing);
      store(event, observer, caller, spot, kPlain);
    }
  };
  const Shape& shape = cells_.shape();
  fill(BufferKind::kInput, static_cast<std::int64_t>(input.size()), true);
  fill(BufferKind::kOutput, std::int64_t{shape.blocks[kOut]} * shape.block_chunks[kOut] * setting_.units, false);
}

void Unroller::want_outputs(Event& event, int rank, int call) {
  const int observer = caller_observer_[static_cast<std::size_t>(rank)];
  if (!plan_.in_place && !plan_.writes_input) {
    const std::vector<Term> input = inputs(rank, call);
    for (std::size_t i = 0; i < input.size(); ++i) {
      const auto unit = static_cast<std::int64_t>(i);
      const int cell =
          cells_.cell_of({rank, BufferKind::kInput, false, 0, unit / setting_.units, unit % setting_.units});
      found_.observers[cell].insert(observer);
      Wanted unchanged;
      unchanged.copy = copy_of(cell, observer);
      unchanged.any_of = {input[i]};
      unchanged.of_input = true;
      event.loads.push_back({unchanged.copy, kPlain});
      event.wanted.push_back(std::move(unchanged));
    }
  }
  if (!has_result(plan_, rank)) return;
  const std::int64_t chunks = std::int64_t{cells_.shape().blocks[kOut]} * cells_.shape().block_chunks[kOut];
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (std::int64_t unit = 0; unit < setting_.units; ++unit) {
      const Cells::Spot spot{rank, BufferKind::kOutput, false, 0, chunk, unit};
      if (!cells_.filled(spot)) continue;
      const int cell = cells_.cell_of(spot);
      found_.observers[cell].insert(observer);
      Wanted wanted = wanted_at(rank, chunk, unit, call);
      wanted.copy = copy_of(cell, observer);
      event.loads.push_back({wanted.copy, kPlain});
      event.wanted.push_back(std::move(wanted));
    }
  }
}

Wanted Unroller::wanted_at(int rank, std::int64_t chunk, std::int64_t unit, int call) {
  const std::int64_t block_chunks = cells_.shape().block_chunks[kOut];
  const std::int64_t own = rank * block_chunks + chunk % block_chunks;
  const auto from = static_cast<std::int32_t>(chunk / block_chunks);
  Wanted wanted;
  wanted.rank = rank;
  const auto input = [&](std::int32_t of, std::int64_t at) {
    return terms_.input({of, at * setting_.units + unit, call});
  };
  const auto reduction = [&](std::int64_t at) {
    std::vector<Term> parts;
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) parts.push_back(input(static_cast<std::int32_t>(r), at));
    for (int kind = 0; kind < kReductions; ++kind) {
      if (plan_.reduce && *plan_.reduce != static_cast<ReduceKind>(kind)) continue;
      wanted.any_of.push_back(terms_.reduce(static_cast<ReduceKind>(kind), parts));
    }
  };
  switch (plan_.collective) {
    case PlanCollective::kAllGather:
    case PlanCollective::kGather:
      wanted.any_of = {input(from, chunk % block_chunks)};
      break;
    case PlanCollective::kAllToAll:
      wanted.any_of = {input(from, own)};
      break;
    case PlanCollective::kBroadcast:
      wanted.any_of = {input(plan_.root, chunk)};
      break;
    case PlanCollective::kScatter:
      wanted.any_of = {input(plan_.root, own)};
      break;
    case PlanCollective::kSendRecv:
      wanted.place = chunk * setting_.units + unit;
      break;
    case PlanCollective::kReduceScatter:
      reduction(own);
      break;
    default:
      reduction(chunk);
  }
  return wanted;
}

}  // namespace tutti::plan::explorer
