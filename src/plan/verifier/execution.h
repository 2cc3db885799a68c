// One abstract execution of all ranks of a plan: every thread block, and every port channel as an agent of its own.
//
// A thread block is a set of lanes. What runs between two joins ("nop", barrier, end of the call) is concurrent, but
// for operations that spread elements over lanes alike, and for the k-th channels of signals and waits, which belong to
// lane k. So a block has a base clock, what its lanes have learned since, and what its packets have told it.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/links.h"
#include "plan/operations.h"
#include "plan/plan.h"
#include "plan/verifier/budget.h"
#include "plan/verifier/clock.h"
#include "plan/verifier/expected.h"
#include "plan/verifier/layout.h"
#include "plan/verifier/memory.h"
#include "plan/verifier/values.h"

namespace tutti::plan {

class Execution {
 public:
  // The budget counts what this execution holds; nothing else holds anything at that time.
  Execution(const Plan& plan, const Cut& cut, std::int32_t invocations, Budget& budget);

  // Throws FaultFound.
  void run();
  bool same_bits() const { return expected_.same_bits(); }

 private:
  struct Token {
    Clock clock;
    bool releases = false;
  };
  // What was raised and not taken yet. A semaphore begins with some that nobody raised: a number, which may be large.
  struct Counter {
    std::deque<Token> tokens;
    std::size_t initial = 0;
    std::size_t unraised = 0;  // of those that it begins with; they are taken first

    std::size_t count() const { return unraised + tokens.size(); }
  };
  struct Block {
    std::int32_t rank = 0;
    std::int32_t index = 0;
    std::uint32_t component = 0;
    std::uint32_t tick = 0;
    std::uint32_t joined = 0;
    Clock base;
    std::map<std::size_t, Clock> lanes;  // what single lanes have learned since the last join
    Clock told;                          // what packets have told since
    bool has_told = false;
    std::int32_t invocation = 0;
    std::size_t op = 0;
    std::size_t inner = 0;
    std::int32_t iteration = 0;
    std::uint32_t number = 0;  // of the operation, in sites_
    bool arrived = false;      // at the barrier that it stands at
    bool ended = false;        // this call
    bool finished = false;
  };
  // The latest transfer that one lane has posted to a port channel since the last join, with those that it follows; or
  // all that a block had posted before one.
  struct Post {
    std::uint32_t component = 0;  // of the block
    std::uint32_t tick = 0;
    std::size_t lane = 0;
    std::uint32_t since = 0;  // the channel's first tick that it stands for
    Clock passed;             // what a signal after it passes on
    Clock drained;            // what a flush after it learns
  };
  // The proxy's side of a port channel. It takes transfers in the order in which they are posted, which several blocks
  // do in any order unless something orders them.
  struct Port {
    std::uint32_t reads = 0;   // component
    std::uint32_t writes = 0;  // component
    std::uint32_t tick = 0;
    Post settled;             // of earlier calls: they precede whatever is posted now
    std::vector<Post> posts;  // of this call
  };
  struct RankState {
    std::size_t ended = 0;
    std::uint32_t user = 0;  // component of the caller
    std::int32_t invocation = 0;
  };
  struct Step {
    const ThreadBlock* own = nullptr;
    const Operation* op = nullptr;
    const Operation* loop = nullptr;  // around it
    Moment moment;
  };
  // An operand of the operation at hand: one run, or one for each member of a group.
  using Runs = std::vector<Layout::Run>;

  void number_components();
  void fill_inputs(std::int32_t rank, std::int32_t invocation, const Actor* writer);
  void end_call(std::int32_t rank);
  void check_left_over() const;

  bool advance_all(bool oldest_call_only);
  bool advance(Block& block);
  bool perform(Block& block, const Step& step);
  Step step_of(const Block& block) const;
  void next(Block& block) const;
  void join(Block& block);
  Clock& lane(Block& block, std::size_t index);
  Actor actor(const Block& block, const Step& step, const Clock& clock) const;

  // Synchronising operations.
  std::pair<std::int32_t, std::int32_t> counter_of(const Block& block, const Step& step, std::size_t k, bool own) const;
  void signal(Block& block, const Step& step, bool releases);
  bool wait(Block& block, const Step& step, bool acquires);
  bool barrier(Block& block, const Step& step);
  bool semaphore(Block& block, const Step& step, bool acquire);
  void flush(Block& block, const Step& step);
  void drain(Block& block, const Step& step, std::size_t k);
  Post posts_before(const Port& port, Block& block, std::size_t k);
  static void merge_joined(Port& port, const Block& block);
  static void settle(Port& port);

  // Operations on data (execution_data.cc).
  Runs runs_of(const Block& block, const Step& step, const Operand& operand, OperandRule rule) const;
  struct Window {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  Window window_of(const Step& step, std::size_t pair) const;
  bool move(Block& block, const Step& step);
  void move_unit(Block& block, const Step& step, const std::vector<Runs>& from, const std::vector<Runs>& to,
                 std::int64_t unit, std::int64_t begin);
  bool packets_arrived(const Step& step, const std::vector<Runs>& from, std::int64_t begin, std::int64_t end) const;
  void learn_packets(Block& block, const Step& step, const std::vector<Runs>& from, std::int64_t unit, Clock& clock);
  ValueId fold(const Step& step, std::vector<ValueId> parts);
  std::int32_t shortest_of(const std::vector<Runs>& runs, std::int64_t unit) const;
  std::uint64_t lane_key(const Step& step, const Layout::Run& run, std::int64_t begin) const;
  void move_by_port(Block& block, const Step& step, const std::vector<Runs>& from, const std::vector<Runs>& to);
  void post(Block& block, const Step& step, std::size_t i, const Runs& source, const Runs& target, Window window);

  // Why nothing moves any more (deadlock.cc).
  [[noreturn]] void report_deadlock() const;
  struct Waiting {
    std::string what;           // "waits for a signal of rank 1"
    const Block* on = nullptr;  // null: nobody will ever come
  };
  Waiting waiting_of(const Block& block) const;

  const Plan& plan_;
  Budget& budget_;
  Links links_;
  Layout layout_;
  std::int32_t invocations_;
  Sites sites_;
  Values values_;
  Memory memory_;
  Expected expected_;
  std::vector<Block> blocks_;
  std::vector<std::size_t> first_block_;  // by rank, into blocks_
  std::vector<RankState> ranks_;
  std::array<std::vector<std::vector<Counter>>, kChannelKindCount> counters_;  // [kind][rank][channel]: who waits
  std::vector<std::vector<Counter>> semaphores_;                               // [rank][id]
  std::vector<std::vector<Port>> ports_;                                       // [rank][channel]
  std::vector<std::map<std::int32_t, std::vector<Block*>>> barriers_;          // [rank][id]: who has come
};

}  // namespace tutti::plan
