// Depth-first search of all orders of a graph's events that can make a difference.
//
// Two events depend on each other if nothing orders them and they access one copy, one of them writing. An event all of
// whose partners have happened is taken at once. Otherwise the search branches over a stubborn set (Valmari): it holds
// with an event that can happen all its partners, and with one that cannot something that it waits for. Since no order
// goes on for ever, that keeps every final state. States that have been seen are known by a hash of 128 bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "plan/explorer/event_graph.h"

namespace tutti::plan::explorer {

struct Limits {
  std::size_t states = 1000000;
  std::size_t events = 6000;
  bool reduce = true;  // false: branch over everything that can happen
};

class Search {
 public:
  Search(const Graph& graph, Terms& terms, std::size_t ranks, Limits limits);

  enum class Outcome : std::uint8_t { kRight, kWrong, kUndecided };
  Outcome run();

  const std::string& what() const { return what_; }
  std::size_t states() const { return seen_.size(); }

 private:
  struct Value {
    Term term = kNothing;
    int flag = kPlain;
  };
  struct State {
    std::vector<char> happened;  // [event]
    std::vector<int> missing;    // [event]: of those that it waits for
    std::vector<Value> copies;   // [copy]
    std::vector<Value> pending;  // [store]: what it carries, from its event on
    std::vector<int> ready;      // events that miss nothing, in ascending order
    std::size_t left = 0;
    std::array<std::uint64_t, 2> hash{};
  };
  struct Access {
    int event;
    bool writes;
  };

  void find_partners();
  bool can_happen(const State& state, int event) const;
  bool is_free(const State& state, int event) const;
  void happen(State& state, int event);
  void happen_all_free(State& state);
  Value stored(const State& state, const Event& event, std::size_t nth);
  void check_outputs(const State& state, const Event& event);
  std::vector<int> choices(const State& state) const;
  std::vector<int> stubborn_set(const State& state, int seed) const;
  void stubborn_waiting(const State& state, int event, std::vector<int>& add) const;
  void explore(State state);
  enum class Fact : std::uint8_t { kCopy, kStore, kEvent };
  static std::array<std::uint64_t, 2> hash_of(Fact fact, std::size_t index, Value value);
  static void add_fact(State& state, Fact fact, std::size_t index, Value value);
  static void remove_fact(State& state, Fact fact, std::size_t index, Value value);

  const Graph& graph_;
  Terms& terms_;
  Limits limits_;
  std::vector<std::vector<int>> next_;           // [event]: those that wait for it
  std::vector<std::vector<int>> partners_;       // [event]
  std::vector<std::vector<int>> deliveries_to_;  // [copy]: events that write it
  std::vector<std::int32_t> sender_of_;          // [rank]: sendrecv
  std::vector<std::int32_t> taker_of_;           // [rank]
  unsigned reductions_ = ~0U;                    // those that all outputs so far can be
  std::unordered_set<std::string> seen_;
  std::string what_;
  bool wrong_ = false;
  bool undecided_ = false;
};

}  // namespace tutti::plan::explorer
