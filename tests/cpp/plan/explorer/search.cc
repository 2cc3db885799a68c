#include "plan/explorer/search.h"

#include <algorithm>
#include <utility>

namespace tutti::plan::explorer {
namespace {

std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Search::Search(const Graph& graph, Terms& terms, std::size_t ranks, Limits limits)
    : graph_(graph),
      terms_(terms),
      limits_(limits),
      next_(graph.events.size()),
      partners_(graph.events.size()),
      deliveries_to_(graph.copies.size()),
      sender_of_(ranks, -1),
      taker_of_(ranks, -1) {
  for (std::size_t e = 0; e < graph.events.size(); ++e) {
    for (const int other : graph.events[e].after) next_[static_cast<std::size_t>(other)].push_back(static_cast<int>(e));
  }
  find_partners();
}

void Search::find_partners() {
  std::vector<std::vector<Access>> accesses(graph_.copies.size());
  for (std::size_t e = 0; e < graph_.events.size(); ++e) {
    const Event& event = graph_.events[e];
    const auto add = [&](int copy, bool writes) {
      accesses[static_cast<std::size_t>(copy)].push_back({static_cast<int>(e), writes});
      if (writes) deliveries_to_[static_cast<std::size_t>(copy)].push_back(static_cast<int>(e));
    };
    for (const Load& load : event.loads) add(load.copy, false);
    for (const int store : event.stores) {
      const int own = graph_.stores[static_cast<std::size_t>(store)].own_copy;
      if (own >= 0) add(own, true);
    }
    if (event.delivers >= 0) add(event.to_copy, true);
  }
  const auto ordered = [this](int a, int b) {
    return graph_.before[static_cast<std::size_t>(a)].test(static_cast<std::size_t>(b));
  };
  for (const auto& list : accesses) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      for (std::size_t j = i + 1; j < list.size(); ++j) {
        const Access& a = list[i];
        const Access& b = list[j];
        if (a.event == b.event || (!a.writes && !b.writes)) continue;
        if (ordered(a.event, b.event) || ordered(b.event, a.event)) continue;
        partners_[static_cast<std::size_t>(a.event)].push_back(b.event);
        partners_[static_cast<std::size_t>(b.event)].push_back(a.event);
      }
    }
  }
}

Search::Outcome Search::run() {
  State state;
  const std::size_t count = graph_.events.size();
  state.happened.assign(count, 0);
  state.missing.resize(count);
  state.left = count;
  state.pending.resize(graph_.stores.size());
  for (const Term term : graph_.copies) state.copies.push_back({term, kPlain});
  for (std::size_t e = 0; e < count; ++e) {
    state.missing[e] = static_cast<int>(graph_.events[e].after.size());
    if (state.missing[e] == 0) state.ready.push_back(static_cast<int>(e));
  }
  explore(std::move(state));
  if (wrong_) return Outcome::kWrong;
  return undecided_ ? Outcome::kUndecided : Outcome::kRight;
}

bool Search::can_happen(const State& state, int event) const {
  const auto& loads = graph_.events[static_cast<std::size_t>(event)].loads;
  return std::all_of(loads.begin(), loads.end(), [&](const Load& load) {
    return load.flag == kPlain || state.copies[static_cast<std::size_t>(load.copy)].flag == load.flag;
  });
}

bool Search::is_free(const State& state, int event) const {
  const auto& partners = partners_[static_cast<std::size_t>(event)];
  return std::all_of(partners.begin(), partners.end(),
                     [&](int other) { return state.happened[static_cast<std::size_t>(other)] != 0; });
}

// A state is a set of facts; adding up their hashes makes the order in which they came irrelevant.
std::array<std::uint64_t, 2> Search::hash_of(Fact fact, std::size_t index, Value value) {
  const std::uint64_t key =
      scramble(scramble(static_cast<std::uint64_t>(fact) << 32 | index) ^
               (static_cast<std::uint64_t>(value.term) << 16) ^ static_cast<std::uint64_t>(value.flag + 1));
  return {key, scramble(key)};
}

