#include "bootstrap/host_protocol.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>

#include "base/bytes.h"
#include "base/process.h"
#include "bootstrap/exchange.h"
#include "net/local_socket.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::uint32_t kCardVersion = 0x54430004;  // "TC" and a number: ranks of other versions are refused
constexpr std::string_view kHello = "hello";
constexpr std::string_view kWelcome = "welcome";
constexpr std::string_view kAck = "ack";
constexpr std::string_view kVerdict = "verdict";
constexpr std::uint8_t kHasPidfd = 1;
constexpr std::uint8_t kHasArena = 2;

void write_entry(ByteWriter& out, const HostEntry& e) {
  const unsigned flags = (e.has_pidfd ? kHasPidfd : 0u) | (e.has_arena ? kHasArena : 0u);
  out.u32(static_cast<std::uint32_t>(e.rank)).u32(static_cast<std::uint32_t>(e.pid)).u64(e.pid_ns);
  out.u64(e.arena_id).u64(e.arena_bytes).u8(static_cast<std::uint8_t>(flags));
}

HostEntry read_entry(ByteReader& in) noexcept {
  HostEntry e;
  e.rank = static_cast<int>(in.u32());
  e.pid = static_cast<int>(in.u32());
  e.pid_ns = in.u64();
  e.arena_id = in.u64();
  e.arena_bytes = in.u64();
  const std::uint8_t flags = in.u8();
  e.has_pidfd = (flags & kHasPidfd) != 0;
  e.has_arena = (flags & kHasArena) != 0;
  return e;
}

// What keeps this from being the list that a leader gives to ranks of other hosts, which share no memory with it, or to
// those of its own that have left: itself, and else ranks of its host alone, ascending. Empty if it is one.
std::string wrong_with(const HostContext& context, int leader, const std::vector<int>& ranks) {
  if (ranks.empty()) return "nobody";
  const std::string& hint = context.cards[static_cast<std::size_t>(leader)].hint;
  for (const int r : ranks) {
    const std::string name = "rank " + std::to_string(r);
    if (r < 0 || r >= context.request.size) return name + ", which does not exist";
    if (r == context.request.rank) return name + ", which knows nothing of it";
    if (context.cards[static_cast<std::size_t>(r)].hint != hint) return name + ", which is of another host";
  }
  if (std::ranges::adjacent_find(ranks, std::ranges::greater_equal{}) != ranks.end()) return "a list in no order";
  return std::ranges::binary_search(ranks, leader) ? "" : "others, and not that rank itself";
}

}  // namespace

std::string encode(const HostCard& card) {
  ByteWriter out;
  out.u32(kCardVersion).text(card.hint).text(card.socket_name).digest(card.nonce);
  out.u32(static_cast<std::uint32_t>(card.rank));
  out.u64(card.segment_bytes).text(card.secret);
  write_settings(out, card.settings);
  out.text(card.machine);
  return std::move(out).str();
}

std::optional<HostCard> decode_card(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.u32() != kCardVersion) return std::nullopt;
  HostCard card;
  card.hint = in.text();
  card.socket_name = in.text();
  card.nonce = in.digest();
  card.rank = static_cast<int>(in.u32());
  card.segment_bytes = in.u64();
  card.secret = in.text();
  card.settings = read_settings(in);
  card.machine = in.text();
  if (!in.done()) return std::nullopt;
  return card;
}

bool can_reach(const HostContext& context, int rank) {
  const HostCard& theirs = context.cards[static_cast<std::size_t>(rank)];
  const HostCard& own = context.cards[static_cast<std::size_t>(context.request.rank)];
  return !theirs.socket_name.empty() && !theirs.machine.empty() && theirs.machine == own.machine;
}

void tell_death(Store& store, std::string_view id, int rank, const std::string& text) noexcept {
  give_reason(store, id, rank, text);
  try {
    store.set(verdict_key(id, rank), encode(HostVerdict{{}, ErrorKind::kPeerLost, text}));
  } catch (const std::exception&) {
    // Then those of other hosts learn of it at their deadline.
  }
}

