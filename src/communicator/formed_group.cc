#include "communicator/formed_group.h"

#include <algorithm>
#include <bit>
#include <set>

#include "base/bytes.h"
#include "base/cross_memory.h"
#include "base/interruption.h"
#include "base/process.h"
#include "bootstrap/exchange.h"
#include "bootstrap/host_group.h"
#include "bootstrap/host_protocol.h"
#include "communicator/group_settings.h"
#include "device/cpu/arena.h"
#include "transport/shm/shm_transport.h"
#include "tutti/error.h"

namespace tutti {
namespace {

// How long a wait polls before the first sleep: longer than the stragglers of a balanced program are late, and than it
// takes to wake the others one after another, so that sleeping does not make the next ones late and sleep; shorter than
// anybody notices who waits for long.
constexpr std::int64_t kSpinNs = 100'000;
constexpr std::int64_t kSpinNsARank = 20'000;
constexpr std::int64_t kMostSpinNs = 2'000'000;
constexpr std::int64_t kMostAskedNs = 100'000'000;  // who polls looks for no deadline, abort, death or signal
// A look at a socket is a system call, and what it waits for comes from afar, by way of the kernel on some core.
constexpr std::int64_t kSpinNetworkNs = 20'000;
// What a poll takes, by which TUTTI_SPINS is a time.
constexpr std::int64_t kPollNs = 25;
// With more ranks than cores every poll takes the core from the rank that is waited for: hand it over at once.
constexpr std::uint32_t kCrowdedYields = 200;

SegmentShape segment_shape(int ranks, const Config& config) {
  SegmentShape shape;
  shape.ranks = ranks;
  // All ranks' areas together stay in the last cache. More than the default gains nothing; less than a megabyte is soon
  // filled again, while the peers' caches still hold it.
  constexpr std::size_t kLeastStage = std::size_t{1} << 20;
  shape.stage_bytes = std::clamp(last_cache_bytes() / static_cast<std::size_t>(ranks), kLeastStage, shape.stage_bytes);
  if (config.stage_bytes != 0) shape.stage_bytes = config.stage_bytes;
  // A ring for each ordered pair: long where there are few, so that its places, too, have left the reader's cache when
  // they are written again.
  constexpr std::size_t kMostRing = std::size_t{2} << 20, kAllRings = std::size_t{8} << 20;
  const std::size_t pairs = static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
  shape.ring_capacity = std::bit_floor(std::clamp(kAllRings / pairs, shape.ring_capacity, kMostRing));
  return shape;
}

WaitPolicy wait_policy(const std::vector<HostMember>& members, const Config& config) {
  WaitPolicy policy;
  std::vector<pid_t> processes;
  for (const HostMember& member : members) processes.push_back(member.pid);
  std::sort(processes.begin(), processes.end());  // ranks may be threads of one
  processes.erase(std::unique(processes.begin(), processes.end()), processes.end());
  const auto ranks_here = static_cast<int>(members.size());
  const int cores = usable_cores(processes);
  // The launcher may have started more ranks here than this communicator has. They share our cores unless it has bound
  // each rank to its own.
  const bool bound = cores > usable_cores();
  policy.crowded = (bound ? ranks_here : std::max(ranks_here, config.local_world_size)) > cores;
  policy.spin_ns = policy.crowded ? 0 : std::min(kSpinNs + kSpinNsARank * ranks_here, kMostSpinNs);
  policy.yields = policy.crowded ? kCrowdedYields : 0;
  policy.reads_memory = config.cross_memory && may_read_cross_memory();
  if (config.spins >= 0) policy.spin_ns = std::min(kPollNs * config.spins, kMostAskedNs);
  return policy;
}

// What the choice of an algorithm follows from, beside the call and the machine, and how shared memory is laid out. The
// number of ranks first: others follow from it.
AgreedSettings agreed_settings(int size, const Config& config, const PlanFiles& plans, const Tuning& tuning) {
  const std::string stage = std::to_string(segment_shape(size, config).stage_bytes);
  return {version_setting(),
          size_setting(size),
          text_setting("TUTTI_ALGORITHM (or Options(algorithm=...), hint tutti.algorithm)", config.algorithm),
          plan_setting(config.plan_path, plans.identity),
          {"TUTTI_STAGE_BYTES", config.stage_bytes == 0 ? stage + " (chosen)" : stage, stage},
          tuning_setting(tuning.path, tuning.identity)};
}

// What freed memory may stay in the processes' arenas is shared by all that are here: those of this group, and those of
// which the launcher tells.
void share_cache(const std::vector<HostMember>& members, const Config& config) {
  Arena* const arena = process_arena();
  if (arena == nullptr) return;
  std::set<int> processes;
  for (const HostMember& member : members) processes.insert(member.pid);
  const int here = std::max(static_cast<int>(processes.size()), config.local_world_size);
  arena->limit_cache(chosen_cache_bytes(usable_memory_bytes(), here));
}

HostGroup find_host(Store& store, const std::string& id, int rank, int size, const CommunicatorOptions& options,
                    const PlanFiles& plans, const Tuning& tuning) {
  HostGroupRequest request;
  request.id = id;
  request.rank = rank;
  request.size = size;
  request.secret = options.config.secret;
  request.host_id = options.config.host_id;
  if (const Arena* arena = process_arena(options.config.arena_bytes); arena != nullptr) {
    request.arena_fd = arena->fd();
    request.arena_id = arena->id();
    request.arena_bytes = arena->bytes();
  }
  request.most_ranks = kMaxHostRanks;
  request.segment_bytes = [&](int n) { return SegmentLayout(segment_shape(n, options.config)).total_bytes(); };
  request.settings = agreed_settings(size, options.config, plans, tuning);
  request.timeout = options.timeout;
  return form_host_group(store, request);
}

// Said in the dead rank's place, too: those of other hosts await what it was to give.
[[noreturn]] void throw_died(Store& store, const std::string& id, int rank, const std::string& text) {
  tell_death(store, id, rank, text);
  throw_error(ErrorKind::kPeerLost, text);
}

// A rank of the host that fails before it has joined says so in the store.
Outcome join_host(HostChannel& host, Store& store, const std::string& id, int rank, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kSlice(500);
  Deadline deadline = Deadline::after(timeout);
  for (;;) {
    const std::chrono::milliseconds left(std::max<std::int64_t>(1, deadline.remaining_ns() / 1'000'000));
    Deadline slice = Deadline::after(std::min(left, kSlice));
    const Outcome outcome = host.join(slice);
    if (outcome.status != Status::kTimeout || deadline.expired()) return outcome;
    throw_if_told(store, id, rank);
  }
}

void add_shm(FormedGroup& formed, int rank, std::size_t ring_capacity) {
  ShmTransportOptions shm;
  shm.index = formed.ranks.place_of(rank);
  shm.rank_of_index = formed.ranks.beside(rank);
  shm.ring_capacity = ring_capacity;
  HostChannel* host = formed.host.get();
  shm.ring_memory = [host](int src, int dst) { return host->ring(src, dst); };
  formed.owned.push_back(std::make_unique<ShmTransport>(std::move(shm)));
  for (const int r : formed.ranks.beside(rank)) {
    formed.transport_of_peer[static_cast<std::size_t>(r)] = formed.owned.back().get();
  }
}

void add_waker(FormedGroup& formed, int rank) {
  formed.waker = std::make_unique<GroupWaker>(formed.host.get(), formed.ranks, rank);
}

// In the place of an address: why a rank has none, which all ranks raise.
constexpr char kNoAddress = '!';

std::string no_address(const Error& error) {
  return {kNoAddress + std::string(1, 'a' + static_cast<char>(error.kind())) + error.what()};
}

void raise_if_none(const std::string& address) {
  if (!address.starts_with(kNoAddress)) return;
  const int kind = address.size() > 1 ? address[1] - 'a' : -1;
  const bool known = kind >= 0 && kind <= static_cast<int>(ErrorKind::kInternal);
  throw KnownToAll(known ? static_cast<ErrorKind>(kind) : ErrorKind::kInternal,
                   address.substr(std::min<std::size_t>(2, address.size())));
}

// Where a rank is reached by each network: empty where it has none of it. Before that, what all hosts must know of each
// other, and the lowest rank of its host, which the others have from the store.
std::string card_of(const FormedGroup& formed, int rank, const std::vector<std::unique_ptr<NetworkTransport>>& made) {
  ByteWriter card;
  card.u8(formed.arenas_mapped ? 1 : 0).u32(static_cast<std::uint32_t>(formed.ranks.beside(rank).front()));
  for (const auto& transport : made) card.text(transport != nullptr ? transport->address() : std::string());
  return std::move(card).str();
}

// Who wrote the store may have said of a rank where it is not.
void check_place(const FormedGroup& formed, int rank, int peer, int first) {
  if (const int known = formed.ranks.beside(peer).front(); known != first) {
    throw_error(ErrorKind::kMismatch,
                "rank " + std::to_string(peer) + " is of the host of rank " + std::to_string(first) +
                    ", and the store has told rank " + std::to_string(rank) + " that it is of that of rank " +
                    std::to_string(known) + ": another group uses the same name in it, or it changes values");
  }
}

// The ranks of other hosts, each by the first network that both have.
void share_out(FormedGroup& formed, int rank, const std::vector<std::string>& cards,
               std::vector<std::unique_ptr<NetworkTransport>> made) {
  std::vector<std::vector<std::string>> addresses(made.size(), std::vector<std::string>(cards.size()));
  for (std::size_t r = 0; r < cards.size(); ++r) {
    raise_if_none(cards[r]);
    ByteReader card(cards[r]);
    if (card.u8() == 0) formed.arenas_mapped = false;
    const auto first = static_cast<int>(card.u32());
    Transport*& of_peer = formed.transport_of_peer[r];
    for (std::size_t n = 0; n < made.size(); ++n) {
      const std::string_view address = card.text();
      if (made[n] == nullptr || address.empty() || of_peer != nullptr || static_cast<int>(r) == rank) continue;
      of_peer = made[n].get();
      addresses[n][r] = address;
    }
    if (!card.ok()) {
      throw_error(ErrorKind::kInternal, "what rank " + std::to_string(r) +
                                            " said of its networks has come in part: use one version on all ranks");
    }
    check_place(formed, rank, static_cast<int>(r), first);
    if (of_peer == nullptr && static_cast<int>(r) != rank) {
      throw_error(ErrorKind::kUnsupported,
                  "ranks " + std::to_string(rank) + " and " + std::to_string(r) +
                      " lie on different hosts and have no network in common; use one build of "
                      "Tutti on all hosts, or run these ranks on one host");
    }
  }
  for (std::size_t n = 0; n < made.size(); ++n) {
    if (made[n] == nullptr) continue;
    made[n]->set_peer_addresses(addresses[n]);
    formed.owned.push_back(std::move(made[n]));
  }
}

void add_networks(FormedGroup& formed, Store& store, int rank, int size, const std::string& secret,
                  const CommunicatorOptions& options, std::span<const Network> networks) {
  NetworkOptions wanted;
  wanted.rank = rank;
  wanted.size = size;
  wanted.communicator = formed.id;
  wanted.secret = secret;
  wanted.interface = options.config.interface;
  wanted.master_address = options.config.master_address;
  wanted.heartbeat = options.config.heartbeat;
  wanted.logger = Logger(parse_log_level(options.config.log_level), rank);
  std::vector<std::unique_ptr<NetworkTransport>> made;
  try {
    add_waker(formed, rank);  // before the exchange: what may be missing is missing here
    for (const Network& network : networks) made.push_back(network.create(wanted));
  } catch (const Error& e) {
    const KnownToAll told(e.kind(), "group '" + options.name + "' cannot form, for rank " + std::to_string(rank) +
                                        " on host " + host_name() + " cannot make connections: " + e.what());
    give(store, formed.id, kNetworkTopic, rank, size, no_address(told));
    throw told;
  }
  // A rank that dies now is seen by those of its host only: the others hear it of them.
  const auto watch = [&] {
    for (const int dead : formed.ranks.beside(rank)) {
      if (formed.host == nullptr || !formed.host->died(formed.ranks.place_of(dead))) continue;
      throw_died(store, formed.id, dead,
                 "rank " + std::to_string(dead) + " died while group '" + options.name + "' was forming");
    }
  };
  const std::vector<std::string> cards =
      exchange(store, formed.id, kNetworkTopic, rank, size, card_of(formed, rank, made), options.timeout, watch);
  share_out(formed, rank, cards, std::move(made));
}

}  // namespace

FormedGroup form_group(Store& store, const std::string& id, int rank, int size, const CommunicatorOptions& options,
                       const PlanFiles& plans, const Tuning& tuning, std::span<const Network> networks) {
  FormedGroup formed;
  formed.id = id;
  formed.transport_of_peer.assign(static_cast<std::size_t>(size), nullptr);
  PeerProcesses::instance();  // raises the limit on descriptors
  if (size == 1) {
    add_waker(formed, rank);
    return formed;
  }
  HostGroup group = find_host(store, id, rank, size, options, plans, tuning);
  const std::string secret = group.secret;
  if (!group.alone_because.empty()) {
    Logger(parse_log_level(options.config.log_level), rank)
        .warning("group '" + options.name + "': rank " + std::to_string(rank) + " on host " + host_name() +
                 " shares no memory with other ranks there and talks to them over TCP, which is slower: " +
                 group.alone_because);
  }
  formed.differences = group.differences;
  formed.ranks = RankMap(group.host_of);
  const auto here = static_cast<int>(formed.ranks.beside(rank).size());
  share_cache(group.members, options.config);
  const WaitPolicy policy = wait_policy(group.members, options.config);
  formed.spin_ns = policy.spin_ns;
  if (!formed.ranks.one_host() && options.config.spins < 0) formed.spin_ns = std::min(policy.spin_ns, kSpinNetworkNs);
  if (here > 1) {
    // Made before the last rank had mapped it: one that could not has left, and its part is not used.
    SegmentShape shape = segment_shape(group.segment_ranks, options.config);
    if (const std::size_t bytes = SegmentLayout(shape).total_bytes(); group.segment_bytes != bytes) {
      throw_error(ErrorKind::kInvalidArgument, "the host segment has " + std::to_string(group.segment_bytes) +
                                                   " bytes where rank " + std::to_string(rank) + " expects " +
                                                   std::to_string(bytes) +
                                                   ": TUTTI_STAGE_BYTES must be the same on all ranks");
    }
    shape.ranks = here;
    const SegmentLayout layout(shape);
    formed.host = std::make_unique<HostChannel>(std::move(group), layout, policy);
    if (const Outcome outcome = join_host(*formed.host, store, id, rank, options.timeout); !outcome.ok()) {
      throw_if_interrupted("the forming of group '" + options.name + "' on rank " + std::to_string(rank));
      const int blamed = formed.ranks.beside(rank)[static_cast<std::size_t>(std::max(0, outcome.peer))];
      const std::string text =
          "rank " + std::to_string(blamed) + " did not finish joining group '" + options.name + "'";
      if (outcome.status == Status::kPeerLost) throw_died(store, id, blamed, text);
      throw_error(outcome.status == Status::kTimeout ? ErrorKind::kTimeout : ErrorKind::kPeerLost, text);
    }
    formed.arenas_mapped = formed.host->arenas_mapped();
    add_shm(formed, rank, layout.shape().ring_capacity);
  }
  if (here == 1) formed.arenas_mapped = process_arena() != nullptr;
  if (!formed.ranks.one_host()) {
    try {
      add_networks(formed, store, rank, size, secret, options, networks);
    } catch (const std::exception& error) {
      // Ranks of this host may have all addresses, and wait for this one in a call.
      if (formed.host != nullptr) formed.host->report({Status::kAborted, rank}, 0, error.what());
      throw;
    }
  }
  if (formed.waker == nullptr) add_waker(formed, rank);  // all ranks are here: it takes nothing
  return formed;
}

}  // namespace tutti