void Search::add_fact(State& state, Fact fact, std::size_t index, Value value) {
  const auto hash = hash_of(fact, index, value);
  for (std::size_t h = 0; h < hash.size(); ++h) state.hash[h] += hash[h];
}

void Search::remove_fact(State& state, Fact fact, std::size_t index, Value value) {
  const auto hash = hash_of(fact, index, value);
  for (std::size_t h = 0; h < hash.size(); ++h) state.hash[h] -= hash[h];
}

Search::Value Search::stored(const State& state, const Event& event, std::size_t nth) {
  const Store& store = graph_.stores[static_cast<std::size_t>(event.stores[nth])];
  if (event.compute == Compute::kEndOfCall) return {event.constants[nth], store.flag};
  const auto at = [&](const Load& load) { return state.copies[static_cast<std::size_t>(load.copy)]; };
  if (event.compute == Compute::kZero || event.loads.empty()) return {kNothing, store.flag};
  if (event.compute == Compute::kReduce) {
    std::vector<Term> parts;
    for (const Load& load : event.loads) parts.push_back(at(load).term);
    return {terms_.reduce(event.reduce, parts), store.flag};
  }
  const Value value = at(event.loads[event.loads.size() == event.stores.size() ? nth : 0]);
  return {value.term, store.flag == kAsLoaded ? value.flag : store.flag};
}

void Search::check_outputs(const State& state, const Event& event) {
  for (const Wanted& wanted : event.wanted) {
    const Term found = state.copies[static_cast<std::size_t>(wanted.copy)].term;
    bool right = std::find(wanted.any_of.begin(), wanted.any_of.end(), found) != wanted.any_of.end();
    if (right && wanted.any_of.size() > 1) {
      // All chunks of all ranks must be one reduction, whichever it is.
      unsigned alike = 0;
      for (std::size_t k = 0; k < wanted.any_of.size(); ++k) alike |= wanted.any_of[k] == found ? 1U << k : 0U;
      reductions_ &= alike;
      right = reductions_ != 0;
    }
    const Origin* origin = terms_.origin(found);
    if (wanted.place >= 0 && origin != nullptr && origin->place == wanted.place && origin->call == event.call) {
      // Whoever sends first is the sender, in all calls and schedules.
      std::int32_t& sender = sender_of_[static_cast<std::size_t>(wanted.rank)];
      std::int32_t& taker = taker_of_[static_cast<std::size_t>(origin->rank)];
      if (sender < 0) sender = origin->rank;
      if (taker < 0) taker = wanted.rank;
      right = sender == origin->rank && taker == wanted.rank;
    }
    if (right) continue;
    wrong_ = true;
    what_ = (wanted.of_input ? "a changed input of rank " : "a wrong output of rank ") + std::to_string(event.rank) +
            " after call " + std::to_string(event.call + 1);
    return;
  }
}

void Search::happen(State& state, int number) {
  const Event& event = graph_.events[static_cast<std::size_t>(number)];
  if (event.compute == Compute::kEndOfCall) check_outputs(state, event);
  std::vector<Value> values;
  for (std::size_t i = 0; i < event.stores.size(); ++i) values.push_back(stored(state, event, i));
  const auto write = [&](int copy, Value value) {
    Value& held = state.copies[static_cast<std::size_t>(copy)];
    remove_fact(state, Fact::kCopy, static_cast<std::size_t>(copy), held);
    add_fact(state, Fact::kCopy, static_cast<std::size_t>(copy), value);
    held = value;
  };
  for (std::size_t i = 0; i < event.stores.size(); ++i) {
    const auto store = static_cast<std::size_t>(event.stores[i]);
    state.pending[store] = values[i];
    add_fact(state, Fact::kStore, store, values[i]);
    if (graph_.stores[store].own_copy >= 0) write(graph_.stores[store].own_copy, values[i]);
  }
  if (event.delivers >= 0) write(event.to_copy, state.pending[static_cast<std::size_t>(event.delivers)]);
  state.happened[static_cast<std::size_t>(number)] = 1;
  add_fact(state, Fact::kEvent, static_cast<std::size_t>(number), {});
  --state.left;
  state.ready.erase(std::lower_bound(state.ready.begin(), state.ready.end(), number));
  for (const int later : next_[static_cast<std::size_t>(number)]) {
    if (--state.missing[static_cast<std::size_t>(later)] > 0) continue;
    state.ready.insert(std::lower_bound(state.ready.begin(), state.ready.end(), later), later);
  }
}

