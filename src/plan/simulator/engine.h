// The event loop of the simulator. engine.cc holds time, blocks and counters; engine_data.cc what moves bytes.
//
// Events of one moment are carried out in the order in which they were scheduled, then links are shared anew: the same
// plan gives the same timeline, always.
//
// Thread rule: one thread, one run.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "plan/links.h"
#include "plan/operations.h"
#include "plan/simulator/network.h"
#include "plan/simulator/output_reads.h"
#include "plan/simulator/routes.h"
#include "plan/simulator/simulator.h"
#include "plan/sizes.h"

namespace tutti::plan {

class Engine {
 public:
  // `reads`: of the plan, or of nothing where some of its rounds are left out.
  Engine(const Plan& plan, const Topology& topology, Routes& routes, std::int64_t block_bytes, OutputReads reads = {});

  // Without bounds and algorithm bandwidth (finish).
  Simulation run(std::optional<double> budget_s);

 private:
  static constexpr std::int32_t kNobody = -1;

  struct Block {
    std::int32_t rank = 0;
    std::int32_t index = 0;
    std::size_t op = 0;
    std::size_t inner = 0;
    std::int64_t iteration = 0;
    Picoseconds turn = 0;         // since when the operation is the block's next
    std::int32_t last = kNobody;  // step
    std::int32_t current = kNobody;
    std::int32_t pending = 0;  // parts of the current operation under way
    bool running = false;      // … it has begun
    bool sends_later = false;  // … and sends when what it moves itself is done
    bool arrived = false;      // at a barrier
    bool dispatched = false;   // the current operation has been
    bool finished = false;
  };
  struct Counter {
    std::int32_t unraised = 0;        // of those that a semaphore begins with; they are taken first
    std::deque<std::int32_t> tokens;  // steps that raised it
    std::int32_t waiting = kNobody;   // block
  };
  struct Item {  // of a port's queue
    TimelineStep step;
    double wire_bytes = 0;
    const Efficiency* efficiency = nullptr;
    std::int32_t peer = 0;
    bool signals = false;                                      // else it puts
    std::vector<std::pair<std::int64_t, std::int64_t>> slots;  // packets that it delivers
  };
  struct Port {
    std::int32_t rank = 0;
    std::int32_t channel = 0;
    std::deque<Item> items;
    bool busy = false;
    std::int32_t last = kNobody;         // step
    std::vector<std::int32_t> flushing;  // blocks
  };
  struct Slots {  // the packets that a rank has received in this call
    struct Range {
      std::int64_t end = 0;
      std::int32_t step = kNobody;
    };
    std::map<std::int64_t, Range> ranges;  // by begin
    std::vector<std::int32_t> waiting;     // blocks
  };
  enum class EventKind : std::uint8_t { kDrain, kStart, kPart, kToken, kSemaphore, kResume, kPackets };
  struct Event {
    Picoseconds time = 0;
    std::uint64_t order = 0;
    EventKind kind = EventKind::kDrain;
    std::int32_t a = 0;
    std::int32_t b = 0;
    std::int32_t c = 0;
    bool operator>(const Event& other) const { return time != other.time ? time > other.time : order > other.order; }
  };
  // A flow and whom it tells.
  struct Transfer {
    std::vector<std::int32_t> links;
    double bytes = 0;
    const Efficiency* efficiency = nullptr;  // not null where there are links
    double looked_up_by = 0;                 // bytes, if more than those
    double most = kUnlimited;                // bytes a picosecond
    Picoseconds tail = 0;                    // from drained to done
    std::int32_t block = kNobody;
    std::int32_t port = kNobody;
  };
  struct Delivery {  // packets on their way
    std::int32_t rank = 0;
    std::int32_t step = kNobody;
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  };
  // Payload of an operation by operand.
  struct Load {
    std::vector<Move> moves;
    std::vector<double> sources;       // bytes of each
    std::vector<double> destinations;  // …
    double total = 0;
  };

