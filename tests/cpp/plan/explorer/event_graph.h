// All that ever happens in some calls of a plan, as events with what each must wait for.
//
// A plan's control does not depend on data: what meets what is known beforehand. Left open is the order of the events
// that nothing orders, and with it what every load finds. Memory has no single state that all see: every observer (a
// thread block, the proxy of a port channel, the caller of a rank) has its own copy of each cell that it ever loads,
// and a store reaches each copy by an event of its own. Whoever acquires waits for those of the stores that were
// released to it; the others come at any time.
#pragma once

#include <string>
#include <vector>

#include "plan/explorer/bits.h"
#include "plan/explorer/terms.h"
#include "plan/plan.h"

namespace tutti::plan::explorer {

inline constexpr int kPlain = 0;      // flags of packets are numbers of calls, from 1
inline constexpr int kAsLoaded = -1;  // a store of packets that were loaded as bytes

struct Load {
  int copy = 0;
  int flag = kPlain;  // else: waits until the copy has it
};

struct Store {
  int cell = 0;
  int flag = kPlain;
  int own_copy = -1;  // the storing observer's, which has it at once
};

// What a call must leave: its output, and the input as it was.
struct Wanted {
  int copy = 0;
  bool of_input = false;
  std::vector<Term> any_of;  // of a reduction: one for each kind that it may be
  std::int64_t place = -1;   // sendrecv: this unit of the input of whichever rank sends to `rank`
  std::int32_t rank = 0;
};

enum class Compute : std::uint8_t { kMove, kReduce, kZero, kEndOfCall };

struct Event {
  std::vector<int> after;  // events that must have happened
  Bits implied;            // … and those that must have, if its packets have come
  std::vector<Load> loads;
  std::vector<int> stores;  // what it stores: loads in pairs, the first load, the reduction, or zeros
  Compute compute = Compute::kMove;
  ReduceKind reduce = ReduceKind::kSum;
  std::vector<Term> constants;  // kEndOfCall: of each store
  std::vector<Wanted> wanted;   // kEndOfCall
  int delivers = -1;            // this store …
  int to_copy = -1;             // … to this copy
  // What it belongs to, for messages; -1 where it does not apply.
  int rank = -1;
  int block = -1;
  int op = -1;
  int call = 0;
};

struct Graph {
  std::vector<Event> events;  // each after all that it waits for, but for packets with several writers
  std::vector<Bits> before;   // [event]: all that it comes after, directly or not
  std::vector<Store> stores;
  std::vector<Term> copies;  // what they hold at first
};

// The plan goes wrong without any choice of schedule.
struct WrongPlan {
  std::string what;
};

struct TooManyEvents {};

}  // namespace tutti::plan::explorer
