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

std::shared_ptr<Communicator> join_at(const MeetingPlace& place, int rank, int size, CommunicatorOptions options) {
  // Of both, so that no two groups prove the same.
  const std::string own = hexadecimal(place.secret);
  const std::string& set = options.config.secret;
  options.config.secret = set.empty() ? own : hexadecimal(std::as_bytes(std::span(text_of(hmac_sha256(set, own)))));
  options.config.master_address = place.address;  // what all ranks reach
  const std::unique_ptr<TcpStore> store = reach(place, options.timeout);
  const LastWill will(*store, kJoinedId, rank, options.name);
  std::shared_ptr<Communicator> group = Communicator::create(*store, kJoinedId, rank, size, options);
  // A rank that has formed its part may still be read by others: nobody ends what they meet at before all are done.
  group->run(Call{});
  take_offer(place);
  return group;
}

// One block of every rank, in rank order.
template <class Block>
std::vector<Block> gather_all(Communicator& group, const Block& own) {
  std::vector<Block> all(static_cast<std::size_t>(group.size()));
  Call call;
  call.collective = Collective::kAllGather;
  call.count = sizeof(Block);
  call.input = Blocks::single(&own, sizeof(Block));
  call.output = Blocks::single(all.data(), sizeof(Block));
  group.run(call);
  return all;
}

struct Wish {
  std::int32_t color = -1;
  std::int32_t key = 0;
};

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
  return join_at(*place, rank, size, options);
}

std::shared_ptr<Communicator> split_group(Communicator& parent, int color, int key, const std::string& name) {
  CommunicatorOptions options = parent.options();
  options.timeout = parent.timeout();
  options.name = name;
  const std::vector<Wish> wishes = gather_all(parent, Wish{color, key});
  std::vector<std::tuple<int, int>> members;  // key and rank of those with this rank's color
  for (int r = 0; r < parent.size(); ++r) {
    const Wish& wish = wishes[static_cast<std::size_t>(r)];
    if (color >= 0 && wish.color == color) members.emplace_back(wish.key, r);
  }
  std::sort(members.begin(), members.end());
  const int first = members.empty() ? -1 : std::get<1>(members.front());
  // The first of a new group offers its place. One that cannot says so by an empty one: nobody is to wait for it.
  GroupId offered{};
  std::exception_ptr failed;
  if (first == parent.rank() && members.size() > 1) {
    try {
      offered = make_group_id(options.config);
    } catch (const std::exception&) {
      failed = std::current_exception();
    }
  }
  const std::vector<GroupId> places = gather_all(parent, offered);
  if (failed != nullptr) std::rethrow_exception(failed);
  if (members.empty()) return nullptr;
  const auto own = std::find(members.begin(), members.end(), std::tuple(key, parent.rank()));
  const int rank = static_cast<int>(own - members.begin());
  const int size = static_cast<int>(members.size());
  if (size == 1) {
    MemoryStore nobody;
    return Communicator::create(nobody, kJoinedId, 0, 1, options);
  }
  const std::optional<MeetingPlace> place = decode_meeting_place(places[static_cast<std::size_t>(first)]);
  if (!place) {
    throw_error(ErrorKind::kPeerLost, "the split of group '" + parent.name() + "' into '" + options.name + "': rank " +
                                          std::to_string(first) +
                                          " cannot offer a place to meet; its own error says why");
  }
  return join_at(*place, rank, size, options);
}

}  // namespace tutti
