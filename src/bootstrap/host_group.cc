#include "bootstrap/host_group.h"

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/interruption.h"
#include "base/process.h"
#include "bootstrap/exchange.h"
#include "bootstrap/host_joiner.h"
#include "bootstrap/host_leader.h"
#include "bootstrap/host_protocol.h"
#include "tutti/error.h"

namespace tutti {
namespace {

// A chosen name cannot equal a found one.
std::string hint_of(const HostGroupRequest& request) {
  return request.host_id.empty() ? "found:" + host_hint() : "chosen:" + request.host_id;
}

void make_alone(const HostGroupRequest& request, HostGroup& group) {
  const HostEntry self = own_entry(request);
  group.members.clear();
  HostMember& member = group.members.emplace_back();
  member.rank = request.rank;
  member.pid = self.pid;
  member.process = {self.pid_ns, self.pid};
  member.arena_id = self.arena_id;
  member.arena_bytes = self.arena_bytes;
  group.index = 0;
  group.segment.reset();
  group.segment_bytes = 0;
  group.segment_ranks = 1;
}

// Every rank finds the same.
void require_room_for(const std::vector<int>& ranks, const HostGroupRequest& request) {
  if (ranks.size() <= static_cast<std::size_t>(request.most_ranks)) return;
  throw KnownToAll(ErrorKind::kUnsupported, "communicator \"" + request.id +
                                                "\" cannot form: " + std::to_string(ranks.size()) +
                                                " of its ranks are on one host (rank " + std::to_string(ranks.front()) +
                                                " is the first), and at most " + std::to_string(request.most_ranks) +
                                                " can share a host's memory. Give them several names by TUTTI_HOST_ID");
}

std::vector<HostCard> exchange_cards(Store& store, const HostGroupRequest& request, const HostCard& own,
                                     HostGroup& group) {
  const std::vector<std::string> blobs =
      exchange(store, request.id, kHostTopic, request.rank, request.size, encode(own), request.timeout);
  if (const auto& back = blobs[static_cast<std::size_t>(request.rank)]; back != encode(own)) {
    throw_error(ErrorKind::kMismatch, "the store does not give back what rank " + std::to_string(request.rank) +
                                          " put there for communicator \"" + request.id +
                                          "\": another group uses the same name in it, or it changes values");
  }
  std::vector<HostCard> cards;
  std::vector<AgreedSettings> settings;
  std::vector<int> different;
  for (std::size_t r = 0; r < blobs.size(); ++r) {
    const std::optional<HostCard> card = decode_card(blobs[r]);
    if (!card) {
      throw KnownToAll(ErrorKind::kMismatch, "rank " + std::to_string(r) +
                                                 " speaks another version of Tutti than rank " +
                                                 std::to_string(request.rank) + ": install one version everywhere");
    }
    if (card->rank != static_cast<int>(r)) {
      throw_error(ErrorKind::kMismatch, "the store gives what rank " + std::to_string(card->rank) +
                                            " put there for what rank " + std::to_string(r) +
                                            " did: it mixes up its keys");
    }
    cards.push_back(*card);
    settings.push_back(card->settings);
    if (card->segment_bytes != cards.front().segment_bytes) different.push_back(static_cast<int>(r));
  }
  group.differences = compare_settings(request.id, settings);
  if (!different.empty()) {
    throw KnownToAll(ErrorKind::kMismatch, name_ranks(different) +
                                               " would lay out shared memory differently than rank 0: "
                                               "give all ranks the same TUTTI_* settings");
  }
  return cards;
}

// A rank that fails here may be the leader of ranks that have all cards: they await its verdict, and nothing else of it
// any more. That holds for what others have told, too: a card that was read may be replaced by why its rank cannot
// join.
std::vector<HostCard> cards_of_all(Store& store, const HostGroupRequest& request, const HostCard& own,
                                   HostGroup& group) {
  try {
    return exchange_cards(store, request, own, group);
  } catch (const std::exception& error) {
    if (waits_in_fork()) throw;
    try {
      const auto* const known = dynamic_cast<const KnownToAll*>(&error);
      HostVerdict verdict;
      verdict.kind = known != nullptr ? known->kind() : ErrorKind::kPeerLost;
      verdict.failure = known != nullptr ? "" : "rank " + std::to_string(request.rank) + " cannot join the group: ";
      verdict.failure += error.what();
      store.set(verdict_key(request.id, request.rank), encode(verdict));
    } catch (const std::exception&) {
      // Then they learn of it at their deadline.
    }
    throw;
  }
}

// The lowest rank of the hint that could open a socket; -1 if none could, or if the rank is alone.
int leader_of(const std::vector<int>& ranks, const std::vector<HostCard>& cards) {
  if (ranks.size() == 1) return -1;
  for (const int r : ranks) {
    if (!cards[static_cast<std::size_t>(r)].socket_name.empty()) return r;
  }
  return -1;
}

// The given secret, else rank 0's. Where rank 0 was given one and this rank was not, one that nobody else has: an empty
// one would be known to every stranger.
std::string secret_of(const HostGroupRequest& request, const std::vector<HostCard>& cards) {
  if (!request.secret.empty()) return request.secret;
  return cards.front().secret.empty() ? random_secret() : cards.front().secret;
}

// What a host's leader found goes into host_of; an error that it found is raised here, by every rank.
void apply(const HostVerdict& verdict, HostGroup& group) {
  if (!verdict.ok()) throw KnownToAll(verdict.kind, verdict.failure);
  for (const int r : verdict.ranks) {
    if (r < 0 || static_cast<std::size_t>(r) >= group.host_of.size()) {
      throw_error(ErrorKind::kInternal, "a host's leader names rank " + std::to_string(r) + ", which does not exist");
    }
    group.host_of[static_cast<std::size_t>(r)] = verdict.ranks.front();
  }
}

// The leaders whose verdict the store does not have; else who passes them on, or all.
std::vector<int> silent(const HostContext& context, const std::vector<int>& leaders, bool passed_on) {
  std::vector<int> ranks;
  for (const int leader : leaders) {
    try {
      context.store.get(verdict_key(context.request.id, leader), std::chrono::milliseconds(1));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kTimeout) throw;
      ranks.push_back(leader);
    }
  }
  if (ranks.empty()) return passed_on ? std::vector<int>{0} : leaders;
  return ranks;
}

// A rank that has lost its leader's answer is counted in all the same, and the others wait for it.
void throw_if_counted(const HostContext& context, const HostJoiner& own, std::string_view blob) {
  if (!own.is_counted()) return;
  const std::optional<HostVerdict> verdict = decode_verdict(blob);
  const std::string self = "rank " + std::to_string(context.request.rank);
  if (!verdict || std::ranges::find(verdict->ranks, context.request.rank) == verdict->ranks.end()) return;
  const std::string why = own.end_error() != 0 ? ": " + describe_errno(own.end_error()) : "";
  throw_error(ErrorKind::kPeerLost, "rank " + std::to_string(context.leader) + " of the same host has counted " + self +
                                        " in, and its connection to " + self + " ended before it said so" + why +
                                        " (communicator \"" + context.request.id + "\")");
}

// Who waits for rank 0, and is of its host, sees it die; the others hear it of that.
void throw_if_first_died(const HostContext& context, const HostGroup& group) {
  const HostMember& first = group.members.front();
  if (first.rank != 0 || context.request.rank == 0 || !first.pidfd || !pidfd_ended(first.pidfd.get())) return;
  throw_member_died(context, 0);
}

// What the store holds under these keys. `own`: while this rank's own leader, which it has reached, is awaited; its
// death is noticed.
std::vector<std::string> wait_for(const HostContext& context, const std::vector<std::string>& keys,
                                  const std::vector<int>& leaders, bool passed_on, const HostJoiner* own,
                                  const HostGroup& group) {
  constexpr std::int64_t kSliceMs = 500;
  for (;;) {
    const std::int64_t left_ms = std::max<std::int64_t>(1, context.remaining_ms());
    try {
      return context.store.multi_get(keys, std::chrono::milliseconds(std::min(left_ms, kSliceMs)));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kTimeout) throw;
      if (context.deadline.expired()) {
        throw_error(ErrorKind::kTimeout, "rank " + std::to_string(context.request.rank) + " waited " +
                                             std::to_string(context.request.timeout.count()) + " ms for " +
                                             name_ranks(silent(context, leaders, passed_on)) +
                                             " to say which ranks share memory (communicator \"" + context.request.id +
                                             "\")");
      }
      if (own != nullptr && own->leader_pidfd() >= 0 && pidfd_ended(own->leader_pidfd())) {
        throw_member_died(context, context.leader);
      }
      if (passed_on) throw_if_first_died(context, group);
      throw_if_told(context.store, context.request.id, context.request.rank);
    }
  }
}

