#include "bootstrap/exchange.h"

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "base/interruption.h"
#include "bootstrap/look.h"
#include "bootstrap/tcp_store_protocol.h"
#include "tutti/error.h"

namespace tutti {
namespace {

// Begins the reason of a rank that cannot join; no blob does.
constexpr std::string_view kFailed("\0tutti cannot join\0", 19);

// The ranks whose key is not there. A look costs a round trip and 1 ms, so it ends after the first few.
std::vector<int> absent_ranks(Store& store, const std::vector<std::string>& keys) {
  constexpr std::size_t kMost = 16;
  std::vector<int> absent;
  for (std::size_t r = 0; r < keys.size() && absent.size() < kMost; ++r) {
    try {
      store.get(keys[r], std::chrono::milliseconds(1));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kTimeout) throw;
      absent.push_back(static_cast<int>(r));
    }
  }
  return absent;
}

// Who was turned away may be one of those that are missing; only the job's own store, if it is Tutti's, knows.
std::string refused_hosts(Store& store) {
  try {
    return "; the job's store has refused connections that have another secret, from " +
           store.get(kRefusedKey, std::chrono::milliseconds(1)) + ": give all ranks the same TUTTI_SECRET";
  } catch (const KnownToAll&) {  // a death, which says more than who is missing
    throw;
  } catch (const Error&) {  // also of a store that is gone by now: who is missing is known, and says more
    return {};
  }
}

// What rank 0 passes on. No rank's key: those end in numbers.
std::string all_key(std::string_view id, std::string_view topic) { return store_key(id, topic, "all"); }

std::string pack(const std::vector<std::string>& blobs) {
  ByteWriter out;
  for (const std::string& blob : blobs) out.text(blob);
  return std::move(out).str();
}

[[noreturn]] void throw_told(int teller, int rank, std::string_view failed) {
  throw Told(ErrorKind::kPeerLost, "rank " + std::to_string(teller) + " cannot join the group of rank " +
                                       std::to_string(rank) + ": " + std::string(failed.substr(kFailed.size())) +
                                       ". The store keeps this: to form the group again, take another name");
}

std::vector<std::string> unpack(std::string_view packed, int rank, int size) {
  if (packed.starts_with(kFailed)) throw_told(0, rank, packed);
  ByteReader in(packed);
  std::vector<std::string> blobs;
  for (int r = 0; r < size; ++r) blobs.emplace_back(in.text());
  if (!in.done()) {
    throw_error(ErrorKind::kMismatch, "rank 0 speaks another version of Tutti than rank " + std::to_string(rank) +
                                          ": install one version everywhere");
  }
  return blobs;
}

// What all ranks have given, on rank 0 of many.
std::vector<std::string> collect(Store& store, std::string_view id, std::string_view topic,
                                 const std::vector<std::string>& keys, std::chrono::milliseconds timeout,
                                 const std::function<void()>& watch) {
  try {
    std::vector<std::string> blobs =
        watched(watch, timeout, [&](std::chrono::milliseconds time) { return store.multi_get(keys, time); });
    store.set(all_key(id, topic), pack(blobs));
    return blobs;
  } catch (const Error& e) {
    // Only this rank asks for the others' keys, so only it hears that one of them will not come.
    if (e.kind() != ErrorKind::kTimeout) store.set(all_key(id, topic), std::string(kFailed) + e.what());
    throw;
  }
}

// What is known to all as it is; else the reason of one rank.
void put_failure(Store& store, std::string_view id, int rank, const Error& error, bool known_to_all) {
  ByteWriter out;
  out.u32(static_cast<std::uint32_t>(rank)).u8(known_to_all ? 1 : 0).u8(static_cast<std::uint8_t>(error.kind()));
  out.text(error.what());
  store.set(failure_key(id), out.str());
}

}  // namespace

std::string store_key(std::string_view id, std::string_view topic, std::string_view detail) {
  std::string key = "tutti";
  for (const std::string_view part : {id, topic, detail}) {
    key += "/" + std::to_string(part.size()) + ":";
    key += part;
  }
  return key;
}

std::string exchange_key(std::string_view id, std::string_view topic, int rank) {
  return store_key(id, topic, std::to_string(rank));
}

std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