void throw_member_died(const HostContext& context, int rank, std::string_view doubt) {
  const std::string text =
      name_ranks({rank}) + " died while communicator \"" + context.request.id + "\" was forming" + std::string(doubt);
  tell_death(context.store, context.request.id, rank, text);
  throw KnownToAll(ErrorKind::kPeerLost, text);
}

std::string encode(const HostVerdict& verdict) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(verdict.kind)).text(verdict.failure);
  out.u32(static_cast<std::uint32_t>(verdict.ranks.size()));
  for (const int r : verdict.ranks) out.u32(static_cast<std::uint32_t>(r));
  return std::move(out).str();
}

std::optional<HostVerdict> decode_verdict(std::string_view bytes) {
  ByteReader in(bytes);
  HostVerdict verdict;
  const std::uint8_t kind = in.u8();
  if (kind > static_cast<std::uint8_t>(ErrorKind::kInternal)) return std::nullopt;
  verdict.kind = static_cast<ErrorKind>(kind);
  verdict.failure = in.text();
  const std::uint32_t count = in.u32();
  if (count > in.left() / 4) return std::nullopt;
  for (std::uint32_t i = 0; i < count; ++i) verdict.ranks.push_back(static_cast<int>(in.u32()));
  if (!in.done()) return std::nullopt;
  return verdict;
}

void throw_forged(const HostContext& context, int leader, std::string_view named) {
  throw_error(ErrorKind::kMismatch, "as the ranks that share memory with rank " + std::to_string(leader) +
                                        " the store gives " + std::string(named) + " (communicator \"" +
                                        context.request.id +
                                        "\"): another group uses the same name in it, or it changes values");
}

HostVerdict verdict_in_store(const HostContext& context, int leader, std::string_view bytes) {
  const std::optional<HostVerdict> verdict = decode_verdict(bytes);
  if (!verdict) throw_forged(context, leader, "what is no list");
  if (!verdict->ok()) return *verdict;
  const std::string wrong = wrong_with(context, leader, verdict->ranks);
  if (!wrong.empty()) throw_forged(context, leader, wrong);
  return *verdict;
}

std::string pack_verdicts(const std::vector<std::string>& verdicts) {
  ByteWriter out;
  for (const std::string& verdict : verdicts) out.text(verdict);
  return std::move(out).str();
}

std::vector<std::string> unpack_verdicts(const HostContext& context, std::string_view packed, std::size_t count) {
  ByteReader in(packed);
  std::vector<std::string> verdicts;
  for (std::size_t i = 0; i < count; ++i) verdicts.emplace_back(in.text());
  if (!in.done()) throw_forged(context, 0, "and with other leaders what is no list of lists");
  return verdicts;
}

std::string place_of(const HostContext& context) {
  return "rank " + std::to_string(context.request.rank) + " on host " + host_name();
}

HostEntry own_entry(const HostGroupRequest& request) {
  HostEntry e;
  e.rank = request.rank;
  e.pid = static_cast<int>(::getpid());
  e.pid_ns = pid_namespace();
  e.has_arena = request.arena_fd >= 0;
  e.arena_id = e.has_arena ? request.arena_id : 0;
  e.arena_bytes = e.has_arena ? request.arena_bytes : 0;
  return e;
}

std::string encode(const HostEntry& entry) {
  ByteWriter out;
  write_entry(out, entry);
  return std::move(out).str();
}

std::optional<HostEntry> decode_entry(std::string_view body) {
  ByteReader in(body);
  const HostEntry entry = read_entry(in);
  if (!in.done()) return std::nullopt;
  return entry;
}

std::string encode(const HostWelcome& welcome) {
  ByteWriter out;
  out.u32(welcome.batch).u32(welcome.batches).u64(welcome.segment_bytes).digest(welcome.challenge);
  out.u32(static_cast<std::uint32_t>(welcome.entries.size()));
  for (const HostEntry& e : welcome.entries) write_entry(out, e);
  return std::move(out).str();
}

