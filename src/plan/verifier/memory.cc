// Race detection on cells.
#include "plan/verifier/memory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "plan/operations.h"

namespace tutti::plan {
namespace {

constexpr std::size_t kAccessesAStep = 4;  // that are only compared

}  // namespace

Sites::Sites(const Plan& plan, Budget& budget) {
  for (std::size_t r = 0; r < plan.ranks.size(); ++r)
    entries_.push_back({static_cast<std::int32_t>(r), -1, -1, -1, nullptr});
  first_.resize(plan.ranks.size());
  const auto enter = [&](const Entry& entry) { budget.append(entries_, entry); };
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for (std::size_t b = 0; b < plan.ranks[r].blocks.size(); ++b) {
      first_[r].push_back(static_cast<std::uint32_t>(entries_.size()));
      const auto& operations = plan.ranks[r].blocks[b].operations;
      for (std::size_t i = 0; i < operations.size(); ++i) {
        Entry entry{static_cast<std::int32_t>(r), static_cast<std::int32_t>(b), static_cast<std::int32_t>(i), -1,
                    &operations[i]};
        enter(entry);
        for (std::size_t k = 0; k < operations[i].body.size(); ++k) {
          entry.inner = static_cast<std::int32_t>(k);
          entry.operation = &operations[i].body[k];
          enter(entry);
        }
      }
    }
  }
}

Site Sites::site(const Moment& moment) const {
  const Entry& entry = entries_[moment.op];
  Site site{entry.rank, entry.block, entry.op, entry.inner, moment.iteration, moment.invocation, "the caller", ""};
  if (entry.operation != nullptr) {
    site.name = to_string(entry.operation->kind);
    site.origin = entry.operation->origin;
  }
  return site;
}

Memory::Memory(const Layout& layout, const Sites& sites, Budget& budget)
    : layout_(layout), sites_(sites), budget_(budget) {
  const auto cells = static_cast<std::size_t>(layout.cells());
  const auto slots = static_cast<std::size_t>(layout.cells() - layout.first_packet_cell());
  budget.hold(cells * sizeof(State) + slots * sizeof(Slot));
  budget.spend(cells + slots);
  cells_.resize(cells);
  slots_.resize(slots);
}

bool Memory::happened_before(const Access& access, const Actor& actor, std::uint64_t lane) {
  if (access.component == actor.component && access.tick > actor.joined) return access.lane == lane;
  return access.component == actor.component || actor.clock->happened.covers(access.component, access.tick);
}

bool Memory::visible_to(const Access& access, const Actor& actor, std::uint64_t lane) {
  if (access.component == actor.component && access.tick > actor.joined) return access.lane == lane;
  return access.component == actor.component || actor.clock->visible.covers(access.component, access.tick);
}

void Memory::race(Cell cell, const Actor& actor, const char* does, const Access& other, const char* did,
                  const char* missing) const {
  const Site now = sites_.site(actor.moment);
  const Site then = sites_.site(other.moment);
  Fault fault;
  fault.kind = FaultKind::kRace;
  fault.sites = {now, then};
  fault.message = describe(now) + " " + does + " " + layout_.name_of(cell) + ", which " + describe(then) + " " + did +
                  ": " + missing;
  throw FaultFound{std::move(fault)};
}

void Memory::add_reader(State& state, const Actor& actor, std::uint64_t lane) {
  const Access access{actor.component, actor.tick, lane, actor.moment};
  budget_.spend(1 + state.readers.size() / kAccessesAStep);
  for (Access& reader : state.readers) {
    if (reader.component == actor.component && (reader.tick <= actor.joined || reader.lane == lane)) {
      reader = access;
      return;
    }
  }
  budget_.append(state.readers, access);
}

void Memory::read(Cell cell, const Actor& actor, std::uint64_t lane) {
  State& state = cells_[cell];
  budget_.spend(1 + state.writers.size());
  if (!state.writers.empty()) {
    const bool seen = std::any_of(state.writers.begin(), state.writers.end(),
                                  [&](const Access& writer) { return visible_to(writer, actor, lane); });
    if (!seen) {
      const Access& writer = state.writers.front();
      race(cell, actor, "reads", writer, "writes",
           happened_before(writer, actor, lane)
               ? "the write comes first, but nothing makes its data visible to the read"
               : "nothing orders the write before the read");
    }
  }
  add_reader(state, actor, lane);
}

void Memory::replace(State& state, const Actor& actor, std::uint64_t lane, ValueId value, std::int32_t shortest) {
  state.writers.clear();
  budget_.append(state.writers, Access{actor.component, actor.tick, lane, actor.moment});
  state.readers.clear();
  state.value = value;
  state.shortest = shortest;
}