std::vector<std::string> exchange(Store& store, std::string_view id, std::string_view topic, int rank, int size,
                                  std::string_view blob, std::chrono::milliseconds timeout,
                                  const std::function<void()>& watch) {
  if (rank < 0 || rank >= size) {
    throw_error(ErrorKind::kInvalidArgument,
                "rank " + std::to_string(rank) + " does not exist in a world of " + std::to_string(size));
  }
  if (size == 1) return {std::string(blob)};
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) keys.push_back(exchange_key(id, topic, r));
  const std::string& own = keys[static_cast<std::size_t>(rank)];
  bool seen = true;  // by all
  if (size <= kMostDirect) {
    store.set(own, blob);
  } else {
    seen = store.set_for(0, own, blob);
  }
  try {
    // Of many ranks, rank 0 looks for all: they hear it of that.
    const std::function<void()> look = [&] {
      throw_if_told(store, id, rank);
      if (watch) watch();
    };
    const bool looks = size <= kMostDirect || rank == 0;
    const auto wait = [&](const auto& get) { return watched(looks ? look : watch, timeout, get); };
    const auto all = [&](std::chrono::milliseconds time) { return store.multi_get(keys, time); };
    const auto passed_on = [&](std::chrono::milliseconds time) { return store.get(all_key(id, topic), time); };
    const std::vector<std::string> blobs = size <= kMostDirect ? wait(all)
                                           : rank == 0         ? collect(store, id, topic, keys, timeout, look)
                                                               : unpack(wait(passed_on), rank, size);
    for (std::size_t r = 0; r < blobs.size(); ++r) {
      if (blobs[r].starts_with(kFailed)) throw_told(static_cast<int>(r), rank, blobs[r]);
    }
    return blobs;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kTimeout) throw;
    const std::vector<int> absent = seen || rank == 0 ? absent_ranks(store, keys) : std::vector<int>();
    const std::string who = absent.empty() ? "some came too late, or rank 0 did not pass on in time what they gave"
                                           : name_ranks(absent) + " did not come";
    throw_error(ErrorKind::kTimeout, "rank " + std::to_string(rank) + " waited " + std::to_string(timeout.count()) +
                                         " ms for all " + std::to_string(size) + " ranks (" + std::string(topic) +
                                         "): " + who + refused_hosts(store) + "; look at them, or allow more time");
  }
}

namespace {

std::optional<std::string> failure_said(Store& store, std::string_view id) {
  try {
    return store.get(failure_key(id), std::chrono::milliseconds(1));
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kTimeout) throw;
    return std::nullopt;
  }
}

}  // namespace

void throw_failed_again(const Error& error) {
  const std::string text = std::string(error.what()) +
                           ". This rank has failed under the same name in this store before: to form the group again, "
                           "take another name";
  // Whoever tells failures asks what they are.
  if (dynamic_cast<const Told*>(&error) != nullptr) throw Told(error.kind(), text);
  if (dynamic_cast<const KnownToAll*>(&error) != nullptr) throw KnownToAll(error.kind(), text);
  throw Error(error.kind(), text);
}

std::string failure_key(std::string_view id) { return store_key(id, "failure"); }

bool failed_before(Store& store, std::string_view id, int rank) noexcept {
  if (waits_in_fork()) return false;  // as in tell_failure()
  try {
    const std::optional<std::string> said = failure_said(store, id);
    return said && ByteReader(*said).u32() == static_cast<std::uint32_t>(rank);
  } catch (const std::exception&) {
    return false;
  }
}

void throw_if_told(Store& store, std::string_view id, int rank) {
  const std::optional<std::string> said = failure_said(store, id);
  if (!said) return;
  ByteReader in(*said);
  const auto teller = static_cast<int>(in.u32());  // which may be no rank of the group
  const bool known_to_all = in.u8() != 0;
  const auto kind = static_cast<ErrorKind>(std::min<int>(in.u8(), static_cast<int>(ErrorKind::kInternal)));
  const std::string reason(in.text());
  if (!in.done()) throw_error(ErrorKind::kInternal, "the store holds a malformed reason why a group cannot form");
  if (teller == rank) return;  // of its first try, with the same store and id
  if (known_to_all) throw Told(kind, reason);
  throw_told(teller, rank, std::string(kFailed) + reason);
}

std::vector<std::string> awaited_keys(std::string_view id, int rank) {
  std::vector<std::string> keys;
  for (const std::string_view topic : {kHostTopic, kNetworkTopic, kCudaTopic}) {
    keys.push_back(exchange_key(id, topic, rank));
    if (rank == 0) keys.push_back(all_key(id, topic));
  }
  return keys;
}

void give(Store& store, std::string_view id, std::string_view topic, int rank, int size, std::string_view blob) {
  store.set(exchange_key(id, topic, rank), blob);
  if (rank != 0 || size <= kMostDirect) return;
  std::vector<std::string> blobs(static_cast<std::size_t>(size));
  blobs.front() = blob;
  store.set(all_key(id, topic), pack(blobs));
}

void give_reason(Store& store, std::string_view id, int rank, std::string_view reason) noexcept {
  if (waits_in_fork()) return;  // by a handler of a signal: the rank is the parent's, and goes on
  try {
    const std::string value = std::string(kFailed) + std::string(reason);
    put_failure(store, id, rank, Error(ErrorKind::kPeerLost, std::string(reason)), false);
    for (const std::string& key : awaited_keys(id, rank)) store.set(key, value);
  } catch (const std::exception&) {
    // Then the others learn of it at their deadline.
  }
}

void tell_failure(Store& store, std::string_view id, int rank, const std::exception& error) noexcept {
  if (waits_in_fork()) return;  // as in give_reason()
  if (dynamic_cast<const Told*>(&error) != nullptr) return;
  const auto* const known = dynamic_cast<const KnownToAll*>(&error);
  if (known == nullptr) return give_reason(store, id, rank, error.what());
  try {
    put_failure(store, id, rank, *known, true);
  } catch (const std::exception&) {
    // As in give_reason().
  }
}

}  // namespace tutti
