// Groups from an id, and from what is left of a group: all meet at a place that one process offers.
#include "tutti/group_id.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/no_memory.h"
#include "base/process.h"
#include "base/secret.h"
#include "bootstrap/exchange.h"
#include "bootstrap/host_protocol.h"
#include "bootstrap/meeting_place.h"
#include "communicator/call_check.h"
#include "communicator/communicator_impl.h"
#include "net/address.h"

namespace tutti {
namespace {

static_assert(kGroupIdBytes == kMeetingPlaceBytes);

// A meeting place has one group.
constexpr const char* kJoinedId = "group";

// Given where a group meets by each of its ranks that has been there, if only to say why it cannot join.
std::string arrival_key(int rank) { return store_key(kJoinedId, "arrived", std::to_string(rank)); }

constexpr const char* kMaker = "the process that made the group's id";

MeetingPlace place_of(const GroupId& id, const std::string& group, int rank) {
  if (auto place = decode_meeting_place(id)) return *std::move(place);
  throw_error(ErrorKind::kInvalidArgument, "group '" + group + "', rank " + std::to_string(rank) +
                                               ": this is no id of a group; carry all " +
                                               std::to_string(kGroupIdBytes) +
                                               " bytes of the one that its maker got, and use the same version of "
                                               "Tutti everywhere");
}

std::string own_address(const Config& config) {
  const auto route = config.interface.empty() ? route_to(config.master_address) : std::nullopt;
  return choose_address(interface_addresses(), config.interface, route).host();
}

MeetingPlace offer_place(const Config& config, const std::string& address = {}) {
  return offer_meeting_place(address.empty() ? own_address(config) : address);
}

// What this process may have offered for a group of `ranks`. If the group does not form the place stays for those who
// are still to hear why: until all have been there and are gone, or for as long as the group might have taken to form.
class Offer {
 public:
  Offer(MeetingPlace place, int ranks, std::chrono::milliseconds timeout) noexcept
      : place_(std::move(place)), to_come_(ranks > 0 ? ranks : std::numeric_limits<int>::max()), timeout_(timeout) {}
  ~Offer() { leave_offer(place_, to_come_, arrival_key, std::max(timeout_, kShortest)); }
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;

  const MeetingPlace& place() const noexcept { return place_; }
  void may_take(std::chrono::milliseconds timeout) noexcept { timeout_ = timeout; }
  void all_are_there() noexcept { to_come_ = 0; }
  // Nobody looks there any more.
  void end() noexcept { take_offer(place_); }

 private:
  static constexpr std::chrono::milliseconds kShortest{20'000};  // who is there looks twice a second

  const MeetingPlace place_;
  int to_come_;
  std::chrono::milliseconds timeout_;
};

// While it lives, the end of this process is told to those that await something of this rank. What it throws itself is
// told, or found, by other means.
class LastWill {
 public:
  LastWill(TcpStore& store, const std::string& id, int rank, const std::string& group) : store_(store) {
    std::vector<std::string> keys = awaited_keys(id, rank);
    keys.push_back(verdict_key(id, rank));
    store_.leave_will(keys, "rank " + std::to_string(rank) + " on host " + host_name() + " ended while group '" +
                                group + "' formed: its own output says why");
  }
  ~LastWill() {
    try {
      store_.leave_will({}, {});
    } catch (const std::exception&) {
      // The store is gone, and nobody can ask it.
    }
  }
  LastWill(const LastWill&) = delete;
  LastWill& operator=(const LastWill&) = delete;