void Memory::write(Cell cell, const Actor& actor, std::uint64_t lane, ValueId value, std::int32_t shortest) {
  State& state = cells_[cell];
  budget_.spend(1 + state.writers.size() + state.readers.size() + state.past.size());
  const auto seen = [&](const Access& writer) { return visible_to(writer, actor, lane); };
  if (value != kUndefined && value == state.value) {
    // Who comes after one of the writers comes after all that this one came after.
    const bool follows = std::any_of(state.writers.begin(), state.writers.end(), seen);
    for (const Past& past : state.past) {
      if (follows || comes_after(past, actor, lane)) continue;
      race(cell, actor, "overwrites", past.access, past.writes ? "writes" : "reads",
           "another write of the same value comes in between, but nothing orders the two");
    }
    add_writer(state, actor, lane);
    state.shortest = std::max(state.shortest, shortest);
    return;
  }
  for (const Access& writer : state.writers) {
    if (seen(writer)) continue;
    race(cell, actor, "overwrites", writer, "writes",
         happened_before(writer, actor, lane)
             ? "the first write comes first, but nothing makes it visible before the second"
             : "nothing orders the two writes");
  }
  for (const Access& reader : state.readers) {
    if (happened_before(reader, actor, lane)) continue;
    race(cell, actor, "overwrites", reader, "reads", "nothing orders the read before the write");
  }
  state.past.clear();
  for (const Access& writer : state.writers) budget_.append(state.past, Past{writer, true});
  for (const Access& reader : state.readers) budget_.append(state.past, Past{reader, false});
  replace(state, actor, lane, value, shortest);
}

// Of writes that one component makes one after the other, the first is what readers need and the last what the next
// value must come after.
void Memory::add_writer(State& state, const Actor& actor, std::uint64_t lane) {
  const Access access{actor.component, actor.tick, lane, actor.moment};
  bool first = false;
  for (Access& writer : state.writers) {
    if (writer.component != actor.component || !visible_to(writer, actor, lane)) continue;
    if (std::exchange(first, true)) {
      writer = access;
      return;
    }
  }
  budget_.append(state.writers, access);
}

bool Memory::arrived(Cell slot, std::int32_t invocation) const {
  return slots_[slot - layout_.first_packet_cell()].invocation == invocation;
}

void Memory::read_slot(Cell slot, const Actor& actor, std::uint64_t lane) { add_reader(cells_[slot], actor, lane); }

void Memory::read_slot_raw(Cell slot, const Actor& actor) {
  State& state = cells_[slot];
  if (state.writers.empty() || !arrived(slot, actor.moment.invocation)) {
    Fault fault{FaultKind::kPackets,
                describe(sites_.site(actor.moment)) + " sends " + layout_.name_of(slot) +
                    ", into which nothing has put packets in this call",
                {sites_.site(actor.moment)}};
    throw FaultFound{std::move(fault)};
  }
  budget_.spend(1 + state.readers.size() + state.writers.size());
  // Whoever has read the packets knows that they are whole.
  const bool known = std::any_of(state.readers.begin(), state.readers.end(),
                                 [&](const Access& reader) { return happened_before(reader, actor, 0); });
  const bool seen = std::any_of(state.writers.begin(), state.writers.end(),
                                [&](const Access& writer) { return visible_to(writer, actor, 0); });
  if (!known && !seen) {
    race(slot, actor, "sends", state.writers.front(), "writes", "nothing orders the write before the transfer");
  }
  add_reader(state, actor, 0);
}

void Memory::write_slot(Cell cell, const Actor& actor, std::uint64_t lane, ValueId value, std::int32_t shortest,
                        const Clock& passed, bool fenced) {
  State& state = cells_[cell];
  Slot& slot = slots_[cell - layout_.first_packet_cell()];
  budget_.spend(1 + state.readers.size() + state.writers.size());
  if (slot.invocation == actor.moment.invocation) {
    // Filled again by who filled it, it tells no less than before.
    const Access& filler = state.writers.front();
    if (value == state.value && filler.component == actor.component && visible_to(filler, actor, lane)) {
      add_writer(state, actor, lane);
      state.shortest = std::max(state.shortest, shortest);
      return;
    }
    Fault fault;
    fault.kind = FaultKind::kPackets;
    fault.sites = {sites_.site(actor.moment), sites_.site(state.writers.front().moment)};
    fault.message = describe(fault.sites[0]) + " writes " + layout_.name_of(cell) + ", which " +
                    describe(fault.sites[1]) + " has filled in the same call: a reader takes either";
    throw FaultFound{std::move(fault)};
  }
  bool read_before = false;
  for (const Access& reader : state.readers) {
    if (!happened_before(reader, actor, lane)) {
      race(cell, actor, "overwrites", reader, "reads", "nothing orders the read before the write");
    }
    read_before = true;
  }
  // Its reader has seen the flag, so the earlier write is over.
  for (const Access& writer : state.writers) {
    if (!read_before && !visible_to(writer, actor, lane)) {
      race(cell, actor, "overwrites", writer, "writes", "nothing orders the two writes");
    }
  }
  replace(state, actor, lane, value, shortest);
  slot.invocation = actor.moment.invocation;
  slot.component = actor.component;
  slot.tick = actor.tick;
  slot.passed = passed;
  slot.fenced = fenced;
}

void Memory::learn(Cell cell, bool fence, Clock& clock) const {
  const Slot& slot = slots_[cell - layout_.first_packet_cell()];
  clock.happened.add(slot.component, slot.tick, budget_);
  if (fence && slot.fenced) {
    clock.join_data(slot.passed);
    clock.visible.add(slot.component, slot.tick, budget_);
  } else {
    clock.join_order(slot.passed);
  }
}

