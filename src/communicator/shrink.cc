// A smaller group of those who are still there.
//
// Every survivor signs in at the store and waits for the sign-in of all old ranks that are not known to be dead, at
// most `timeout`. Whoever is done first publishes the ranks it has seen; all others take that list, and wait for nobody
// any more. A rank that signed in too late is not on it and raises.
#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "base/interruption.h"
#include "base/no_memory.h"
#include "bootstrap/exchange.h"
#include "bootstrap/host_protocol.h"
#include "bootstrap/watched_store.h"
#include "communicator/call_check.h"
#include "communicator/communicator_impl.h"

namespace tutti {
namespace {

bool known_dead(const GroupPlace& place, int rank) {
  const int there = place.place_here(rank);
  return place.host != nullptr && there >= 0 && place.host->died(there);
}

// The value of a key; nothing at the deadline, or within a second of `over()`.
std::optional<std::string> get_unless(Store& store, const std::string& key, Deadline& deadline,
                                      const std::function<bool()>& over) {
  constexpr std::int64_t kSliceMs = 500;
  for (bool last = false;;) {
    const std::int64_t left_ms = last ? 1 : std::clamp<std::int64_t>(deadline.remaining_ns() / 1'000'000, 1, kSliceMs);
    try {
      return store.get(key, std::chrono::milliseconds(left_ms));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kTimeout) throw;
    }
    if (last) return std::nullopt;
    last = deadline.expired() || over();  // then a last look: what comes in time is found
  }
}

// "0 2 3 " as written below. Not by a stream: those are the one part of the C++ library that fails where two copies of
// it meet in a process, as with a toolchain that links its own into libtutti.
std::vector<int> read_ranks(std::string_view list) {
  std::vector<int> ranks;
  for (std::size_t end = 0; (end = list.find(' ')) != std::string_view::npos; list.remove_prefix(end + 1)) {
    int rank = 0;
    std::from_chars(list.data(), list.data() + end, rank);
    ranks.push_back(rank);
  }
  return ranks;
}

// Where who gives up before the new group has formed says why: those who await its sign-in, or a list, or have one that
// names it, await it no more.
std::string given_up_key(const std::string& id) { return store_key(id, "given up"); }

std::optional<std::string> at_once(Store& store, const std::string& key) {
  Deadline now = Deadline::after(std::chrono::milliseconds(1));
  return get_unless(store, key, now, [] { return true; });
}

// What the first to give up has said.
struct GivenUp {
  int rank = -1;
  std::string why;
};
std::optional<GivenUp> given_up(Store& store, const std::string& id) {
  const auto said = at_once(store, given_up_key(id));
  if (!said) return std::nullopt;
  ByteReader in(*said);
  GivenUp given;
  given.rank = static_cast<int>(in.u32());
  given.why = in.text();
  return given;
}

// `go_on()`; what it throws is told to the other survivors.
template <class GoOn>
auto telling_survivors(Store& store, const std::string& id, int rank, const GoOn& go_on) {
  try {
    return go_on();
  } catch (const KnownToAll&) {
    throw;
  } catch (const std::exception& error) {
    if (waits_in_fork()) throw;
    try {
      ByteWriter said;
      said.u32(static_cast<std::uint32_t>(rank));
      said.text("shrink: rank " + std::to_string(rank) + " gave up: " + error.what() + ". Shrink once more");
      store.set(given_up_key(id), said.str());
    } catch (const std::exception&) {
      // Then the others learn of it at their deadline.
    }
    throw;
  }
}

// The ranks of the new group: the list of whoever has first seen all that are not `dead`.
std::vector<int> agree(Store& store, const std::string& id, int size, std::chrono::milliseconds timeout,
                       const std::function<bool(int)>& dead, const std::string& survivors) {
  const std::string list_key = store_key(id, "members");
  Deadline deadline = Deadline::after(timeout);
  std::vector<int> present, gone;
  // Who has come too late for a list is not missed: so the list is looked for behind what has been said.
  const auto throw_if_given_up = [&] {
    const std::optional<GivenUp> given = given_up(store, id);
    if (given && !at_once(store, list_key)) throw KnownToAll(ErrorKind::kPeerLost, given->why);
  };
  for (int r = 0; r < size; ++r) {
    const std::string place = store_key(id, "here", std::to_string(r));
    if (dead(r)) {
      if (at_once(store, place)) gone.push_back(r);  // it is no survivor, even if it has signed in
      continue;
    }
    const auto over = [&] {
      throw_if_given_up();
      return dead(r) || at_once(store, list_key);
    };
    if (get_unless(store, place, deadline, over)) present.push_back(r);
  }
  if (store.add(store_key(id, "first"), 1) == 1) {
    std::string mine;
    for (const int r : present) mine += std::to_string(r) + " ";
    store.set(list_key, mine);
  }
  // Whoever was to publish it may have died since it signed in, or given up.
  int lost = gone.empty() ? -1 : gone.front();
  const auto over = [&] {
    for (const int r : present) {
      if (dead(r)) lost = r;
    }
    throw_if_given_up();
    return lost >= 0;
  };
  deadline = Deadline::after(timeout);
  if (const auto list = get_unless(store, list_key, deadline, over)) return read_ranks(*list);
  throw_error(
      lost >= 0 ? ErrorKind::kPeerLost : ErrorKind::kTimeout,
      "shrink: " + survivors + " have not agreed who they are" +
          (lost >= 0 ? ": rank " + std::to_string(lost) + " died meanwhile. Shrink once more" : ": allow more time"));
}

}  // namespace