  // engine.cc
  void set_up();
  void schedule(Picoseconds time, EventKind kind, std::int32_t a, std::int32_t b = 0, std::int32_t c = 0);
  void handle(const Event& event);
  void advance(std::int32_t id);
  bool perform(std::int32_t id);
  bool wait(std::int32_t id, const Operation& op);
  bool barrier(std::int32_t id, const Operation& op);
  bool acquire(std::int32_t id, const Operation& op);
  bool flush(std::int32_t id, const Operation& op);
  void signal(std::int32_t id, const Operation& op);
  void release(std::int32_t id, const Operation& op);
  void give(Counter& counter, std::int32_t step);
  bool take(std::int32_t id, const std::vector<Counter*>& counters);
  void next(Block& block);
  const Operation& operation(const Block& block) const;
  const Operation* loop_of(const Block& block) const;
  TimelineStep step_of(const Block& block) const;
  std::int32_t record(std::int32_t id, std::int32_t cause);
  std::int32_t add(TimelineStep step);
  [[noreturn]] void report_stuck() const;
  std::string why_blocked(const Block& block) const;
  double operations_of(const ThreadBlock& block) const;
  void check_budget(std::uint64_t steps);
  std::vector<std::int32_t> path_to(std::int32_t step) const;
  void report(Simulation& out) const;

  // engine_data.cc
  bool move(std::int32_t id, const Operation& op);
  Load load_of(const Block& block, const Operation& op) const;
  bool packets_are_here(std::int32_t id, const Operation& op, const Load& load, std::int32_t& cause);
  void begin_move(std::int32_t id, const Operation& op, const Load& load);
  bool send(std::int32_t id, const Operation& op, const Load& load, Picoseconds after);
  void end_move(std::int32_t id);
  void enqueue(std::int32_t id, const Operation& op, const Load& load);
  void serve(std::int32_t port);
  void end_put(std::int32_t port);
  void launch(Transfer transfer, Picoseconds after);
  void start(std::int32_t transfer);
  void part_done(std::int32_t transfer);
  void deliver(const Delivery& delivery, Picoseconds after);
  void arrive(std::int32_t delivery);
  std::vector<std::int32_t> peers_of(const Block& block, const Operation& op, const Operand& operand) const;
  const Route& route(std::int32_t from, std::int32_t to) const;
  const Efficiency& local_efficiency_of(const Operation& op) const;
  const Efficiency& efficiency_of(Format format) const;
  const Efficiency& efficiency_into(const Block& block, const Operation& op, std::size_t destination) const;
  void cross(std::int32_t id, const std::vector<std::int32_t>& peers, bool reads, bool tree, double bytes,
             const Efficiency& efficiency, Picoseconds after);

  const Plan& plan_;
  const Topology& topology_;
  Routes& routes_;
  const OutputReads output_reads_;
  Links links_;
  Sizes sizes_;
  Network network_;
  std::vector<Block> blocks_;
  std::array<std::vector<std::vector<Counter>>, kChannelKindCount> counters_;  // [kind][rank][channel]
  std::vector<std::vector<Counter>> semaphores_;                               // [rank][semaphore]
  std::vector<std::map<std::int32_t, std::vector<std::int32_t>>> barriers_;    // [rank]: blocks that have come
  std::vector<Port> ports_;
  std::vector<std::int32_t> first_port_;  // [rank]
  std::vector<Slots> slots_;              // [rank]
  std::vector<Transfer> transfers_;
  std::vector<std::int32_t> free_transfers_;
  std::vector<Delivery> deliveries_;
  std::vector<TimelineStep> steps_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t scheduled_ = 0;
  std::int64_t performed_ = 0;
  double operations_ = 0;  // in all, which may be more than 64 bits count
  std::optional<std::chrono::time_point<std::chrono::steady_clock, std::chrono::duration<double>>> deadline_;
  std::uint64_t at_once_ = 0;  // operations since the last event
  bool over_budget_ = false;
  Picoseconds now_ = 0;
};

// Throws InvalidArgument if the topology has fewer ranks.
void check_ranks(const Topology& topology, std::size_t ranks);

// What a result says of the collective: its bounds and algorithm bandwidth. Of the plan's ranks only the number counts.
void finish(Simulation& out, const Plan& plan, const Topology& topology, Routes& routes, std::int64_t block_bytes);

}  // namespace tutti::plan
