// A smaller group of those who are still there.
//
// Every survivor signs in at the store and waits for the sign-in of all old ranks that are not known to be dead, at
// most `timeout`. Whoever is done first publishes the ranks it has seen; all others take that list, and wait for nobody
// any more. A rank that signed in too late is not on it and raises. From there on all of it has `timeout` once more,
// and a rank that dies is missed: those of its host see it, and others find its will in place of its sign-in, where the
// store takes one.
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
#include "bootstrap/tcp_store.h"
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

std::string sign_in_key(const std::string& id, int rank) { return store_key(id, "here", std::to_string(rank)); }

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

// What one rank sees of those that shrink a group.
class Survivors {
 public:
  Survivors(Store& store, const std::string& id, int rank, std::function<bool(int)> dead, const std::string& group)
      : store_(store),
        witness_(dynamic_cast<TcpStore*>(&store)),
        id_(id),
        rank_(rank),
        dead_(std::move(dead)),
        group_(group) {
    if (witness_ != nullptr) witness_->leave_will({sign_in_key(id_, rank_)}, died_text(rank_));
    store_.set(sign_in_key(id_, rank_), "1");
  }
  ~Survivors() {
    try {
      if (witness_ != nullptr) witness_->leave_will({}, {});
    } catch (const std::exception&) {
      // The store is gone, and nobody can ask it.
    }
  }
  Survivors(const Survivors&) = delete;
  Survivors& operator=(const Survivors&) = delete;

  // The ranks of the new group: the list of whoever has first seen all that have not died.
  std::vector<int> agree(int size, std::chrono::milliseconds timeout, Deadline& rest) const;
  // One of those that have signed in which has died since, as far as this rank is to look; -1: none.
  int died_of(const std::vector<int>& present) const;
  std::string died_text(int rank) const {
    return "rank " + std::to_string(rank) + " of group '" + group_ +
           "' died while the survivors formed a new one. Shrink once more";
  }

 private:
  enum class Sign { kAbsent, kHere, kDied };
  template <class Get>
  Sign sign_of(const Get& get) const;

  Store& store_;
  TcpStore* const witness_;  // the store, if it sees its clients end
  const std::string& id_;
  const int rank_;
  const std::function<bool(int)> dead_;
  const std::string& group_;
};

// Of what `get()` asks for: a sign-in, or several.
template <class Get>
Survivors::Sign Survivors::sign_of(const Get& get) const {
  try {
    return get() ? Sign::kHere : Sign::kAbsent;
  } catch (const KnownToAll&) {
    throw;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kTimeout) return Sign::kAbsent;
    if (error.kind() != ErrorKind::kPeerLost || witness_ == nullptr) throw;
  }
  at_once(store_, sign_in_key(id_, rank_));  // this rank's own, which throws where it is the store that is lost
  return Sign::kDied;
}

int Survivors::died_of(const std::vector<int>& present) const {
  const auto seen = std::ranges::find_if(present, dead_);
  if (seen != present.end()) return *seen;
  if (witness_ == nullptr) return -1;
  // Of many ranks the first looks for all: they hear it of that.
  const bool all = present.size() <= kMostDirect || present.front() == rank_;
  const std::vector<int> asked(present.begin(), all ? present.end() : present.begin() + 1);
  std::vector<std::string> places;
  for (const int r : asked) places.push_back(sign_in_key(id_, r));
  const auto signs = [&] {
    store_.multi_get(places, std::chrono::milliseconds(1));
    return true;
  };
  if (sign_of(signs) != Sign::kDied) return -1;
  const auto lost = std::ranges::find_if(asked, [&](int r) {
    return sign_of([&] { return at_once(store_, sign_in_key(id_, r)).has_value(); }) == Sign::kDied;
  });
  return lost != asked.end() ? *lost : -1;
}

