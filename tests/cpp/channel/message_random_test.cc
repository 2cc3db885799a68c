// Random programs of sends and receives over random schedules: everything completes with the right payload; with ranks
// killed, links cut or ops cancelled, everything ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>

#include "channel/sim_ports.h"

namespace tutti::test {
namespace {

using Random = std::mt19937_64;

std::size_t draw(Random& random, std::size_t most) { return random() % (most + 1); }

std::size_t random_size(Random& random) {
  switch (draw(random, 4)) {
    case 0:
      return draw(random, 16);
    case 1:
      return kEagerBytes - 1 + draw(random, 2);
    case 2:
      return draw(random, 3 * kEagerBytes);
    default:
      return draw(random, 600);
  }
}

// One end of a message in a program.
struct Step {
  Step(int on, bool send, int to, std::uint64_t t, std::vector<std::byte> data)
      : rank(on), is_send(send), peer(to), tag(t), parcel(std::move(data)) {}

  int rank;
  bool is_send;
  int peer;  // or kAnySource
  std::uint64_t tag;
  Parcel parcel;
  std::vector<std::byte> expected;  // receives from one source
  bool cancelled = false;
};

struct ProgramOptions {
  bool any_source = true;
  bool own_tags = false;  // every message has its own tag, so that a cancelled one moves no other's place
};

// A program: for each rank, its steps in posting order. Messages of one (source, destination, tag) keep their order on
// both sides; all else is shuffled. Tags 0 and 1 are received from their source; messages with tag 2 have one size a
// destination and are received from any.
class Program {
 public:
  Program(Random& random, int ranks, ProgramOptions options) : by_rank_(static_cast<std::size_t>(ranks)) {
    std::map<int, std::size_t> any_size;
    std::vector<std::vector<Step*>> streams;
    std::map<std::array<std::uint64_t, 4>, std::size_t> stream_of;
    auto append = [&](std::array<std::uint64_t, 4> key, Step* step) {
      const auto [it, fresh] = stream_of.try_emplace(key, streams.size());
      if (fresh) streams.emplace_back();
      streams[it->second].push_back(step);
    };
    const std::size_t messages = 5 + draw(random, 25);
    for (std::size_t i = 0; i < messages; ++i) {
      const int from = static_cast<int>(draw(random, static_cast<std::size_t>(ranks) - 1));
      const int to = static_cast<int>(draw(random, static_cast<std::size_t>(ranks) - 1));
      const std::uint64_t tag = options.own_tags ? 10 + i : draw(random, options.any_source ? 2 : 1);
      const bool any = options.any_source && tag == 2;
      std::size_t bytes = random_size(random);
      if (any) bytes = any_size.try_emplace(to, bytes).first->second;
      Step* send = add(from, true, to, tag, pattern(i + 1, bytes));
      Step* recv = add(to, false, any ? kAnySource : from, tag, std::vector<std::byte>(bytes));
      if (!any) recv->expected = send->parcel.data;
      if (any) sent_to_any_[{from, to}].push_back(send->parcel.data);
      append({0, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to), tag}, send);
      append({1, any ? 99 : static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to), tag}, recv);
    }
    // Merges the streams of each rank at random.
    std::vector<std::size_t> next(streams.size());
    for (std::size_t left = steps_.size(); left > 0; --left) {
      std::size_t s = draw(random, streams.size() - 1);
      while (next[s] == streams[s].size()) s = (s + 1) % streams.size();
      Step* step = streams[s][next[s]++];
      by_rank_[static_cast<std::size_t>(step->rank)].push_back(step);
    }
  }

  // Posts the next step of a rank; false if it has none left.
  bool post(SimPorts& ports, int rank) {
    auto& posted = posted_[rank];
    const auto& steps = by_rank_[static_cast<std::size_t>(rank)];
    if (posted == steps.size()) return false;
    Step& step = *steps[posted++];
    if (step.is_send)
      step.parcel.send(ports[rank], step.peer, step.tag);
    else
      step.parcel.recv(ports[rank], step.peer, step.tag);
    return true;
  }