std::shared_ptr<Communicator> CommunicatorImpl::shrink(Store& store, const std::string& id,
                                                       std::chrono::milliseconds timeout, std::vector<int>* members) {
  const auto want = [&] {
    return "rank " + std::to_string(rank_) + " has no memory to shrink group '" + options_.name + "'";
  };
  const auto begin = [&] {
    throw_if_forked();
    check_call_timeout("shrink", timeout);
    return telling_survivors(store, id, rank_, [&] { return shrink_telling(store, id, effective(timeout), members); });
  };
  return naming_want(begin, want);
}

std::shared_ptr<Communicator> CommunicatorImpl::shrink_telling(Store& store, const std::string& id,
                                                               std::chrono::milliseconds timeout,
                                                               std::vector<int>* members) {
  abort("the group is being shrunk");
  const auto dead = [&](int r) { return known_dead(place_, r); };
  CommunicatorOptions options = options_;
  options.timeout = this->timeout();
  store.set(store_key(id, "here", std::to_string(rank_)), "1");
  const std::vector<int> present =
      agree(store, id, size_, timeout, dead, "the survivors of group '" + options_.name + "'");
  const auto self = std::find(present.begin(), present.end(), rank_);
  if (self == present.end()) {
    throw KnownToAll(ErrorKind::kTimeout, "shrink: rank " + std::to_string(rank_) +
                                              " came after the others had agreed to go on without it: allow more time");
  }
  if (members != nullptr) *members = present;
  // One that has signed in and died gives nothing to the new group: those of its host see it, and say so in its place.
  WatchedStore watched_store(store, [&] {
    const std::optional<GivenUp> given = given_up(store, id);
    if (given && std::ranges::find(present, given->rank) != present.end()) {
      throw KnownToAll(ErrorKind::kPeerLost, given->why);
    }
    for (std::size_t i = 0; i < present.size(); ++i) {
      if (!dead(present[i])) continue;
      const std::string text = "rank " + std::to_string(present[i]) + " of group '" + options_.name +
                               "' died while the survivors formed a new one. Shrink once more";
      tell_death(store, id, static_cast<int>(i), text);
      throw_error(ErrorKind::kPeerLost, text);
    }
  });
  return Communicator::create(watched_store, id, static_cast<int>(self - present.begin()),
                              static_cast<int>(present.size()), options);
}

}  // namespace tutti