// The verdicts of these leaders, from the store. `heard`: of this rank's own, if it has come; `own`: by whom it has
// not. Of more than kMostDirect rank 0 reads them, and passes them on in one value.
void fetch_verdicts(const HostContext& context, const std::vector<int>& leaders, const HostVerdict* heard,
                    const HostJoiner* own, HostGroup& group) {
  const bool first_reads = leaders.size() > static_cast<std::size_t>(kMostDirect);
  const bool passed_on = first_reads && context.request.rank != 0;
  std::vector<std::string> keys;
  for (const int l : leaders) {
    if (heard == nullptr || l != context.leader) keys.push_back(verdict_key(context.request.id, l));
  }
  if (keys.empty()) return;
  if (passed_on) keys = {verdicts_key(context.request.id)};
  std::vector<std::string> blobs = wait_for(context, keys, leaders, passed_on, own, group);
  if (passed_on) {
    blobs = unpack_verdicts(context, blobs.front(), leaders.size());
  } else if (heard != nullptr) {
    const auto at = std::ranges::find(leaders, context.leader) - leaders.begin();
    blobs.insert(blobs.begin() + at, encode(*heard));
  }
  if (first_reads && !passed_on) context.store.set(verdicts_key(context.request.id), pack_verdicts(blobs));
  for (std::size_t i = 0; i < leaders.size(); ++i) {
    if (heard != nullptr && leaders[i] == context.leader) continue;
    if (own != nullptr && leaders[i] == context.leader) throw_if_counted(context, *own, blobs[i]);
    apply(verdict_in_store(context, leaders[i], blobs[i]), group);
  }
}

}  // namespace