// Whether a write that comes before the actor cannot take effect after it any more: the actor sees it, or somebody has
// seen it.
bool Memory::landed(const Half& half, const Use& write, const Actor& actor) {
  if (!write.writes || visible_to(write.access, actor, 0)) return true;
  const auto first = half.witnesses.begin() + static_cast<std::ptrdiff_t>(write.first_witness);
  return std::any_of(first, first + static_cast<std::ptrdiff_t>(write.witnesses),
                     [&](const Access& witness) { return happened_before(witness, actor, 0); });
}

const Memory::Use* Memory::unordered_use(const Half& half, const Actor& actor) const {
  for (const Use& other : half.before) {
    budget_.spend(1 + other.witnesses);
    if (!happened_before(other.access, actor, 0) || !landed(half, other, actor)) return &other;
  }
  return nullptr;
}

// A half's next use begins. Accesses of the last one that were to come yet would be found to be late, so who has seen
// its writes is known by now.
void Memory::retire(Half& half, std::int32_t use) {
  budget_.drop(half.before);
  budget_.drop(half.witnesses);
  budget_.release(half.settled.size() * kNodeBytes);
  half.before.swap(half.now);
  half.settled.clear();
  half.use = use;
  for (Use& old : half.before) {
    if (!old.writes) continue;
    const State& state = cells_[old.cell];
    budget_.spend(1 + state.writers.size() + state.readers.size());
    const auto same = [&old](const Access& writer) {
      return writer.component == old.access.component && writer.tick == old.access.tick;
    };
    // Who has overwritten it has seen it, and is an old use too.
    old.writes = std::any_of(state.writers.begin(), state.writers.end(), same);
    if (!old.writes || state.writers.size() > 1) continue;
    old.first_witness = half.witnesses.size();
    for (const Access& reader : state.readers) {
      if (reader.component != old.access.component) budget_.append(half.witnesses, reader);
    }
    old.witnesses = half.witnesses.size() - old.first_witness;
  }
}

void Memory::enter_scratch(const Layout::Run& run, std::int64_t chunk, const Actor& actor, Cell cell, bool writes) {
  const auto rank = static_cast<std::size_t>(run.rank);
  if (formats_.size() <= rank) formats_.resize(rank + 1);
  if (formats_[rank].size() <= static_cast<std::size_t>(chunk))
    formats_[rank].resize(static_cast<std::size_t>(chunk) + 1);
  formats_[rank][chunk] |= run.packets ? 2 : 1;
  if (formats_[rank][chunk] == 3) {
    const Site site = sites_.site(actor.moment);
    throw FaultFound{{FaultKind::kPackets,
                      describe(site) + " uses chunk " + std::to_string(chunk) + " of rank " + std::to_string(run.rank) +
                          "'s scratch as " + (run.packets ? "packets" : "plain data") +
                          ", while other operations use it as " + (run.packets ? "plain data" : "packets"),
                      {site}}};
  }
  if (halves_.size() <= rank) halves_.resize(rank + 1);
  if (halves_[rank].empty()) halves_[rank].resize(static_cast<std::size_t>(layout_.halves()));
  Half& half = halves_[rank][run.half];
  const std::int32_t use = actor.moment.invocation / layout_.halves();
  const Access access{actor.component, actor.tick, 0, actor.moment};
  const auto conflict = [&](const Use& other) {
    const Site now = sites_.site(actor.moment);
    const Site then = sites_.site(other.access.moment);
    throw FaultFound{{FaultKind::kRace,
                      describe(now) + " uses rank " + std::to_string(run.rank) + "'s scratch, and " + describe(then) +
                          " uses it in another call: nothing orders the two",
                      {now, then}}};
  };
  if (use > half.use) retire(half, use);
  if (use < half.use && !half.now.empty()) conflict(half.now.front());
  if (!half.before.empty() && !half.settled.contains(actor.key)) {
    Actor lasting = actor;
    lasting.clock = actor.lasting;
    if (unordered_use(half, lasting) == nullptr) {
      half.settled.insert(actor.key);
      budget_.hold(kNodeBytes);
    } else if (const Use* other = unordered_use(half, actor)) {
      conflict(*other);
    }
  }
  const auto same = [&access](const Access& other) {
    return other.component == access.component && other.tick == access.tick;
  };
  if (writes || half.now.empty() || !same(half.now.back().access)) {
    budget_.append(half.now, Use{access, cell, writes});
  }
}

void Memory::set_initial(Cell cell, ValueId value, std::int32_t position, std::uint32_t caller, const Moment& moment) {
  budget_.spend(1);
  if (value != kUndefined) budget_.append(cells_[cell].writers, Access{caller, 0, 0, moment});
  cells_[cell].value = value;
  cells_[cell].shortest = position;
}

bool Memory::last_writer(Cell cell, Moment& writer) const {
  if (cells_[cell].writers.empty()) return false;
  writer = cells_[cell].writers.front().moment;
  return true;
}

}  // namespace tutti::plan
