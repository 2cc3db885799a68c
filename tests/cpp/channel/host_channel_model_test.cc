// The protocol of announcements, explored: random programs of calls on real host channels, one step of one rank at a
// time in one thread. A rank may be held between any two steps for as long as its peers can go on without it. Every
// byte that a peer reads is checked against the call it must be of.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "algorithm/shm/exchange.h"
#include "arena/random_seed.h"
#include "base/mapping.h"
#include "channel/host_channel.h"

namespace tutti::test {
namespace {

enum class Kind {
  kEveryone,   // payloads beside the announcements, all look at all
  kBroadcast,  // the root returns at once, the others look at the root only
  kGather,     // only the root looks
  kSilent,     // announced and awaited, nothing else
  kUneven,     // sizes of blocks, and the largest in the record
  kLed,        // the first rank replaces its payload after it has seen all others'
  kStaged,     // rounds through the staging areas, of no bytes too
};

struct Planned {
  std::uint64_t sequence = 0;
  Kind kind = Kind::kEveryone;
  int root = 0;
  bool slot = false;         // payload in the slot, not in the cell
  std::uint64_t rounds = 0;  // kStaged
};

// What rank `rank` says in a place of a call; never what it or another says elsewhere.
std::uint64_t said(const Planned& call, int rank, std::uint64_t what, std::uint64_t place) {
  return call.sequence << 32 | static_cast<std::uint64_t>(rank) << 24 | what << 16 | place;
}
enum : std::uint64_t { kPayload = 1, kSize, kLargest, kResult, kRound };

// Done, or to be asked again.
using Step = std::function<bool()>;

class Rank {
 public:
  Rank(int index, int ranks, int segment, const SegmentLayout& layout)
      : index_(index), host_(group(index, ranks, segment), layout, {.spin_ns = 0, .yields = 0, .crowded = false}) {}

  HostChannel& host() { return host_; }
  bool idle() const { return steps_.empty(); }
  const std::string& problem() const { return problem_; }
  bool step() {
    if (!steps_.front()()) return false;
    steps_.pop_front();
    return true;
  }

  void start(const Planned& call) {
    CallRecord record;
    record.sequence = call.sequence;
    record.call = static_cast<std::uint8_t>(Collective::kAllToAll);
    record.root = call.root;
    record.count = call.sequence * 3;
    record.hash = fingerprint(record);
    const bool rooted = call.kind == Kind::kBroadcast || call.kind == Kind::kGather;
    const bool pays = call.kind == Kind::kEveryone || call.kind == Kind::kLed ||
                      (call.kind == Kind::kBroadcast && index_ == call.root) ||
                      (call.kind == Kind::kGather && index_ != call.root);
    wait([this, record](Deadline& d) { return host_.begin(record, d); });
    if (pays) write_payload(call, kPayload);
    if (call.kind == Kind::kUneven) write_sizes(call, record);
    add([this] { host_.announce(); });
    if (rooted && (index_ == call.root) == (call.kind == Kind::kBroadcast)) return;
    if (call.kind == Kind::kBroadcast) {
      await(call.root);
      read_payload(call, call.root, kPayload);
    } else if (call.kind == Kind::kLed) {
      lead_or_follow(call);
    } else {
      wait([this](Deadline& d) { return host_.await_records(d); });
      for (int r = 0; r < host_.ranks(); ++r) {
        if (r == index_) continue;
        if (call.kind == Kind::kEveryone || call.kind == Kind::kGather) read_payload(call, r, kPayload);
        if (call.kind == Kind::kUneven) read_sizes(call, r);
      }
      if (call.kind == Kind::kStaged) exchange_rounds(call);
    }
  }

 private:
  static constexpr std::uint64_t kWords = 4;  // of a payload, each a step of its own
  static constexpr std::size_t kChunk = 64;
  static constexpr std::size_t kAreas = 4 * kChunk;

  // All ranks in this process: no descriptor but the segment's.
  static HostGroup group(int index, int ranks, int segment) {
    HostGroup made;
    for (int r = 0; r < ranks; ++r) {
      made.host_of.push_back(0);
      made.members.emplace_back();
      made.members.back().rank = r;
      made.members.back().pid = ::getpid();
    }
    made.index = index;
    made.segment = UniqueFd(::dup(segment));
    return made;
  }

