// What the ranks of a forming host say to each other, before and behind the proof; and where those meet that have no
// store.
#include <algorithm>

#include "bootstrap/host_protocol.h"
#include "bootstrap/meeting_place.h"
#include "bootstrap/memory_store.h"
#include "fuzz_main.h"

namespace tutti::fuzz {
namespace {

// Decoding and encoding again gives bytes that mean the same, and that are their own encoding.
template <class Value>
void settles(const std::optional<Value>& value, std::optional<Value> (*decode)(std::string_view), const char* what) {
  if (!value) return;
  const std::string once = encode(*value);
  const std::optional<Value> again = decode(once);
  require(again.has_value(), what);
  require(encode(*again) == once, what);
}

// Without the secret no bytes are a message.
void read_sealed(std::string_view bytes) {
  static MemoryStore store;
  static HostGroupRequest request;
  static const std::vector<HostCard> cards(2);
  static Deadline deadline = Deadline::never();
  static const HostContext context{store, request, cards, {0, 1}, 0, deadline, random_secret(), true};
  const HostPair pair(context, 1);
  require(!pair.read_hello(bytes) && !pair.read_welcome(bytes) && !pair.read_verdict(bytes), "no proof, no message");
  require(!pair.read_ack(bytes, Nonce{}), "no proof, no ack");
}

void read_place(std::string_view bytes) {
  MeetingPlaceBytes id{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), id.size()), id.begin());
  const auto place = decode_meeting_place(id);
  require(!place || encode(*place) == id, "a meeting place is what its encoder writes");
}

HostEntry entry() {
  HostEntry e;
  e.rank = 1;
  e.pid = 4321;
  e.has_pidfd = true;
  return e;
}

}  // namespace

void run(std::string_view bytes) {
  settles(decode_card(bytes), decode_card, "a card settles");
  settles(decode_verdict(bytes), decode_verdict, "a verdict settles");
  settles(decode_entry(bytes), decode_entry, "an entry settles");
  const auto welcome = decode_welcome(bytes);
  settles(welcome, decode_welcome, "a welcome settles");
  require(!welcome || welcome->entries.size() <= kEntriesPerBatch, "as many entries as a message has descriptors for");
  claimed_rank(bytes);
  read_sealed(bytes);
  read_place(bytes);
}

std::vector<std::string> seeds() {
  HostVerdict good;
  good.ranks = {0, 1, 5};
  HostVerdict bad;
  bad.failure = "rank 1 died";
  const MeetingPlaceBytes place = encode(MeetingPlace{"node7", 4711, Nonce{}});
  return {std::string(place.begin(), place.end()),
          encode(HostCard{"host", "socket", Nonce{}, 4096, "secret", {{"A", "1", "1"}, {"B", "unset", ""}}}),
          encode(good),
          encode(bad),
          encode(entry()),
          encode(HostWelcome{0, 1, 1 << 20, Nonce{}, {entry(), entry()}})};
}

}  // namespace tutti::fuzz
