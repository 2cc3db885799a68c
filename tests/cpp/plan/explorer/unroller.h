// The walk through a plan that makes its events.
//
// Thread blocks run in program order, each until it has to wait; which of them runs first changes nothing. An operation
// is an event for each unit and lane. A lane is a sequence of events: the k-th channels of synchronising operations, or
// the units at one offset of operations that spread elements alike; between two nops lanes are concurrent. A lane knows
// stores: those that it has made, and those that were released to it.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/explorer/cells.h"
#include "plan/explorer/event_graph.h"
#include "plan/links.h"
#include "plan/operations.h"
#include "plan/plan.h"

namespace tutti::plan::explorer {

// What a first walk finds out for the second: who ever loads a cell, how often a call fills a packet slot, and where
// that is done in no fixed order.
struct Survey {
  std::map<int, std::set<int>> observers;              // [cell]
  std::map<std::pair<int, int>, std::size_t> packets;  // [cell, call]
  std::set<std::pair<int, int>> any_packets;           // [cell, call]
};

class Unroller {
 public:
  Unroller(const Plan& plan, const Setting& setting, Terms& terms, Survey survey, std::size_t most_events);

  void run();
  void check_halves() const;
  Graph take_graph() { return std::move(graph_); }
  Survey take_survey() { return std::move(found_); }

 private:
  struct Lane {
    std::vector<int> last;  // events that the next one follows
    Bits knows;             // stores
    Bits published;         // … those that a relaxed signal passes on: written before the call
  };
  enum class LaneKind : std::uint8_t { kChannels, kWords, kPackets, kMulticast };
  using LaneKey = std::pair<LaneKind, std::int64_t>;
  struct Block {
    int rank = 0;
    int index = 0;
    int observer = 0;
    Lane base;  // since the last join
    std::map<LaneKey, Lane> lanes;
    int call = 0;
    std::size_t op = 0;
    std::size_t inner = 0;
    std::int64_t round = 0;
    bool arrived = false;
    bool ended = false;
  };
  struct Token {
    int event = -1;  // -1: there from the start
    Bits released;
    Bits published;
  };
  struct Item {
    int enqueued = 0;
    int transfer = 0;  // event
    Bits stores;
    Bits knows;
  };
  struct Port {
    int observer = 0;
    std::vector<Item> items;
  };
  struct Site {
    const ThreadBlock* own = nullptr;
    const Operation* op = nullptr;
    const Operation* loop = nullptr;
  };
  using Spots = std::vector<Cells::Spot>;
  // Accesses to a half of a rank's scratch in the calls that share it one after the other.
  struct HalfUse {
    std::vector<std::pair<int, int>> events;  // and their observers
    std::vector<int> stores;
  };

  // Control (unroll.cc).
  void start();
  bool advance(Block& block);
  bool perform(Block& block, const Site& site);
  void step(Block& block) const;
  Site site_of(const Block& block) const;
  void check_left_over() const;

  // Events.
  Event make(const Block& block) const;
  int emit(Event event, Lane& lane);
  void learn(Event& event, int observer, Lane& lane, const Bits& knows, const Bits& published);
  void join(Block& block);
  Lane& lane(Block& block, LaneKind kind, std::int64_t index);

  // What synchronises.
  std::deque<Token>& tokens_of(const Block& block, const Site& site, std::size_t k, bool peer);
  void signal(Block& block, const Site& site);
  bool wait(Block& block, const Site& site);
  bool barrier(Block& block, const Site& site);
  bool semaphore(Block& block, const Site& site);
  void flush(Block& block, const Site& site);

  // Data (unroll_data.cc).
  Spots spots_of(const Block& block, const Site& site, const Operand& operand, OperandRule rule,
                 std::int64_t unit) const;
  std::pair<std::int64_t, std::int64_t> range_of(const Block& block, const Site& site, std::size_t pair) const;
  bool move(Block& block, const Site& site);
  bool arrived(const Block& block, const Site& site) const;
  void move_unit(Block& block, const Site& site, std::int64_t unit, std::int64_t begin, int pair);
  bool fits(const Block& block, const Site& site, std::int64_t unit, int pair) const;
  void load(Event& event, const Block& block, Lane& lane, const Operation& op, const Cells::Spot& spot);
  int store(int event, int observer, Lane& lane, const Cells::Spot& spot, int flag, const Bits& follows = {});
  void deliver(int store, int observer, const Lane& lane);
  void enqueue(Block& block, const Site& site);
  void transfer(const Block& block, const Site& site, std::size_t i, int enqueued, const Lane& lane,
                const std::vector<std::int64_t>& units);
  int copy_of(int cell, int observer);
  void note_use(const Cells::Spot& spot, int call, int event, int observer, int store);
  Port& port_of(const Block& block, const Site& site, std::size_t k);

  // The caller (unroll_calls.cc).
  void end_call(int rank);
  void want_outputs(Event& event, int rank, int call);
  Wanted wanted_at(int rank, std::int64_t chunk, std::int64_t unit, int call);
  void fill_buffers(int event, int rank, int call);
  std::vector<Term> inputs(int rank, int call) const;

  const Plan& plan_;
  Setting setting_;
  Terms& terms_;
  Survey survey_;
  Survey found_;
  std::size_t most_events_;
  Links links_;
  Cells cells_;
  Graph graph_;
  std::vector<Block> blocks_;
  std::vector<std::size_t> first_block_;  // [rank]
  std::vector<int> caller_observer_;      // [rank]
  std::vector<Lane> callers_;             // [rank]
  std::vector<std::vector<Port>> ports_;  // [rank][channel]
  int observers_ = 0;
  std::map<std::tuple<int, int, int>, std::deque<Token>> counters_;  // [kind, rank, channel] of who waits
  std::map<std::pair<int, int>, std::deque<Token>> semaphores_;      // [rank, id]
  std::map<std::pair<int, int>, std::vector<Block*>> barriers_;      // [rank, id]
  std::map<std::pair<int, int>, int> copies_;                        // [cell, observer]
  std::map<int, Term> initial_;                                      // [cell]
  std::map<int, std::vector<int>> stores_to_;                        // [cell]
  std::map<std::pair<int, int>, int> deliveries_;                    // [store, observer] -> event
  std::vector<int> store_event_;
  std::vector<int> store_observer_;
  std::vector<Bits> store_published_;
  std::vector<Bits> store_released_;           // packets with a fence
  std::vector<Bits> store_follows_;            // of a proxy: what its channel has stored before, landing in order
  std::vector<std::vector<int>> acquired_at_;  // [store]: events by which others have acquired it
  std::map<std::pair<int, int>, std::vector<int>> packets_;  // [cell, call] -> stores
  bool patient_ = true;  // a slot that several fill is read after all of them, as long as that is possible
  std::map<std::tuple<int, int, int>, HalfUse> uses_;    // [rank, half, use]
  std::map<std::pair<int, std::int64_t>, int> formats_;  // [rank, chunk of scratch]: 1 plain, 2 packets
};

}  // namespace tutti::plan::explorer