  static std::size_t bytes(const Planned& call) { return call.slot ? kInlineBytes + 8 : kWords * 8; }

  void add(std::function<void()> action) {
    steps_.emplace_back([action = std::move(action)] {
      action();
      return true;
    });
  }
  void wait(std::function<Outcome(Deadline&)> ask) {
    steps_.emplace_back([this, ask = std::move(ask)] {
      Deadline now = Deadline::after(std::chrono::milliseconds(0));
      const Outcome outcome = ask(now);
      if (outcome.status == Status::kTimeout) return false;
      if (!outcome.ok()) note("a wait ended with status " + std::to_string(static_cast<int>(outcome.status)));
      return true;
    });
  }
  void await(int peer) {
    wait([this, peer](Deadline& d) { return host_.await(peer, d); });
  }
  void note(const std::string& what) {
    if (problem_.empty()) problem_ = "rank " + std::to_string(index_) + ": " + what;
  }
  // The place of a word is known once the call has begun.
  void read(const Planned& call, int peer, std::uint64_t what, std::uint64_t place,
            std::function<std::uint64_t()> word) {
    add([=, this, word = std::move(word)] {
      const std::uint64_t got = word();
      if (got == said(call, peer, what, place)) return;
      note("call " + std::to_string(call.sequence) + " of kind " + std::to_string(static_cast<int>(call.kind)) +
           " read word " + std::to_string(what) + " of rank " + std::to_string(peer) + " as call " +
           std::to_string(got >> 32) + " has it");
    });
  }

  void write_payload(const Planned& call, std::uint64_t what) {
    for (std::uint64_t i = 0; i < kWords; ++i) {
      add([=, this] {
        reinterpret_cast<std::uint64_t*>(host_.payload_area(bytes(call)))[i] = said(call, index_, what, i);
      });
    }
  }
  void read_payload(const Planned& call, int peer, std::uint64_t what) {
    for (std::uint64_t i = 0; i < kWords; ++i) {
      read(call, peer, what, i,
           [=, this] { return reinterpret_cast<const std::uint64_t*>(host_.peer_payload(peer, bytes(call)))[i]; });
    }
  }

  void write_sizes(const Planned& call, CallRecord record) {
    for (int r = 0; r < host_.ranks(); ++r) {
      add([=, this] { host_.sizes(index_)[r] = said(call, index_, kSize, static_cast<std::uint64_t>(r)); });
    }
    record.largest = said(call, index_, kLargest, 0);
    add([=, this] { host_.amend(record); });
  }
  void read_sizes(const Planned& call, int peer) {
    const auto mine = static_cast<std::uint64_t>(index_);
    read(call, peer, kSize, mine, [=, this] { return host_.sizes(peer)[mine]; });
    read(call, peer, kLargest, 0, [=, this] { return host_.peer_record(peer).largest; });
  }

  void lead_or_follow(const Planned& call) {
    if (index_ == 0) {
      wait([this](Deadline& d) { return host_.await_all(d); });
      for (int r = 1; r < host_.ranks(); ++r) read_payload(call, r, kPayload);
      write_payload(call, kResult);
      add([this] { host_.publish(StepLane::kFilled, host_.step_base() + 1); });
    } else {
      await(0);
      wait([this](Deadline& d) { return host_.await_step(0, StepLane::kFilled, host_.step_base() + 1, d); });
      read_payload(call, 0, kResult);
    }
    add([this] { host_.advance_steps(1); });
  }