  std::vector<std::unique_ptr<Step>>& steps() { return steps_; }
  bool all_done() const {
    return std::all_of(steps_.begin(), steps_.end(), [](const auto& s) { return s->parcel.op.done(); });
  }

  // Every receive that ended well has the right payload; those from any source in the order of their sources.
  void check_payloads() {
    std::map<std::pair<int, int>, std::size_t> taken;
    for (std::size_t rank = 0; rank < by_rank_.size(); ++rank)
      for (const Step* step : by_rank_[rank]) {
        if (step->is_send || !step->parcel.ok() || step->cancelled) continue;
        if (step->peer != kAnySource) {
          ASSERT_EQ(step->parcel.data, step->expected);
          continue;
        }
        const std::pair<int, int> pair{step->parcel.op.source, static_cast<int>(rank)};
        ASSERT_LT(taken[pair], sent_to_any_[pair].size());
        ASSERT_EQ(step->parcel.data, sent_to_any_[pair][taken[pair]++]);
      }
  }

 private:
  Step* add(int rank, bool send, int peer, std::uint64_t tag, std::vector<std::byte> data) {
    steps_.push_back(std::make_unique<Step>(rank, send, peer, tag, std::move(data)));
    return steps_.back().get();
  }

  std::vector<std::unique_ptr<Step>> steps_;
  std::vector<std::vector<Step*>> by_rank_;
  std::map<int, std::size_t> posted_;
  std::map<std::pair<int, int>, std::vector<std::vector<std::byte>>> sent_to_any_;
};

SimOptions random_network(Random& random) {
  return {.seed = random(),
          .max_delay_ns = 1 + static_cast<std::int64_t>(draw(random, 50'000)),
          .capacity = kLinkSlack << draw(random, 4)};
}

// Posts everything, with driving and passing of time in between; `between` is called between the steps.
template <class Between>
void post_all(Random& random, SimPorts& ports, Program& program, const Between& between) {
  int left = ports.ranks();
  std::vector<char> out(static_cast<std::size_t>(left));
  while (left > 0) {
    const int rank = static_cast<int>(draw(random, static_cast<std::size_t>(ports.ranks()) - 1));
    if (!program.post(ports, rank) && !std::exchange(out[static_cast<std::size_t>(rank)], 1)) --left;
    const auto other = static_cast<int>(draw(random, static_cast<std::size_t>(ports.ranks()) - 1));
    if (random() % 2 == 0 && ports.network.alive(other)) ports[other].progress();
    if (random() % 3 == 0) ports.network.advance();
    between();
  }
}

TEST(RandomMessages, AllCompleteWithTheRightPayload) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int ranks = 2 + static_cast<int>(draw(random, 3));
    Program program(random, ranks, {});
    SimPorts ports(ranks, random_network(random));
    post_all(random, ports, program, [] {});
    ASSERT_TRUE(ports.run_until([&] { return program.all_done(); }));
    for (const auto& step : program.steps()) ASSERT_TRUE(step->parcel.ok());
    program.check_payloads();
    for (int rank = 0; rank < ranks; ++rank) ASSERT_EQ(ports[rank].pending(), 0);
    if (HasFatalFailure()) return;
  }
}