std::optional<HostWelcome> decode_welcome(std::string_view body) {
  ByteReader in(body);
  HostWelcome welcome;
  welcome.batch = in.u32();
  welcome.batches = in.u32();
  welcome.segment_bytes = in.u64();
  welcome.challenge = in.digest();
  const std::uint32_t count = in.u32();
  if (count > kEntriesPerBatch) return std::nullopt;
  for (std::uint32_t i = 0; i < count; ++i) welcome.entries.push_back(read_entry(in));
  if (!in.done()) return std::nullopt;
  return welcome;
}

Digest HostPair::proof(std::string_view name, std::string_view body) const {
  const HostGroupRequest& request = context_.request;
  const std::string ranks = std::to_string(context_.leader) + " " + std::to_string(member_);
  const auto& cards = context_.cards;
  const std::array<std::string_view, 7> parts = {"tutti host",
                                                 request.id,
                                                 ranks,
                                                 text_of(cards[static_cast<std::size_t>(context_.leader)].nonce),
                                                 text_of(cards[static_cast<std::size_t>(member_)].nonce),
                                                 name,
                                                 body};
  return hmac(context_.secret, parts);
}

std::string HostPair::sealed(std::string_view name, std::string body) const {
  const Digest digest = proof(name, body);
  body += text_of(digest);
  return body;
}

std::optional<std::string_view> HostPair::opened(std::string_view name, std::string_view bytes) const {
  if (bytes.size() < sizeof(Digest)) return std::nullopt;
  const std::string_view body = bytes.substr(0, bytes.size() - sizeof(Digest));
  const Digest digest = ByteReader(bytes.substr(body.size())).digest();
  if (!equal(digest, proof(name, body))) return std::nullopt;
  return body;
}

std::string HostPair::hello(const HostEntry& self) const { return sealed(kHello, encode(self)); }

int claimed_rank(std::string_view bytes) noexcept {
  ByteReader in(bytes);
  const HostEntry entry = read_entry(in);
  return in.ok() && in.left() == sizeof(Digest) ? entry.rank : -1;
}

std::optional<HostEntry> HostPair::read_hello(std::string_view bytes) const {
  const auto body = opened(kHello, bytes);
  std::optional<HostEntry> entry = body ? decode_entry(*body) : std::nullopt;
  return entry && entry->rank == member_ ? entry : std::nullopt;
}

std::string HostPair::welcome(const HostWelcome& welcome) const { return sealed(kWelcome, encode(welcome)); }

std::optional<HostWelcome> HostPair::read_welcome(std::string_view bytes) const {
  const auto body = opened(kWelcome, bytes);
  return body ? decode_welcome(*body) : std::nullopt;
}

std::string HostPair::ack(const Nonce& challenge) const { return sealed(kAck, std::string(text_of(challenge))); }

bool HostPair::read_ack(std::string_view bytes, const Nonce& challenge) const {
  const auto body = opened(kAck, bytes);
  return body && *body == text_of(challenge);
}

std::string HostPair::verdict(const HostVerdict& verdict) const { return sealed(kVerdict, encode(verdict)); }

std::optional<HostVerdict> HostPair::read_verdict(std::string_view bytes) const {
  const auto body = opened(kVerdict, bytes);
  return body ? decode_verdict(*body) : std::nullopt;
}

std::string verdict_key(std::string_view id, int leader) {
  return store_key(id, "host verdict", std::to_string(leader));
}
std::string verdicts_key(std::string_view id) { return store_key(id, "host verdicts"); }
std::string left_count_key(std::string_view id, int leader) {
  return store_key(id, "host left", std::to_string(leader));
}
std::string left_key(std::string_view id, int rank) { return store_key(id, "left rank", std::to_string(rank)); }

}  // namespace tutti
