#include "transport/tcp/member.h"

#include <algorithm>
#include <new>

#include "base/parse.h"

namespace tutti::tcp {

std::optional<PeerAddress> PeerAddress::parse(const std::string& text) {
  const std::size_t slash = text.rfind('/');
  if (slash == std::string::npos) return std::nullopt;
  const auto endpoint = SocketAddress::parse(std::string_view(text).substr(0, slash));
  PeerAddress address;
  if (!endpoint || !parse_number(std::string_view(text).substr(slash + 1), address.group)) return std::nullopt;
  address.endpoint = *endpoint;
  address.there = endpoint->text();
  return address;
}

Member::Member(const TcpOptions& given, std::uint64_t its_number)
    : options(given),
      self(std::make_shared<Identity>(Identity{given.secret, given.communicator, given.rank, given.size})),
      number(its_number) {
  const auto size = static_cast<std::size_t>(given.size);
  peers.reserve(size);
  wanted.reserve(size);
  departed.push_back({number, self, {}});
  news.reserve(2 * size);  // of a peer there are two at most: it stands, and it has ended
  for (std::size_t r = 0; r < size; ++r) peers.push_back(std::make_unique<Peer>(wake, given.window));
}

TcpLink* Member::want(int peer, bool& asked_now) noexcept {
  asked_now = false;
  if (peer < 0 || peer >= options.size || peer == options.rank) return nullptr;
  Peer& p = at(peer);
  if (p.asked.load(std::memory_order_relaxed)) return &p.link;
  const std::lock_guard lock(mutex);
  const auto index = static_cast<std::size_t>(peer);
  if (!addresses.empty() && (index >= addresses.size() || addresses[index].empty())) return nullptr;
  if (p.asked.exchange(true, std::memory_order_relaxed)) return &p.link;
  wanted.push_back(peer);  // never allocates: once a peer, and there is room for all
  asked_now = true;
  return &p.link;
}

int Member::take_news(std::span<int> into) noexcept {
  if (!has_news.load(std::memory_order_relaxed)) return 0;
  const std::lock_guard lock(mutex);
  const std::size_t n = std::min(into.size(), news.size());
  std::copy_n(news.begin(), n, into.begin());
  news.erase(news.begin(), news.begin() + static_cast<std::ptrdiff_t>(n));
  if (news.empty()) has_news.store(false, std::memory_order_relaxed);
  return static_cast<int>(n);
}

void Member::tell(int peer) noexcept {
  {
    const std::lock_guard lock(mutex);
    if (news.size() < news.capacity()) news.push_back(peer);
    has_news.store(true, std::memory_order_relaxed);
  }
  wake();
}

void Member::set_why(int peer, std::string_view why) noexcept {
  const std::lock_guard lock(mutex);
  try {
    at(peer).why = why;
  } catch (const std::bad_alloc&) {
  }
}

std::string Member::why_lost(int peer) const {
  if (peer < 0 || peer >= options.size) return {};
  const Peer& p = *peers[static_cast<std::size_t>(peer)];
  const std::lock_guard lock(mutex);
  return p.why.empty() ? std::string(p.link.why()) : p.why;
}

std::string Member::want_here(int peer) const {
  if (peer < 0 || peer >= options.size) return {};
  if (!peers[static_cast<std::size_t>(peer)]->wanting.load(std::memory_order_relaxed)) return {};
  return "this rank had no descriptor left for the connection with rank " + std::to_string(peer) +
         " before (raise ulimit -n here, or destroy groups that are not used)";
}

void Member::say_last(const LastWords& last) noexcept {
  const std::lock_guard lock(mutex);
  words = last;
}

LastWords Member::last_words() const noexcept {
  const std::lock_guard lock(mutex);
  return words;
}

void Member::set_addresses(std::vector<PeerAddress> given) {
  given.resize(peers.size());  // those that are not named are nowhere
  const std::lock_guard lock(mutex);
  addresses = std::move(given);
  addresses_are_new = true;
}

}  // namespace tutti::tcp
