#include "bootstrap/meeting_place.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <list>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "tutti/error.h"

namespace tutti {
namespace {

// A place is up before anyone hears of it; then its store answers at once, but many may ask.
constexpr std::chrono::milliseconds kReach{20'000};

constexpr std::string_view kMark("TuttiID\x01", 8);
static_assert(kMark.size() + sizeof(Nonce) + 4 + 4 + kMostAddressBytes == kMeetingPlaceBytes);

struct Offer {
  Nonce secret;
  std::shared_ptr<TcpStoreServer> server;
};

// Never destroyed: a program that ends need not wait for its servers.
struct Offers {
  const pid_t process = ::getpid();
  std::mutex mutex;  // guards `oldest_first`; taken alone
  std::list<Offer> oldest_first;
};
Offers& offers() {
  static std::atomic<Offers*> current{new Offers};
  // acquire: sees the offers as made by whoever published them below.
  Offers* mine = current.load(std::memory_order_acquire);
  if (mine->process != ::getpid()) {
    // A forked child: the parent's lock may be held by a thread that is not here.
    auto fresh = std::make_unique<Offers>();
    // release: publishes the child's; acquire: sees those of another thread that was first.
    if (current.compare_exchange_strong(mine, fresh.get(), std::memory_order_acq_rel, std::memory_order_acquire)) {
      mine = fresh.release();
    }
  }
  return *mine;
}

// Those that have ended by themselves, out of `all` that there are: for who holds the lock, to drop behind it.
std::list<Offer> ended(std::list<Offer>& all) noexcept {
  std::list<Offer> out;
  for (auto offer = all.begin(); offer != all.end();) {
    const auto next = std::next(offer);
    if (offer->server->ended()) out.splice(out.end(), all, offer);
    offer = next;
  }
  return out;
}

std::list<Offer>::iterator find(std::list<Offer>& all, const MeetingPlace& place) noexcept {
  return std::ranges::find_if(all, [&](const Offer& offer) { return equal(offer.secret, place.secret); });
}

}  // namespace

MeetingPlaceBytes encode(const MeetingPlace& place) {
  if (place.address.empty() || place.address.size() > kMostAddressBytes) {
    throw_error(ErrorKind::kInvalidArgument, "an address to meet at has 1 to " + std::to_string(kMostAddressBytes) +
                                                 " characters, not " + std::to_string(place.address.size()));
  }
  ByteWriter out;
  out.raw(kMark).digest(place.secret).u32(place.port).text(place.address);
  MeetingPlaceBytes bytes{};
  std::copy(out.str().begin(), out.str().end(), bytes.begin());
  return bytes;
}

std::optional<MeetingPlace> decode_meeting_place(const MeetingPlaceBytes& bytes) {
  ByteReader in(std::string_view(bytes.data(), bytes.size()));
  if (in.raw(kMark.size()) != kMark) return std::nullopt;
  MeetingPlace place;
  place.secret = in.digest();
  const std::uint32_t port = in.u32();
  place.address = in.text();
  if (!in.ok() || port == 0 || port > 65'535 || place.address.empty()) return std::nullopt;
  place.port = static_cast<std::uint16_t>(port);
  const std::string_view rest = in.raw(in.left());
  const bool zero = std::all_of(rest.begin(), rest.end(), [](char c) { return c == 0; });
  if (!zero || place.address.find('\0') != std::string::npos) return std::nullopt;
  return place;
}

MeetingPlace offer_meeting_place(const std::string& address) {
  MeetingPlace place{address, 1, random_nonce()};
  encode(place);  // throws where the address is none
  auto server = std::make_shared<TcpStoreServer>(address, 0, hexadecimal(place.secret));
  place.port = server->port();
  Offers& all = offers();
  std::list<Offer> dropped;  // behind the lock
  const std::lock_guard lock(all.mutex);
  dropped = ended(all.oldest_first);
  if (all.oldest_first.size() >= kMostOffers) {
    dropped.splice(dropped.end(), all.oldest_first, all.oldest_first.begin());
  }
  all.oldest_first.push_back({place.secret, std::move(server)});
  return place;
}

std::shared_ptr<TcpStoreServer> take_offer(const MeetingPlace& place) {
  Offers& all = offers();
  std::list<Offer> dropped;  // behind the lock
  const std::lock_guard lock(all.mutex);
  dropped = ended(all.oldest_first);
  const auto own = find(all.oldest_first, place);
  if (own == all.oldest_first.end()) return nullptr;
  std::shared_ptr<TcpStoreServer> server = std::move(own->server);
  all.oldest_first.erase(own);
  return server;
}

void leave_offer(const MeetingPlace& place, int ranks, TcpStoreServer::CameKey came,
                 std::chrono::milliseconds within) noexcept {
  std::shared_ptr<TcpStoreServer> server;
  try {
    Offers& all = offers();
    const std::lock_guard lock(all.mutex);
    const auto own = find(all.oldest_first, place);
    if (own != all.oldest_first.end()) server = own->server;
  } catch (const std::bad_alloc&) {
    // A forked child's first: it offers nothing.
  }
  if (server != nullptr) server->end_when_left(ranks, came, within);
}

std::unique_ptr<TcpStore> reach(const MeetingPlace& place, std::chrono::milliseconds timeout,
                                const std::string& maker) {
  TcpStoreOptions options;
  options.host = place.address;
  options.port = place.port;
  options.secret = hexadecimal(place.secret);
  // Half of it: others may wait as long to hear whether this rank has reached it.
  options.timeout = std::min(std::max(timeout / 2, std::chrono::milliseconds(1)), kReach);
  options.up = true;
  options.server = maker;
  return std::make_unique<TcpStore>(options);
}

}  // namespace tutti