std::vector<int> Survivors::agree(int size, std::chrono::milliseconds timeout, Deadline& rest) const {
  const std::string list_key = store_key(id_, "members");
  Deadline deadline = Deadline::after(timeout);
  std::vector<int> present, gone;
  // Who has come too late for a list is not missed: so the list is looked for behind what has been said.
  const auto throw_if_given_up = [&] {
    const std::optional<GivenUp> given = given_up(store_, id_);
    if (given && !at_once(store_, list_key)) throw KnownToAll(ErrorKind::kPeerLost, given->why);
  };
  for (int r = 0; r < size; ++r) {
    const std::string place = sign_in_key(id_, r);
    const auto over = [&] {
      throw_if_given_up();
      return dead_(r) || at_once(store_, list_key);
    };
    const bool seen = dead_(r);
    const Sign sign = sign_of(
        [&] { return (seen ? at_once(store_, place) : get_unless(store_, place, deadline, over)).has_value(); });
    if (sign == Sign::kAbsent) continue;
    // Who has died is no survivor, even if it has signed in.
    (seen || sign == Sign::kDied ? gone : present).push_back(r);
  }
  rest = Deadline::after(time_to_form(timeout));
  const auto waits = [&](int r) { return store_key(id_, "waits", std::to_string(r)); };
  if (store_.add(store_key(id_, "first"), 1) == 1) {
    std::string mine;
    for (const int r : present) mine += std::to_string(r) + " ";
    store_.set(list_key, mine);
  } else {
    store_.set(waits(rank_), "1");
  }
  // Whoever was to publish it may have died since it signed in, or given up.
  int lost = gone.empty() ? -1 : gone.front();
  const auto over = [&] {
    if (const int died = died_of(present); died >= 0) lost = died;
    throw_if_given_up();
    return lost >= 0;
  };
  if (const auto list = get_unless(store_, list_key, rest, over)) return read_ranks(*list);
  const std::string what = "shrink: the survivors of group '" + group_ + "' have not agreed who they are: ";
  if (lost >= 0) {
    throw_error(ErrorKind::kPeerLost, what + "rank " + std::to_string(lost) + " died meanwhile. Shrink once more");
  }
  std::erase_if(present, [&](int r) { return r == rank_ || at_once(store_, waits(r)); });
  throw_error(ErrorKind::kTimeout, what + (present.empty() ? "one of them" : name_ranks(present)) +
                                       " did not go on; look at them, or allow more time");
}

}  // namespace

// However soon a rank is to be given up that does not sign in, those that are there need time to form a group.
std::chrono::milliseconds time_to_form(std::chrono::milliseconds patience) noexcept {
  constexpr std::chrono::milliseconds kLeast(5'000);
  return std::max(patience, kLeast);
}

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
  CommunicatorOptions options = options_;
  options.timeout = this->timeout();
  const Survivors survivors(
      store, id, rank_, [&](int r) { return known_dead(place_, r); }, options_.name);
  Deadline rest = Deadline::never();  // until it is known who is there
  const std::vector<int> present = survivors.agree(size_, timeout, rest);
  const auto self = std::find(present.begin(), present.end(), rank_);
  if (self == present.end()) {
    throw KnownToAll(ErrorKind::kTimeout, "shrink: rank " + std::to_string(rank_) +
                                              " came after the others had agreed to go on without it: allow more time");
  }
  if (members != nullptr) *members = present;
  // One that has signed in and died gives nothing to the new group: who sees it says so in its place.
  WatchedStore watched_store(store, [&] {
    const std::optional<GivenUp> given = given_up(store, id);
    if (given && std::ranges::find(present, given->rank) != present.end()) {
      throw KnownToAll(ErrorKind::kPeerLost, given->why);
    }
    const int died = survivors.died_of(present);
    if (died < 0) return;
    const std::string text = survivors.died_text(died);
    tell_death(store, id, static_cast<int>(std::ranges::find(present, died) - present.begin()), text);
    throw_error(ErrorKind::kPeerLost, text);
  });
  const std::chrono::milliseconds left(std::max<std::int64_t>(1, rest.remaining_ns() / 1'000'000));
  return form(watched_store, id, static_cast<int>(self - present.begin()), static_cast<int>(present.size()), options,
              left);
}

}  // namespace tutti