  // As exchange() in algorithm/shm/exchange.h, of all ranks, or of a root that fills and others that drain.
  void exchange_rounds(const Planned& call) {
    const bool one_fills = call.slot;
    const bool fills = !one_fills || index_ == call.root;
    const bool drains = !one_fills || index_ != call.root;
    const auto area = [this](int rank, std::uint64_t round) {
      const StageRing ring(host_, kChunk, 0, kAreas);
      return reinterpret_cast<std::uint64_t*>(ring.at(rank, round));
    };
    for (std::uint64_t t = 0; t <= call.rounds && call.rounds != 0; ++t) {
      if (fills && t < call.rounds) {
        for (int r = 0; r < host_.ranks() && t >= kAreas / kChunk; ++r) {
          if (r == index_) continue;
          wait([=, this](Deadline& d) {
            return host_.await_step(r, StepLane::kDrained, host_.step_base() + t - kAreas / kChunk + 1, d);
          });
        }
        add([=, this] { *area(index_, t) = said(call, index_, kRound, t); });
        add([=, this] { host_.publish(StepLane::kFilled, host_.step_base() + t + 1); });
      }
      if (!drains || t == 0) continue;
      for (int r = 0; r < host_.ranks(); ++r) {
        if (r == index_ || (one_fills && r != call.root)) continue;
        wait([=, this](Deadline& d) { return host_.await_step(r, StepLane::kFilled, host_.step_base() + t, d); });
        read(call, r, kRound, t - 1, [=] { return *area(r, t - 1); });
      }
      add([=, this] { host_.publish(StepLane::kDrained, host_.step_base() + t); });
    }
    add([=, this] { host_.advance_steps(call.rounds); });
  }

  int index_;
  HostChannel host_;
  std::deque<Step> steps_;
  std::string problem_;
};

std::vector<Planned> random_program(std::mt19937& random, int ranks, std::size_t calls) {
  std::vector<Planned> program(calls);
  // Few kinds at a time: what nobody waits for must come often enough in a row.
  const auto kinds = static_cast<unsigned>(1 + random() % 127);
  for (std::size_t i = 0; i < calls; ++i) {
    Planned& call = program[i];
    call.sequence = i + 1;
    do call.kind = static_cast<Kind>(random() % 7);
    while ((kinds >> static_cast<unsigned>(call.kind) & 1) == 0);
    call.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
    call.slot = random() % 2 == 0;
    call.rounds = random() % 8;
  }
  return program;
}

// One rank at a time takes some steps; which one and how many is drawn. Returns what went wrong.
std::string explore(std::mt19937& random, int ranks, std::size_t calls) {
  SegmentShape shape;
  shape.ranks = ranks;
  shape.slot_bytes = 256;
  shape.stage_bytes = 4096;
  const SegmentLayout layout(shape);
  const UniqueFd segment = create_memfd("model", layout.total_bytes());
  std::vector<std::unique_ptr<Rank>> all;
  for (int r = 0; r < ranks; ++r) all.push_back(std::make_unique<Rank>(r, ranks, segment.get(), layout));
  std::vector<std::thread> threads;
  for (const auto& rank : all) {
    threads.emplace_back([&rank] {
      Deadline deadline = Deadline::after(std::chrono::seconds(60));
      (void)rank->host().join(deadline);
    });
  }
  for (std::thread& thread : threads) thread.join();

  const std::vector<Planned> program = random_program(random, ranks, calls);
  std::vector<std::size_t> next(all.size(), 0);
  const auto ended = [&](std::size_t r) { return all[r]->idle() && next[r] == program.size(); };
  const auto all_ended = [&] {
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (!ended(r)) return false;
    }
    return true;
  };
  std::size_t held = 0;  // draws since a step was taken
  while (!all_ended()) {
    const std::size_t r = random() % all.size();
    const auto most = std::size_t{1} << (random() % 9);
    std::size_t taken = 0;
    for (; taken < most && !ended(r); ++taken) {
      if (all[r]->idle()) all[r]->start(program[next[r]++]);
      if (!all[r]->step()) break;
    }
    if (!all[r]->problem().empty()) return all[r]->problem();
    held = taken != 0 ? 0 : held + 1;
    if (held > 10'000) return "nobody can go on";
  }
  return {};
}

TEST(HostChannelModel, NothingIsReadOfAnotherCallWhateverTheOrderOfSteps) {
  const std::uint32_t seed = random_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  for (int program = 0; program < 200; ++program) {
    const int ranks = 2 + static_cast<int>(random() % 4);
    ASSERT_EQ(explore(random, ranks, 60), "") << "in program " << program << " of " << ranks << " ranks";
  }
}

}  // namespace
}  // namespace tutti::test