HostGroup form_host_group(Store& store, const HostGroupRequest& request) {
  HostGroup group;
  for (int r = 0; r < request.size; ++r) group.host_of.push_back(r);
  make_alone(request, group);
  if (request.size == 1) {
    group.secret = request.secret.empty() ? random_secret() : request.secret;
    return group;
  }

  Deadline deadline = Deadline::after(request.timeout);
  deadline.remaining_ns();  // the clock starts here
  // Every rank listens before the exchange, since only after it is known who leads: so nobody has to ask again.
  // The socket's name is 128 bits of chance: no stranger listens there first.
  HostCard own{hint_of(request),
               "tutti-" + random_secret().substr(0, 32),
               random_nonce(),
               request.segment_bytes(request.size),
               {},
               request.settings,
               request.rank,
               machine_id()};
  if (request.rank == 0 && request.secret.empty()) own.secret = random_secret();
  UnforkedFd listener = UnforkedFd::opened_by([&] { return listen_local(own.socket_name); });
  const int listen_error = listener ? 0 : errno;
  if (!listener) own.socket_name.clear();
  const std::vector<HostCard> cards = cards_of_all(store, request, own, group);

  group.secret = secret_of(request, cards);

  std::map<std::string_view, std::vector<int>> hosts;
  for (int r = 0; r < request.size; ++r) hosts[cards[static_cast<std::size_t>(r)].hint].push_back(r);
  std::vector<int> leaders;  // of hosts of several ranks
  for (const auto& [hint, ranks] : hosts) {
    require_room_for(ranks, request);
    if (const int leader = leader_of(ranks, cards); leader >= 0) leaders.push_back(leader);
  }
  const std::vector<int>& mine = hosts[own.hint];
  const HostContext context{store,        request,          cards, mine, leader_of(mine, cards), deadline,
                            group.secret, hosts.size() == 1};

  std::optional<HostVerdict> verdict;
  std::optional<HostJoiner> joiner;  // lives until the verdicts are in: it holds the leader's pidfd
  if (context.leader == request.rank) {
    verdict = HostLeader(context, std::move(listener)).run(group);
  } else {
    if (context.leader >= 0) verdict = joiner.emplace(context, std::move(listener)).run(group);
    listener.reset();
    if (joiner) group.alone_because = joiner->wanting();
    if (context.leader < 0 && mine.size() > 1 && listen_error != 0) {
      group.alone_because = "no rank of this host can listen on a Unix socket: " + describe_errno(listen_error);
    }
  }
  if (verdict) apply(*verdict, group);
  if (hosts.size() > 1 || !verdict) {
    fetch_verdicts(context, leaders, verdict ? &*verdict : nullptr, !verdict && joiner ? &*joiner : nullptr, group);
  }
  return group;
}

}  // namespace tutti