void Search::happen_all_free(State& state) {
  bool moved = limits_.reduce;
  while (moved && !wrong_) {
    moved = false;
    for (std::size_t i = 0; i < state.ready.size(); ++i) {
      const int event = state.ready[i];
      if (!is_free(state, event) || !can_happen(state, event)) continue;
      happen(state, event);
      moved = true;
      break;
    }
  }
}

// What could make an event possible that is not: one thing that it misses, or all that may still bring its packets.
void Search::stubborn_waiting(const State& state, int event, std::vector<int>& add) const {
  const Event& waiting = graph_.events[static_cast<std::size_t>(event)];
  const auto happened = [&](int other) { return state.happened[static_cast<std::size_t>(other)] != 0; };
  for (const int other : waiting.after) {
    if (happened(other)) continue;
    add.push_back(other);
    return;
  }
  for (const Load& load : waiting.loads) {
    if (load.flag == kPlain || state.copies[static_cast<std::size_t>(load.copy)].flag == load.flag) continue;
    for (const int other : deliveries_to_[static_cast<std::size_t>(load.copy)]) {
      if (!happened(other)) add.push_back(other);
    }
    return;
  }
}

std::vector<int> Search::stubborn_set(const State& state, int seed) const {
  std::vector<char> in(graph_.events.size(), 0);
  std::vector<int> todo{seed};
  std::vector<int> possible;
  in[static_cast<std::size_t>(seed)] = 1;
  while (!todo.empty()) {
    const int event = todo.back();
    todo.pop_back();
    std::vector<int> add;
    if (state.missing[static_cast<std::size_t>(event)] == 0 && can_happen(state, event)) {
      possible.push_back(event);
      for (const int other : partners_[static_cast<std::size_t>(event)]) {
        if (state.happened[static_cast<std::size_t>(other)] == 0) add.push_back(other);
      }
    } else {
      stubborn_waiting(state, event, add);
    }
    for (const int other : add) {
      if (std::exchange(in[static_cast<std::size_t>(other)], 1) == 0) todo.push_back(other);
    }
  }
  return possible;
}

std::vector<int> Search::choices(const State& state) const {
  std::vector<int> possible;
  std::copy_if(state.ready.begin(), state.ready.end(), std::back_inserter(possible),
               [&](int event) { return can_happen(state, event); });
  if (!limits_.reduce) return possible;
  std::vector<int> best = possible;
  for (const int seed : possible) {
    std::vector<int> set = stubborn_set(state, seed);
    if (set.size() < best.size()) best = std::move(set);
  }
  return best;
}

void Search::explore(State state) {
  happen_all_free(state);
  if (wrong_ || state.left == 0) return;
  if (seen_.size() >= limits_.states) {
    undecided_ = true;
    return;
  }
  std::string key(reinterpret_cast<const char*>(state.hash.data()), sizeof(state.hash));
  if (!seen_.insert(std::move(key)).second) return;
  const std::vector<int> next = choices(state);
  if (next.empty()) {
    wrong_ = true;
    what_ = "packets that never come";
    return;
  }
  for (std::size_t i = 0; i < next.size() && !wrong_ && !undecided_; ++i) {
    State after = state;
    happen(after, next[i]);
    if (!wrong_) explore(std::move(after));
  }
}

}  // namespace tutti::plan::explorer
