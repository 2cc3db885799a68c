// Groups from an id, and from a parent: both meet at a place that one rank offers.
#include "tutti/group_id.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/process.h"
#include "base/secret.h"
#include "bootstrap/exchange.h"
#include "bootstrap/host_protocol.h"
#include "bootstrap/meeting_place.h"
#include "bootstrap/memory_store.h"
#include "communicator/call_check.h"
#include "communicator/gather_all.h"
#include "transport/tcp/address.h"

namespace tutti {
namespace {

static_assert(kGroupIdBytes == kMeetingPlaceBytes);

// A meeting place has one group.
constexpr const char* kJoinedId = "group";

std::string own_address(const Config& config) {
  const auto route = config.interface.empty() ? tcp::route_to(config.master_address) : std::nullopt;
  return tcp::choose_address(tcp::interface_addresses(), config.interface, route).host();
}

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

// A rank that has reached the place of its group. From here on its end is an error of the others at once.
class Arrived {
 public:
  Arrived(const MeetingPlace& place, int rank, const CommunicatorOptions& options, const std::string& maker)
      : place_(place),
        rank_(rank),
        options_(options),
        store_(reach(place, options.timeout, maker)),
        will_(*store_, kJoinedId, rank, options.name) {
    // Of both, so that no two groups prove the same.
    const std::string own = hexadecimal(place.secret);
    std::string& set = options_.config.secret;
    set = set.empty() ? own : hexadecimal(std::as_bytes(std::span(text_of(hmac_sha256(set, own)))));
    options_.config.master_address = place.address;  // what all ranks reach
  }

  std::shared_ptr<Communicator> join(int size) {
    std::shared_ptr<Communicator> group = Communicator::create(*store_, kJoinedId, rank_, size, options_);
    // A rank that has formed its part may still be read by others: nobody ends what they meet at before all are done.
    group->run(Call{});
    take_offer(place_);
    return group;
  }

 private:
  const MeetingPlace place_;
  const int rank_;
  CommunicatorOptions options_;
  const std::unique_ptr<TcpStore> store_;
  const LastWill will_;
};

// Why a rank comes no further than the place of its group.
void tell_at(const MeetingPlace& place, int rank, const std::string& maker, const Error& why) noexcept {
  constexpr std::chrono::milliseconds kAMoment(2'000);
  try {
    tell_failure(*reach(place, kAMoment, maker), kJoinedId, rank, why);
  } catch (const std::exception&) {
    // Then the others learn of it at their deadline.
  }
}

struct Wish {
  std::int32_t color = -1;
  std::int32_t key = 0;
};

// The ranks of the parent with this rank's color, in the order of their keys; none if it has none.
std::vector<int> members_of(Communicator& parent, int color, int key) {
  const std::vector<Wish> wishes = gather_all(parent, Wish{color, key});
  std::vector<std::tuple<int, int>> keyed;
  for (int r = 0; r < parent.size(); ++r) {
    const Wish& wish = wishes[static_cast<std::size_t>(r)];
    if (color >= 0 && wish.color == color) keyed.emplace_back(wish.key, r);
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<int> members;
  for (const auto& [ignored, r] : keyed) members.push_back(r);
  return members;
}

}  // namespace

GroupId make_group_id(const Config& config, const std::string& address) {
  return encode(offer_meeting_place(address.empty() ? own_address(config) : address));
}

std::shared_ptr<Communicator> join_group(const GroupId& id, int rank, int size, const CommunicatorOptions& options) {
  check_group(rank, size);
  const std::optional<MeetingPlace> place = decode_meeting_place(id);
  if (!place) {
    throw_error(ErrorKind::kInvalidArgument,
                "group '" + options.name + "', rank " + std::to_string(rank) +
                    ": this is no id of a group; carry all " + std::to_string(kGroupIdBytes) +
                    " bytes of the one that its maker got, and use the same version of Tutti everywhere");
  }
  const std::string maker = "the process that made the group's id";
  try {
    check_group_timeout(options.name, options.timeout);
  } catch (const Error& error) {
    tell_at(*place, rank, maker, error);
    throw;
  }
  return Arrived(*place, rank, options, maker).join(size);
}

std::shared_ptr<Communicator> split_group(Communicator& parent, int color, int key, const std::string& name) {
  CommunicatorOptions options = parent.options();
  options.timeout = parent.timeout();
  options.name = name;
  const std::vector<int> members = members_of(parent, color, key);
  const auto size = static_cast<int>(members.size());
  const auto rank = static_cast<int>(std::find(members.begin(), members.end(), parent.rank()) - members.begin());
  // The first of a new group offers its place. One that cannot says so by an empty one: nobody is to wait for it.
  GroupId offered{};
  std::exception_ptr failed;
  const auto attempt = [&](const auto& step) {
    try {
      step();
    } catch (...) {
      failed = std::current_exception();
    }
  };
  // A rank that has failed says so there first, and then raises what has happened to itself, whatever the parent does.
  const auto gather = [&](const auto& own) {
    try {
      return gather_all(parent, own);
    } catch (...) {
      if (failed != nullptr) std::rethrow_exception(failed);
      throw;
    }
  };
  if (size > 1 && rank == 0) attempt([&] { offered = make_group_id(options.config); });
  const std::vector<GroupId> places = gather(offered);
  // All reach their places before anyone goes on: who dies earlier is missed in the parent, who dies later where they
  // meet.
  std::optional<MeetingPlace> place;
  std::optional<Arrived> here;
  if (size > 1) place = decode_meeting_place(places[static_cast<std::size_t>(members.front())]);
  if (place) attempt([&] { here.emplace(*place, rank, options, "rank 0 of group '" + name + "'"); });
  const std::vector<std::int32_t> ready = gather(std::int32_t{failed == nullptr});
  if (failed != nullptr) std::rethrow_exception(failed);
  if (members.empty()) return nullptr;
  for (const int r : members) {
    if (ready[static_cast<std::size_t>(r)] != 0) continue;
    throw_error(ErrorKind::kPeerLost,
                "the split of group '" + parent.name() + "' into '" + name + "': rank " + std::to_string(r) +
                    (place ? " cannot reach the place to meet" : " cannot offer a place to meet") +
                    "; its own error says why");
  }
  if (here) return here->join(size);
  MemoryStore nobody;
  return Communicator::create(nobody, kJoinedId, 0, 1, options);
}

}  // namespace tutti