// Without receives from any source, a death touches only what the dead rank is part of.
TEST(RandomMessages, DeathEndsOnlyTheDeadRanksMessages) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int ranks = 2 + static_cast<int>(draw(random, 3));
    Program program(random, ranks, {.any_source = false});
    SimPorts ports(ranks, random_network(random));
    const int victim = static_cast<int>(draw(random, static_cast<std::size_t>(ranks) - 1));
    ports.network.kill_at(victim, 1 + draw(random, 60));
    post_all(random, ports, program, [] {});
    auto ended = [&](const auto& s) { return s->parcel.op.done() || s->rank == victim; };
    // A victim with little to do dies at the end.
    const bool alone =
        ports.run_until([&] { return std::all_of(program.steps().begin(), program.steps().end(), ended); });
    if (!alone) ports.network.kill(victim);
    ASSERT_TRUE(ports.run_until([&] { return std::all_of(program.steps().begin(), program.steps().end(), ended); }));
    for (const auto& step : program.steps()) {
      if (step->rank == victim || step->parcel.ok()) continue;
      ASSERT_TRUE(step->parcel.ended(Status::kPeerLost, victim));
      ASSERT_EQ(step->peer, victim);
    }
    program.check_payloads();
    ports[victim].fail({Status::kAborted, -1});
    if (HasFatalFailure()) return;
  }
}

// A rank that sees a failure fails as a whole and tells the others, as a communicator does: then everything ends, even
// what waits for anyone.
TEST(RandomMessages, CutLinksAndDeathsEndEverything) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int ranks = 2 + static_cast<int>(draw(random, 3));
    Program program(random, ranks, {});
    SimPorts ports(ranks, random_network(random));
    const int victim = static_cast<int>(draw(random, static_cast<std::size_t>(ranks) - 1));
    if (random() % 2 == 0)
      ports.network.kill_at(victim, 1 + draw(random, 60));
    else
      ports.network.cut_at(victim, (victim + 1) % ranks, 1 + draw(random, 60));
    auto poison = [&] {
      for (const auto& step : program.steps())
        if (step->parcel.op.done() && !step->parcel.ok() && !ports.failed[static_cast<std::size_t>(step->rank)]) {
          ports.failed[static_cast<std::size_t>(step->rank)] = 1;
          ports[step->rank].fail(step->parcel.op.outcome);
        }
    };
    post_all(random, ports, program, poison);
    ASSERT_TRUE(ports.run_until([&] {
      poison();
      if (!ports.network.alive(victim)) ports[victim].fail({Status::kAborted, -1});
      return program.all_done();
    }));
    program.check_payloads();
    if (HasFatalFailure()) return;
  }
}

// Cancelled ops never touch their memory again, and what they were part of ends or is received whole.
TEST(RandomMessages, CancelledOpsLeaveTheirMemory) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int ranks = 2 + static_cast<int>(draw(random, 3));
    Program program(random, ranks, {.any_source = false, .own_tags = true});
    SimPorts ports(ranks, random_network(random));
    auto cancel_some = [&] {
      Step& step = *program.steps()[draw(random, program.steps().size() - 1)];
      if (random() % 20 != 0 || step.cancelled || step.parcel.op.done() ||
          step.parcel.op.state.load(std::memory_order_relaxed) == MessageOp::State::kIdle)
        return;
      ports[step.rank].cancel(step.parcel.op);
      step.cancelled = true;
      std::fill(step.parcel.data.begin(), step.parcel.data.end(), std::byte{0xee});
    };
    post_all(random, ports, program, cancel_some);
    for (int i = 0; i < 100 && ports.step(); ++i) cancel_some();
    ports.settle();
    // What still waits does so for a message or a receive that was taken back before it met its other side.
    for (std::size_t i = 0; i < program.steps().size(); i += 2) {
      Step& send = *program.steps()[i];
      Step& recv = *program.steps()[i + 1];
      const bool any_cancelled = send.cancelled || recv.cancelled;
      for (Step* step : {&send, &recv}) {
        if (step->cancelled) {
          for (const std::byte b : step->parcel.data) ASSERT_EQ(b, std::byte{0xee});
          continue;
        }
        ASSERT_TRUE(any_cancelled || step->parcel.ok());
        ASSERT_TRUE(step->parcel.op.done() || recv.cancelled) << "a cancelled send is told to its receiver";
      }
    }
    program.check_payloads();
    for (int rank = 0; rank < ranks; ++rank) ports[rank].fail({Status::kAborted, -1});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tutti::test
