// What the ranks of one forming host say to each other, and how each proves that it knows the job's secret.
//
//   member -> leader   Hello    who I am; my arena beside it
//   leader -> member   Welcome  one or more batches, once all have come: segment, pidfds, arenas, a challenge
//   member -> leader   Ack      the challenge answered: the segment is mapped
//   leader -> member   Verdict  who is in; it may come at any time
//
// Each message carries an HMAC over the communicator's id, both ranks and their nonces, the message's name and its
// body. The nonces were exchanged through the store; each rank takes its own from memory, so that nothing of an earlier
// handshake can be replayed.
//
// Thread rule: values of one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/secret.h"
#include "bootstrap/host_group.h"
#include "tutti/error.h"

namespace tutti {

// What all ranks know of each other after the exchange.
struct HostCard {
  std::string hint;
  std::string socket_name;  // where it would listen, were it the leader; empty if it could not
  Nonce nonce{};
  std::uint64_t segment_bytes = 0;  // its request.segment_bytes(size of the communicator), to be compared
  std::string secret;               // made up by rank 0 for ranks that were given none; else empty
  AgreedSettings settings{};
  int rank = 0;           // whose it is: a store may mix up its keys
  std::string machine{};  // where its socket can be reached, whatever the hint says; empty if that is not known
};
std::string encode(const HostCard& card);
std::optional<HostCard> decode_card(std::string_view bytes);

// What a leader or member works on. Borrows everything from form_host_group, which outlives it.
struct HostContext {
  Store& store;
  const HostGroupRequest& request;
  const std::vector<HostCard>& cards;
  std::vector<int> ranks;  // with this rank's hint, ascending
  int leader = -1;
  Deadline& deadline;
  std::string secret;        // in force
  bool whole_world = false;  // no rank has another hint: nobody but `ranks` waits for the verdict

  // For throw_if_interrupted().
  std::string forming() const {
    return "the forming of communicator \"" + request.id + "\" on rank " + std::to_string(request.rank);
  }
  std::int64_t remaining_ms() const noexcept { return deadline.remaining_ns() / 1'000'000; }
};

// "rank 2 on host node7": who it is that speaks.
std::string place_of(const HostContext& context);

// Whether nobody at this rank's socket means that its process has closed it.
bool can_reach(const HostContext& context, int rank);

// Says in the place of a rank that has died what the others may still await of it, as a leader's verdict too: those of
// its host see its death, and no others. Never throws.
void tell_death(Store& store, std::string_view id, int rank, const std::string& text) noexcept;

// Error(kPeerLost): the process of `rank`, of this host, has ended, or what is in `doubt`. Said in its place to the
// ranks that await what it was to give.
[[noreturn]] void throw_member_died(const HostContext& context, int rank, std::string_view doubt = {});

// What the leader found: the ranks that share memory, or the error that all ranks of the communicator raise.
struct HostVerdict {
  std::vector<int> ranks;  // ascending; empty on failure
  ErrorKind kind = ErrorKind::kTimeout;
  std::string failure;

  bool ok() const noexcept { return failure.empty(); }
};
std::string encode(const HostVerdict& verdict);
std::optional<HostVerdict> decode_verdict(std::string_view bytes);
// What the store holds for a leader's verdict can be anybody's: throws Error(kMismatch) for what that leader does not
// say to ranks of other hosts, or to one of its own that has left.
HostVerdict verdict_in_store(const HostContext& context, int leader, std::string_view bytes);
// The verdicts of many leaders in one value.
std::string pack_verdicts(const std::vector<std::string>& verdicts);
std::vector<std::string> unpack_verdicts(const HostContext& context, std::string_view packed, std::size_t count);
[[noreturn]] void throw_forged(const HostContext& context, int leader, std::string_view named);

// One process, as told by the leader to the members. Descriptors travel beside it, where the flags say so.
struct HostEntry {
  int rank = -1;
  int pid = 0;  // in its own PID namespace
  std::uint64_t pid_ns = 0;
  std::uint64_t arena_id = 0;
  std::uint64_t arena_bytes = 0;
  bool has_pidfd = false;
  bool has_arena = false;

  bool same_process(const HostEntry& o) const noexcept { return pid == o.pid && pid_ns == o.pid_ns; }
};
HostEntry own_entry(const HostGroupRequest& request);
std::string encode(const HostEntry& entry);
std::optional<HostEntry> decode_entry(std::string_view body);

struct HostWelcome {
  std::uint32_t batch = 0;
  std::uint32_t batches = 1;
  std::uint64_t segment_bytes = 0;
  Nonce challenge{};
  std::vector<HostEntry> entries;
};
// Two descriptors an entry and the segment fit into one message.
inline constexpr std::size_t kEntriesPerBatch = 120;
std::string encode(const HostWelcome& welcome);
std::optional<HostWelcome> decode_welcome(std::string_view body);

// The proofs of one pair: a member and its leader.
class HostPair {
 public:
  HostPair(const HostContext& context, int member) noexcept : context_(context), member_(member) {}

  std::string hello(const HostEntry& self) const;
  std::string welcome(const HostWelcome& welcome) const;
  std::string ack(const Nonce& challenge) const;
  std::string verdict(const HostVerdict& verdict) const;

  // Nothing if the message is not of that kind, is malformed or its proof is wrong.
  std::optional<HostEntry> read_hello(std::string_view bytes) const;
  std::optional<HostWelcome> read_welcome(std::string_view bytes) const;
  bool read_ack(std::string_view bytes, const Nonce& challenge) const;
  std::optional<HostVerdict> read_verdict(std::string_view bytes) const;

 private:
  Digest proof(std::string_view name, std::string_view body) const;
  std::string sealed(std::string_view name, std::string body) const;
  std::optional<std::string_view> opened(std::string_view name, std::string_view bytes) const;

  const HostContext& context_;
  int member_;
};

// The rank that a Hello claims to come from, before anything is proven; -1 if it cannot be one.
int claimed_rank(std::string_view bytes) noexcept;

// Keys of the store: the leader's verdict; those of many leaders, passed on by rank 0; how many ranks left its host's
// group, and which.
std::string verdict_key(std::string_view id, int leader);
std::string verdicts_key(std::string_view id);
std::string left_count_key(std::string_view id, int leader);
std::string left_key(std::string_view id, int rank);

}  // namespace tutti