 private:
  TcpStore& store_;
};

// Why a rank cannot join, by a connection of its own to where the group meets, if that is still there.
void tell_at(const GroupId& id, int rank, const std::string& maker, const std::exception& why) noexcept {
  constexpr std::chrono::milliseconds kAMoment(2'000);
  try {
    const auto place = decode_meeting_place(id);
    if (!place) return;
    const auto store = reach(*place, kAMoment, maker);
    tell_failure(*store, kJoinedId, rank, why);
    store->set(arrival_key(rank), "");
  } catch (const std::exception&) {
    // Then the others learn of it at their deadline, or find it gone.
  }
}

// A rank that has reached the place of its group. From here on its end is an error of the others at once.
class Arrived {
 public:
  Arrived(const GroupId& id, const MeetingPlace& place, int rank, const CommunicatorOptions& options,
          const std::string& maker)
      : id_(id),
        place_(place),
        rank_(rank),
        options_(options),
        maker_(maker),
        store_(reach(place, options.timeout, maker)),
        will_(*store_, kJoinedId, rank, options.name) {
    // Of both, so that no two groups prove the same.
    const std::string own = hexadecimal(place.secret);
    std::string& set = options_.config.secret;
    set = set.empty() ? own : hexadecimal(std::as_bytes(std::span(text_of(hmac_sha256(set, own)))));
    options_.config.master_address = place.address;  // what all ranks reach
    store_->set(arrival_key(rank), "");
  }

  std::shared_ptr<Communicator> join(int size) {
    std::shared_ptr<Communicator> group;
    try {
      group = Communicator::create(*store_, kJoinedId, rank_, size, options_);
    } catch (const Error& error) {
      if (store_->is_lost()) tell_at(id_, rank_, maker_, error);  // not by way of what is lost
      throw;
    }
    // A rank that has formed its part may still be read by others: nobody ends what they meet at before all are done.
    group->run(Call{});
    take_offer(place_);
    return group;
  }

 private:
  const GroupId id_;
  const MeetingPlace place_;
  const int rank_;
  CommunicatorOptions options_;
  const std::string maker_;
  const std::unique_ptr<TcpStore> store_;
  const LastWill will_;
};

}  // namespace

GroupId make_group_id(const Config& config, const std::string& address) {
  const auto make = [&] {
    const MeetingPlace place = offer_place(config, address);
    try {
      return encode(place);
    } catch (...) {
      take_offer(place);
      throw;
    }
  };
  return naming_want(make, [] { return std::string("no memory to make the id of a group"); });
}

std::shared_ptr<Communicator> join_group(const GroupId& id, int rank, int size,
                                         const std::function<CommunicatorOptions()>& settings) {
  CommunicatorOptions options;
  std::optional<Offer> offer;
  const auto arrive = [&] {
    if (auto place = decode_meeting_place(id)) offer.emplace(*std::move(place), size, options.timeout);
    check_group(rank, size);
    options = settings();
    const MeetingPlace place = place_of(id, options.name, rank);
    offer->may_take(options.timeout);
    check_group_timeout(options.name, options.timeout);
    return std::make_unique<Arrived>(id, place, rank, options, kMaker);
  };
  const auto want = [&] {
    return "rank " + std::to_string(rank) + " has no memory to join group '" + options.name + "'";
  };
  std::unique_ptr<Arrived> here;
  try {
    here = naming_want(arrive, want);
  } catch (const std::exception& error) {
    tell_at(id, rank, kMaker, error);
    throw;
  }
  return naming_want([&] { return here->join(size); }, want);
}

std::shared_ptr<Communicator> join_group(const GroupId& id, int rank, int size, const CommunicatorOptions& options) {
  return join_group(id, rank, size, [&] { return options; });
}

std::shared_ptr<Communicator> shrink_group(Communicator& group, const GroupId& id, std::chrono::milliseconds timeout,
                                           std::vector<int>* members) {
  check_call_timeout("shrink", timeout);
  const auto shrink = [&] {
    const auto patience = timeout.count() > 0 ? timeout : group.timeout();
    const MeetingPlace place = place_of(id, group.name(), group.rank());
    group.abort("the group is being shrunk");  // whatever fails from here on
    Offer offer(place, group.size(), patience);
    const auto store = reach(offer.place(), patience, kMaker);
    store->set(arrival_key(group.rank()), "");
    std::vector<int> own;
    std::vector<int>& survivors = members != nullptr ? *members : own;
    survivors.clear();
    try {
      auto smaller = group.shrink(*store, kJoinedId, timeout, &survivors);
      smaller->run(Call{}, time_to_form(patience));  // as those that join
      offer.end();
      return smaller;
    } catch (...) {
      if (!survivors.empty()) offer.all_are_there();  // who has not been is not waited for
      throw;
    }
  };
  return naming_want(shrink, [&] {
    return "rank " + std::to_string(group.rank()) + " has no memory to shrink group '" + group.name() + "'";
  });
}

}  // namespace tutti
