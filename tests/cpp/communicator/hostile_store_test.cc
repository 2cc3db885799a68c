// Any one value that a rank reads or writes in a store while its group forms is changed: into bytes that mean nothing,
// and, by one who knows what ranks say to each other, into what another rank might say. That can keep the group from
// forming, and no more: every rank ends in time, with a group whose results are right or with an Error.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arena/random_seed.h"
#include "base/bytes.h"
#include "bootstrap/forwarding_store.h"
#include "bootstrap/host_protocol.h"
#include "bootstrap/ranks.h"
#include "communicator/two_levels.h"
#include "support/sanitized.h"

namespace tutti::test {
namespace {

constexpr std::chrono::milliseconds kTimeout{2'000};
constexpr std::chrono::milliseconds kPatience{20'000};  // where nobody is to wait for it
// Of the three steps of forming, and of the calls, each has the timeout of the group; the rest is for a machine that is
// busy.
constexpr std::chrono::seconds kEnd{60};

// What becomes of a value. `other` is another rank's, or another of this rank's; empty if there is none.
struct Change {
  std::string name;
  std::function<std::string(std::string value, const std::string& other, std::mt19937_64& random)> of;
};

std::string random_bytes(std::size_t count, std::mt19937_64& random) {
  std::string bytes(count, 0);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::vector<Change> meaningless() {
  using Random = std::mt19937_64;
  std::vector<Change> changes = {
      {"empty", [](std::string, const std::string&, Random&) { return std::string(); }},
      {"truncated", [](std::string value, const std::string&,
                       Random& random) { return value.substr(0, value.empty() ? 0 : random() % value.size()); }},
      {"random bytes",
       [](std::string value, const std::string&, Random& random) { return random_bytes(value.size(), random); }},
      {"1 MB of garbage",
       [](std::string value, const std::string&, Random& random) { return value + random_bytes(1 << 20, random); }},
      {"another's", [](std::string, const std::string& other, Random&) { return other; }},
  };
  const Change bit = {"a bit", [](std::string value, const std::string&, Random& random) {
                        if (value.empty()) return std::string(1, '\1');
                        value[random() % value.size()] ^= static_cast<char>(1U << random() % 8);
                        return value;
                      }};
  const Change length = {
      "a length", [](std::string value, const std::string&, Random& random) {
        constexpr std::string_view kLengths[] = {"\xff\xff\xff\xff", "\xff\xff\xff\x7f", "\xff\xff\xff\x0f"};
        if (value.size() < 4) return std::string(kLengths[0]);
        value.replace(random() % (value.size() - 3), 4, kLengths[random() % 3]);
        return value;
      }};
  changes.insert(changes.end(), 4, bit);
  changes.insert(changes.end(), 3, length);
  return changes;
}

// A part of what a rank says of itself.
template <class Part>
Change card_part(const std::string& name, Part HostCard::*part, std::function<Part(Part)> made) {
  return {name, [part, made](std::string value, const std::string& other, std::mt19937_64& random) {
            std::optional<HostCard> card = decode_card(value);
            if (!card) return value;
            const std::optional<HostCard> from = decode_card(other);
            (*card).*part = from && random() % 2 == 0 ? (*from).*part : made((*card).*part);
            return encode(*card);
          }};
}

// A leader's list of ranks that share memory.
Change verdict_of(const std::string& name, std::function<void(HostVerdict&)> edit) {
  return {name, [edit](std::string value, const std::string&, std::mt19937_64&) {
            std::optional<HostVerdict> verdict = decode_verdict(value);
            if (!verdict) return value;
            edit(*verdict);
            return encode(*verdict);
          }};
}

std::vector<Change> meaningful() {
  const std::function<std::string(std::string)> more = [](std::string text) { return text + "x"; };
  std::vector<Change> changes = {
      card_part<std::string>("a host", &HostCard::hint, more),
      card_part<std::string>("a socket", &HostCard::socket_name, more),
      card_part<std::string>("no socket", &HostCard::socket_name, [](std::string) { return std::string(); }),
      card_part<Nonce>("a nonce", &HostCard::nonce, [](Nonce) { return Nonce{}; }),
      card_part<std::uint64_t>("a size", &HostCard::segment_bytes, [](std::uint64_t bytes) { return bytes * 2; }),
      card_part<std::string>("a secret", &HostCard::secret, more),
      card_part<std::string>("a machine", &HostCard::machine, more),
      card_part<int>("a rank", &HostCard::rank, [](int rank) { return rank + 1; }),
      card_part<AgreedSettings>("a setting", &HostCard::settings,
                                [](AgreedSettings settings) {
                                  if (!settings.empty()) settings.back().compared += "x";
                                  return settings;
                                }),
      card_part<AgreedSettings>("no settings", &HostCard::settings, [](AgreedSettings) { return AgreedSettings(); }),
      verdict_of("nobody shares memory", [](HostVerdict& verdict) { verdict.ranks.clear(); }),
      verdict_of("a rank less",
                 [](HostVerdict& verdict) {
                   if (!verdict.ranks.empty()) verdict.ranks.pop_back();
                 }),
      verdict_of("all share memory",
                 [](HostVerdict& verdict) {
                   verdict.ranks = {0, 1, 2, 3};
                 }),
      verdict_of("a rank below", [](HostVerdict& verdict) { verdict.ranks.push_back(-1); }),
      verdict_of("a rank beyond",
                 [](HostVerdict& verdict) { verdict.ranks.push_back(std::numeric_limits<int>::max()); }),
      verdict_of("a failure", [](HostVerdict& verdict) { verdict.failure = "because"; }),
  };
  for (int rank = 0; rank < 4; ++rank) {
    const std::string name = "rank " + std::to_string(rank);
    changes.push_back(verdict_of(name + " more", [rank](HostVerdict& verdict) { verdict.ranks.push_back(rank); }));
    changes.push_back(verdict_of(name + " first", [rank](HostVerdict& verdict) {
      if (!verdict.ranks.empty()) verdict.ranks.front() = rank;
    }));
    changes.push_back(verdict_of(name + " last", [rank](HostVerdict& verdict) {
      if (!verdict.ranks.empty()) verdict.ranks.back() = rank;
    }));
  }
  changes.push_back({"memory of the host", [](std::string value, const std::string&, std::mt19937_64&) {
                       if (!value.empty() && value[0] <= 1) value[0] ^= 1;  // the first byte of a card of networks
                       return value;
                     }});
  changes.push_back({"a reason", [](std::string, const std::string&, std::mt19937_64&) {
                       return std::string("\0tutti cannot join\0because", 26);
                     }});
  return changes;
}

// Changes the value of this number, of those that its rank reads, or else writes.
class HostileStore final : public ForwardingStore {
 public:
  HostileStore(Store& below, bool reads, std::size_t number, const Change& change, std::uint64_t seed)
      : ForwardingStore(below), reads_(reads), left_(number), change_(change), random_(seed) {}

  void set(std::string_view key, std::string_view value) override {
    ForwardingStore::set(key, reads_ ? std::string(value) : passed(std::string(value), last_));
    last_ = value;
  }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    std::string value = ForwardingStore::get(key, timeout);
    const std::string before = std::exchange(last_, value);
    return reads_ ? passed(std::move(value), before) : value;
  }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    std::vector<std::string> values = ForwardingStore::multi_get(keys, timeout);
    const std::vector<std::string> all = values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::string& other = all.size() > 1 ? all[(i + 1) % all.size()] : last_;
      if (reads_) values[i] = passed(std::move(values[i]), other);
    }
    last_ = all.back();
    return values;
  }
  // There was a value of that number; what is changed may be as it was.
  bool reached() const noexcept { return left_ == 0; }

 private:
  std::string passed(std::string value, const std::string& other) {
    if (left_ == 0 || --left_ > 0) return value;
    return change_.of(std::move(value), other, random_);
  }
  const bool reads_;
  std::size_t left_;  // until the value that is changed; 0 behind it
  const Change& change_;
  std::mt19937_64 random_;
  std::string last_;
};

// What a rank gives to another: nobody else's.
float between(int from, int to) { return static_cast<float>(100 * from + to + 1); }

bool messages_are_right(Communicator& c) {
  const auto n = static_cast<std::size_t>(c.size());
  std::vector<float> in(n), out(n, -1);
  std::vector<WorkPtr> works;
  for (int peer = 0; peer < c.size(); ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    in[at] = between(c.rank(), peer);
    out[at] = peer == c.rank() ? between(peer, peer) : -1;
    if (peer == c.rank()) continue;
    works.push_back(c.isend(&in[at], 1, DataType::kFloat32, peer, 0, {}, nullptr));
    works.push_back(c.irecv(&out[at], 1, DataType::kFloat32, peer, 0, {}, nullptr));
  }
  for (const WorkPtr& work : works) work->wait();
  for (int peer = 0; peer < c.size(); ++peer) {
    if (out[static_cast<std::size_t>(peer)] != between(peer, c.rank())) return false;
  }
  return true;
}

// Small, and past the slots of shared memory.
bool collectives_are_right(Communicator& c, std::size_t count) {
  FloatCall sum(Collective::kAllReduce, count, 1);
  std::ranges::fill(sum.in, static_cast<float>(c.rank() + 1));
  c.run(sum.call);
  const auto expected = static_cast<float>(c.size() * (c.size() + 1) / 2);
  if (std::ranges::any_of(sum.out, [expected](float value) { return value != expected; })) return false;
  FloatCall all(Collective::kAllToAll, count, c.size());
  for (std::size_t i = 0; i < all.in.size(); ++i) all.in[i] = between(c.rank(), static_cast<int>(i / count));
  c.run(all.call);
  for (std::size_t i = 0; i < all.out.size(); ++i) {
    if (all.out[i] != between(static_cast<int>(i / count), c.rank())) return false;
  }
  for (int root = 0; root < c.size(); ++root) {
    FloatCall given(Collective::kBroadcast, count, 1, root);
    std::ranges::fill(given.in, static_cast<float>(c.rank()));
    c.run(given.call);
    if (std::ranges::any_of(given.in, [root](float value) { return value != static_cast<float>(root); })) return false;
  }
  return true;
}

bool works(Communicator& c) {
  return messages_are_right(c) && collectives_are_right(c, 3) && collectives_are_right(c, 50'000);
}

struct Trial {
  std::string layout;  // a letter a rank names its host
  int victim;
  bool reads;
  std::size_t number;
  Change change;
  std::uint64_t seed;
  std::chrono::milliseconds timeout = kTimeout;
  bool reached = false;
  int formed = 0;  // ranks whose group has worked

  std::string text() const {
    return layout + ": " + change.name + " in place of value " + std::to_string(number) + " that rank " +
           std::to_string(victim) + (reads ? " reads" : " writes") + ", seed " + std::to_string(seed);
  }
};

void try_out(Trial& trial) {
  MemoryStore store;
  const int size = static_cast<int>(trial.layout.size());
  std::atomic<int> formed{0};
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      HostileStore hostile(store, trial.reads, r == trial.victim ? trial.number : 0, trial.change, trial.seed);
      CommunicatorOptions options;
      options.timeout = trial.timeout;
      options.config.log_level = "error";
      options.config.stage_bytes = 64 << 10;
      options.config.host_id = std::string(1, trial.layout[static_cast<std::size_t>(r)]);
      const auto start = std::chrono::steady_clock::now();
      try {
        const auto group = Communicator::create(hostile, "hostile", r, size, options);
        EXPECT_TRUE(works(*group)) << "wrong data on rank " << r << "; " << trial.text();
        formed.fetch_add(1, std::memory_order_relaxed);  // read when all have been joined
      } catch (const Error&) {
        // It may say what the writer of the store likes.
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << " throws what is no Error: " << error.what() << "; " << trial.text();
      }
      EXPECT_LT(std::chrono::steady_clock::now() - start, kEnd) << "on rank " << r << "; " << trial.text();
      if (r == trial.victim) trial.reached = hostile.reached();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  trial.formed = formed.load(std::memory_order_relaxed);
}

// Several at once: most of the time those wait that others have left.
void try_all(std::vector<Trial>& trials) {
  constexpr int kAtOnce = 12;
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kAtOnce; ++i) {
    threads.emplace_back([&] {
      // relaxed: nothing but the number itself is passed on
      for (std::size_t t = 0; (t = next.fetch_add(1, std::memory_order_relaxed)) < trials.size();) try_out(trials[t]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Value {
  std::string value, other;
};

// What a rank reads, or writes.
std::vector<Value> values_of(const std::string& layout, int rank, bool reads) {
  std::vector<Value> values;
  const Change none{"nothing", [&values](std::string value, const std::string& other, std::mt19937_64&) {
                      values.push_back({value, other});
                      return value;
                    }};
  for (std::size_t number = 1;; ++number) {
    Trial trial{layout, rank, reads, number, none, 0, kPatience};
    try_out(trial);
    EXPECT_EQ(trial.formed, static_cast<int>(layout.size())) << trial.text();
    if (!trial.reached || testing::Test::HasFailure()) return values;
  }
}

void expect_no_more_than_no_group(const std::vector<Change>& changes) {
  const std::uint32_t seed = random_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::vector<Trial> trials;
  for (const std::string layout : {"aa", "ab", "aaa", "aab", "aabb"}) {
    for (int victim = 0; victim < static_cast<int>(layout.size()); ++victim) {
      for (const bool reads : {true, false}) {
        const std::vector<Value> values = values_of(layout, victim, reads);
        if (testing::Test::HasFailure()) return;
        for (std::size_t i = 0; i < values.size(); ++i) {
          for (const Change& change : changes) {
            const Trial trial{layout, victim, reads, i + 1, change, random(), kTimeout};
            std::mt19937_64 draws(trial.seed);
            // Some changes are of a card, or of a leader's list, alone.
            if (change.of(values[i].value, values[i].other, draws) != values[i].value) trials.push_back(trial);
          }
        }
      }
    }
  }
  if (kSanitized) {  // a sample
    std::shuffle(trials.begin(), trials.end(), random);
    trials.resize(trials.size() / 8);
  }
  try_all(trials);
  for (Trial& trial : trials) {
    if (trial.reached) continue;  // else the machine was too busy for a rank to come so far
    trial.timeout = kPatience;
    try_out(trial);
  }
  std::size_t reached = 0, whole = 0, none = 0;
  for (const Trial& trial : trials) {
    reached += trial.reached ? 1 : 0;
    whole += trial.formed == static_cast<int>(trial.layout.size()) ? 1 : 0;
    none += trial.formed == 0 ? 1 : 0;
  }
  std::printf("%zu changes: all ranks' groups worked in %zu, nobody's in %zu\n", trials.size(), whole, none);
  EXPECT_EQ(reached, trials.size()) << "every change is one of a value that there is";
}

// A list of the ranks that share memory may lack one that has left them. One that has not says so itself.
TEST(HostileStore, AMemberLeftOutIsFound) {
  class Forging final : public ForwardingStore {
   public:
    using ForwardingStore::ForwardingStore;
    std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds time) override {
      std::vector<std::string> values = ForwardingStore::multi_get(keys, time);
      if (keys.front() != verdict_key("hostile", 0)) return values;
      HostVerdict verdict;
      verdict.ranks = {0};
      return {encode(verdict)};
    }
  };
  MemoryStore store;
  run_threads(3, [&](int rank) {
    Forging forging(store);
    CommunicatorOptions options;
    options.timeout = kPatience;
    options.config.log_level = "error";
    options.config.host_id = rank == 2 ? "second" : "first";
    const Error error = error_of([&] {
      Communicator::create(rank == 2 ? static_cast<Store&>(forging) : store, "hostile", rank, 3, options)->run(Call{});
    });
    if (rank != 2) return;
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    EXPECT_STREQ(error.what(),
                 "rank 1 is of the host of rank 0, and the store has told rank 2 that it is of that of rank 1: another "
                 "group uses the same name in it, or it changes values");
  });
}

TEST(HostileStore, BytesThatMeanNothing) { expect_no_more_than_no_group(meaningless()); }
TEST(HostileStore, WhatAnotherRankMightSay) { expect_no_more_than_no_group(meaningful()); }

}  // namespace
}  // namespace tutti::test
