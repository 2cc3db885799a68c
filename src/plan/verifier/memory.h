// The abstract memory: what every cell holds, who wrote and read it last, and whether the next access is ordered after.
//
// Read after write and write after write need D, write after read needs X. Writing the value that is there already
// needs no order among those who write and read that value, but it does come after all accesses to what was there
// before. They stay on record for that, so that the order in which accesses are looked at decides nothing. Scratch is
// ordered as a whole too: since offsets change with the size of a call, every access to a rank's half of scratch comes
// after every access at that half's previous use.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "plan/verifier/budget.h"
#include "plan/verifier/clock.h"
#include "plan/verifier/layout.h"
#include "plan/verifier/values.h"
#include "plan/verifier/verdict.h"

namespace tutti::plan {

// Ends an abstract execution.
struct FaultFound {
  Fault fault;
};

// An operation at one moment, by number; Sites turns it into words.
struct Moment {
  std::uint32_t op = 0;
  std::int32_t iteration = -1;
  std::int32_t invocation = 0;
};

// The numbered operations of a plan. Number 0 + rank is "the caller" of that rank.
class Sites {
 public:
  Sites(const Plan& plan, Budget& budget);

  std::uint32_t caller(std::int32_t rank) const { return static_cast<std::uint32_t>(rank); }
  std::uint32_t first_of(std::int32_t rank, std::size_t block) const { return first_[rank][block]; }
  Site site(const Moment& moment) const;

 private:
  struct Entry {
    std::int32_t rank, block, op, inner;
    const Operation* operation;
  };
  std::vector<Entry> entries_;
  std::vector<std::vector<std::uint32_t>> first_;  // [rank][block]: of operation 0; bodies follow their pipeline
};

// Who accesses memory, and what it knows.
struct Actor {
  std::uint32_t component = 0;  // of the clocks
  std::uint32_t tick = 0;       // of the unit that it accesses
  std::uint32_t joined = 0;     // own ticks up to this one are ordered before
  const Clock* clock = nullptr;
  Moment moment;
  // What it knows for certain at all accesses of this key, beside what `clock` knows at this one.
  std::uint64_t key = 0;
  const Clock* lasting = nullptr;
};

class Memory {
 public:
  Memory(const Layout& layout, const Sites& sites, Budget& budget);

  using Cell = Layout::Cell;

  // `lane` says how the operation spreads elements over lanes: within one component two accesses between two joins
  // are ordered if and only if it is the same.
  void read(Cell cell, const Actor& actor, std::uint64_t lane);
  void write(Cell cell, const Actor& actor, std::uint64_t lane, ValueId value, std::int32_t shortest);

  // Packet slots.
  bool arrived(Cell slot, std::int32_t invocation) const;
  void read_slot(Cell slot, const Actor& actor, std::uint64_t lane);
  // Read as bytes, by a proxy that does not look at flags.
  void read_slot_raw(Cell slot, const Actor& actor);
  // `passed`: what a reader of the packet learns, beside that the packet was written. `fenced`: plain data too.
  void write_slot(Cell slot, const Actor& actor, std::uint64_t lane, ValueId value, std::int32_t shortest,
                  const Clock& passed, bool fenced);
  // What a reader with or without a fence of its own learns from the packet.
  void learn(Cell slot, bool fence, Clock& clock) const;

  // Before every access to scratch, which is one of `cell`.
  void enter_scratch(const Layout::Run& run, std::int64_t chunk, const Actor& actor, Cell cell, bool writes);

  ValueId value(Cell cell) const { return cells_[cell].value; }
  // The shortest chunk that the value has passed through, as a position in a rank block; -1 if none cuts.
  std::int32_t shortest(Cell cell) const { return cells_[cell].shortest; }
  // As the caller has left it: before all that happens.
  void set_initial(Cell cell, ValueId value, std::int32_t position, std::uint32_t caller, const Moment& moment);

  // The last writer, for messages; false if there is none.
  bool last_writer(Cell cell, Moment& writer) const;

 private:
  struct Access {
    std::uint32_t component;
    std::uint32_t tick;
    std::uint64_t lane;
    Moment moment;
  };
  struct Past {
    Access access;
    bool writes = false;
  };
  struct State {
    ValueId value = kUndefined;
    std::int32_t shortest = -1;
    std::vector<Access> writers;  // of this value: the first one and those who wrote it again
    std::vector<Access> readers;  // of this value
    std::vector<Past> past;       // who wrote and read the value before this one
  };
  struct Slot {
    std::int32_t invocation = -1;  // whose flag it carries
    bool fenced = false;
    // The one unit of its writer that the packet stands for. Apart from `passed`, so that all packets of an operation
    // share one clock.
    std::uint32_t component = 0;
    std::uint32_t tick = 0;
    Clock passed;
  };
  struct Use {
    Access access;
    Cell cell = 0;
    bool writes = false;
    // Of a write in `before` that may be under way yet: who has seen it, in Half::witnesses.
    std::size_t first_witness = 0;
    std::size_t witnesses = 0;
  };
  struct Half {
    std::int32_t use = 0;
    std::vector<Use> now;
    std::vector<Use> before;
    std::vector<Access> witnesses;
    std::set<std::uint64_t> settled;  // keys of actors (Actor::key) that come after `before`
  };

  static bool happened_before(const Access& access, const Actor& actor, std::uint64_t lane);
  static bool visible_to(const Access& access, const Actor& actor, std::uint64_t lane);
  static bool comes_after(const Past& past, const Actor& actor, std::uint64_t lane) {
    return past.writes ? visible_to(past.access, actor, lane) : happened_before(past.access, actor, lane);
  }
  static bool landed(const Half& half, const Use& write, const Actor& actor);
  const Use* unordered_use(const Half& half, const Actor& actor) const;
  void retire(Half& half, std::int32_t use);
  void replace(State& state, const Actor& actor, std::uint64_t lane, ValueId value, std::int32_t shortest);
  void add_writer(State& state, const Actor& actor, std::uint64_t lane);
  void add_reader(State& state, const Actor& actor, std::uint64_t lane);
  [[noreturn]] void race(Cell cell, const Actor& actor, const char* does, const Access& other, const char* did,
                         const char* missing) const;

  const Layout& layout_;
  const Sites& sites_;
  Budget& budget_;
  std::vector<State> cells_;
  std::vector<Slot> slots_;
  std::vector<std::vector<Half>> halves_;           // [rank][half]
  std::vector<std::vector<std::uint8_t>> formats_;  // [rank][scratch chunk]: 1 plain, 2 packets
};

}  // namespace tutti::plan
