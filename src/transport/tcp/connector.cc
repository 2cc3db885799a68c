#include "transport/tcp/connector.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/clock.h"
#include "base/thread.h"
#include "tutti/error.h"

namespace tutti::tcp {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kFirstRestMs = 20;  // doubles with every broken dial
constexpr std::int64_t kLongestRestMs = 1'000;
constexpr std::int64_t kYieldMs = 2'000;     // for the lower rank's own dial to arrive, before asking again
constexpr std::int64_t kPatienceMs = 1'000;  // a stranger this old gives its place to a new one
constexpr int kMostFailures = 10;            // broken dials in a row before the peer counts as lost
constexpr int kMostExhausted = 5;            // dials for which the peer had no descriptor, over 0.6 s
constexpr int kMostExhaustedHere = 6;  // for which this rank had none: later than its peers hear so, for their sake

constexpr const char* kNoDescriptorThere =
    "cannot be reached: it has no descriptor left for a connection (raise its ulimit -n, or destroy groups that are "
    "not used)";

std::int64_t now_in_ms() noexcept { return now_ns() / 1'000'000; }

bool out_of_resources(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

UniqueFd make_eventfd() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) throw_system_error(ErrorKind::kExhausted, "eventfd", errno);
  return fd;
}

void signal_eventfd(int fd) noexcept { ::eventfd_write(fd, 1); }

void clear_eventfd(int fd) noexcept {
  eventfd_t count = 0;
  ::eventfd_read(fd, &count);
}

}  // namespace

TcpTransport::Connector::Connector(const TcpOptions& options, UniqueFd listener)
    : owner_(::getpid()),
      options_(options),
      self_{options.secret, options.communicator, options.rank, options.size},
      listener_(std::move(listener)),
      wake_fd_(make_eventfd()),
      news_fd_(make_eventfd()) {
  take_spare();
  peers_.reserve(static_cast<std::size_t>(options.size));
  wanted_.reserve(static_cast<std::size_t>(options.size));
  news_.reserve(static_cast<std::size_t>(options.size));
  for (int r = 0; r < options.size; ++r) peers_.push_back(std::make_unique<Peer>());
  thread_ = start_thread("of the tcp transport", [this] { run(); });
}

TcpTransport::Connector::~Connector() {
  if (::getpid() != owner_) {
    // The thread runs in the parent only. Neither joined nor detached, which would act on an id that means nothing here
    // or, by now, a thread of the child's own: the object stays behind, with the rest of what is the parent's.
    static_cast<void>(new std::thread(std::move(thread_)));
    for (const auto& peer : peers_) peer->link.abandon();
    return;
  }
  stop_.store(true, std::memory_order_relaxed);
  signal_eventfd(wake_fd_.get());
  thread_.join();
}

void TcpTransport::Connector::set_addresses(std::vector<SocketAddress> addresses) {
  {
    const std::lock_guard lock(mutex_);
    addresses_ = std::move(addresses);
  }
  signal_eventfd(wake_fd_.get());
}

TcpLink* TcpTransport::Connector::want(int peer) noexcept {
  if (peer < 0 || peer >= options_.size || peer == options_.rank) return nullptr;
  Peer& p = at(peer);
  if (p.asked.load(std::memory_order_relaxed)) return &p.link;
  {
    const std::lock_guard lock(mutex_);
    const auto index = static_cast<std::size_t>(peer);
    if (!addresses_.empty() && (index >= addresses_.size() || addresses_[index].empty())) return nullptr;
    if (p.asked.exchange(true, std::memory_order_relaxed)) return &p.link;
    wanted_.push_back(peer);  // never allocates: once a peer, and there is room for all
  }
  signal_eventfd(wake_fd_.get());
  return &p.link;
}

int TcpTransport::Connector::take_news(std::span<int> peers) noexcept {
  const std::lock_guard lock(mutex_);
  const std::size_t n = std::min(peers.size(), news_.size());
  std::copy_n(news_.begin(), n, peers.begin());
  news_.erase(news_.begin(), news_.begin() + static_cast<std::ptrdiff_t>(n));
  if (news_.empty()) clear_eventfd(news_fd_.get());
  return static_cast<int>(n);
}

void TcpTransport::Connector::close() noexcept {
  closing_.store(true, std::memory_order_relaxed);
  signal_eventfd(wake_fd_.get());
}

void TcpTransport::Connector::run() noexcept {
  while (!stop_.load(std::memory_order_relaxed)) {
    try {
      turn();
    } catch (const std::exception& error) {  // out of memory: what is pending goes on at the next turn
      options_.logger.error(std::string("tcp transport: ") + error.what());
    }
  }
}

void TcpTransport::Connector::turn() {
  std::int64_t now_ms = now_in_ms();
  collect_pollfds(now_ms);
  ::poll(pollfds_.data(), pollfds_.size(), timeout_ms(now_ms));
  if (stop_.load(std::memory_order_relaxed)) return;
  now_ms = now_in_ms();
  const bool accept_now = pollfds_[1].revents != 0;
  if (pollfds_[0].revents != 0) clear_eventfd(wake_fd_.get());
  if (!closed_ && closing_.load(std::memory_order_relaxed)) close_all();
  if (closed_) return;
  // In the order of pollfds_; what they add comes behind what was polled.
  advance_dials(now_ms);
  advance_strangers(now_ms);
  if (accept_now) accept_strangers(now_ms);
  take_requests(now_ms);
  start_dials(now_ms);
  watch_hosts(now_ms);
}

void TcpTransport::Connector::collect_pollfds(std::int64_t now_ms) {
  std::erase_if(pending_, [this](int peer) {
    const Peer::State state = at(peer).state;
    return state != Peer::State::kDialing && state != Peer::State::kResting;
  });
  pollfds_.clear();
  pollfds_.push_back({wake_fd_.get(), POLLIN, 0});
  pollfds_.push_back({accepting(now_ms) ? listener_.get() : -1, POLLIN, 0});
  for (const Stranger& stranger : strangers_) pollfds_.push_back({stranger.handshake.fd(), POLLIN, 0});
  for (const int peer : pending_) {
    const auto& dial = at(peer).dial;
    const bool connecting = dial && dial->state() == Handshake::State::kConnecting;
    pollfds_.push_back({dial ? dial->fd() : -1, static_cast<short>(connecting ? POLLOUT : POLLIN), 0});
  }
}

int TcpTransport::Connector::timeout_ms(std::int64_t now_ms) const noexcept {
  std::int64_t next = kNever;
  if (closed_) return -1;
  if (!accepting(now_ms)) next = std::max(accept_again_ms_, now_ms + kFirstRestMs);
  for (const Stranger& s : strangers_) next = std::min(next, s.since_ms + options_.handshake_timeout.count());
  for (const int peer : pending_) {
    const Peer& p = *peers_[static_cast<std::size_t>(peer)];
    if (p.state == Peer::State::kResting && !known_addresses_.empty()) next = std::min(next, p.rest_until_ms);
    if (p.dial && p.dial->state() == Handshake::State::kConnecting) {
      next = std::min(next, p.dial_began_ms + options_.connect_timeout.count());
    }
  }
  if (links_up_ > 0) next = std::min(next, watched_ms_ + options_.heartbeat.count());
  if (next == kNever) return -1;
  return static_cast<int>(std::clamp<std::int64_t>(next - now_ms, 0, 60'000));
}

void TcpTransport::Connector::take_requests(std::int64_t now_ms) {
  const std::lock_guard lock(mutex_);
  known_addresses_ = addresses_;
  for (const int peer : wanted_) {
    Peer& p = at(peer);
    if (p.state != Peer::State::kIdle) continue;  // the peer was faster
    pending_.push_back(peer);
    p.state = Peer::State::kResting;
    p.rest_until_ms = now_ms;
  }
  wanted_.clear();
}

// When the places are taken, newcomers wait in the kernel's backlog until someone has proved himself or has been here
// too long. An honest crowd passes quickly; whoever only holds a place does not keep it.
bool TcpTransport::Connector::accepting(std::int64_t now_ms) const noexcept {
  if (closed_) return false;
  if (now_ms < accept_again_ms_) return false;
  if (static_cast<int>(strangers_.size()) < options_.most_strangers) return true;
  return std::any_of(strangers_.begin(), strangers_.end(),
                     [now_ms](const Stranger& s) { return s.since_ms + kPatienceMs <= now_ms; });
}

void TcpTransport::Connector::accept_strangers(std::int64_t now_ms) {
  while (accepting(now_ms)) {
    UniqueFd socket = accept_from(listener_.get(), options_.silence());
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (out_of_resources(errno) && accept_on_spare(now_ms)) return;
      // Out of descriptors or memory: the listener stays readable, so look away for a moment.
      if (errno != EAGAIN && errno != EWOULDBLOCK) accept_again_ms_ = now_ms + kLongestRestMs / 10;
      return;
    }
    if (static_cast<int>(strangers_.size()) >= options_.most_strangers) {
      strangers_.erase(std::min_element(strangers_.begin(), strangers_.end(),
                                        [](const Stranger& a, const Stranger& b) { return a.since_ms < b.since_ms; }));
    }
    strangers_.push_back({Handshake::listen(std::move(socket), self_), now_ms});
  }
}

// A dialer that is not accepted waits for nothing, and cannot know why.
bool TcpTransport::Connector::accept_on_spare(std::int64_t now_ms) {
  const int error = errno;
  if (!spare_) return false;
  spare_.reset();
  UniqueFd socket = accept_from(listener_.get(), options_.silence());
  if (!socket) {
    take_spare();
    return false;
  }
  if (!warned_of_exhaustion_) {
    options_.logger.warning("tcp transport: a connection of another rank is refused: " + describe_errno(error));
    warned_of_exhaustion_ = true;
  }
  strangers_.push_back({Handshake::listen(std::move(socket), self_), now_ms, true});
  return true;
}

void TcpTransport::Connector::take_spare() noexcept { spare_ = UniqueFd(::fcntl(wake_fd_.get(), F_DUPFD_CLOEXEC, 0)); }

void TcpTransport::Connector::advance_strangers(std::int64_t now_ms) {
  for (std::size_t i = 0; i < strangers_.size(); ++i) {
    Handshake& handshake = strangers_[i].handshake;
    if (pollfds_[2 + i].revents == 0) continue;
    if (handshake.advance() == Handshake::State::kProven) admit(strangers_[i]);
    if (handshake.state() == Handshake::State::kBroken && handshake.peer() >= 0) {
      at(handshake.peer()).left_at_our_proof = true;
    }
    if (handshake.state() == Handshake::State::kForged) {
      const LogLevel level = warned_of_strangers_ ? LogLevel::kDebug : LogLevel::kWarning;
      options_.logger.log(level, "tcp transport: dropped a connection that does not know the secret of this job");
      warned_of_strangers_ = true;
    }
  }
  std::erase_if(strangers_, [&](const Stranger& s) {
    return s.handshake.over() || s.since_ms + options_.handshake_timeout.count() <= now_ms;
  });
  if (!spare_ && std::none_of(strangers_.begin(), strangers_.end(), [](const Stranger& s) { return s.on_spare; })) {
    take_spare();
  }
}

void TcpTransport::Connector::admit(Stranger& stranger) {
  Handshake& handshake = stranger.handshake;
  const int peer = handshake.peer();
  Verdict verdict = judge(peer);
  if (verdict == Verdict::kAccept && stranger.on_spare) verdict = Verdict::kFull;
  if (handshake.answer(verdict) != Handshake::State::kDone || verdict != Verdict::kAccept) return;
  bring_up(peer, handshake.take_socket());
}

Verdict TcpTransport::Connector::judge(int peer) noexcept {
  const Peer& p = at(peer);
  if (p.state == Peer::State::kUp || p.state == Peer::State::kDown) return Verdict::kRefuse;
  // A dial that has reached the peer may have been accepted already. One that has not is given up: the peer got
  // through in the other direction, which we may never do.
  const bool reached = p.state == Peer::State::kDialing && p.dial->state() != Handshake::State::kConnecting;
  return reached && self_.rank < peer ? Verdict::kYield : Verdict::kAccept;
}

void TcpTransport::Connector::start_dials(std::int64_t now_ms) {
  if (known_addresses_.empty()) return;
  for (const int peer : pending_) {
    const Peer& p = at(peer);
    if (p.state == Peer::State::kResting && p.rest_until_ms <= now_ms) start_dial(peer, now_ms);
  }
}

void TcpTransport::Connector::start_dial(int peer, std::int64_t now_ms) {
  Peer& p = at(peer);
  UniqueFd socket = begin_connect(known_addresses_[static_cast<std::size_t>(peer)], options_.silence());
  if (socket) {
    p.dial.emplace(Handshake::dial(std::move(socket), self_, peer));
    p.dial_began_ms = now_ms;
    p.state = Peer::State::kDialing;
  } else if (out_of_resources(errno) || errno == EAGAIN) {
    rest_after_failure(peer, now_ms,
                       "cannot be reached: no descriptors, ports or memory left here: " + describe_errno(errno),
                       kMostExhaustedHere);
  } else {
    give_up(peer, no_way(peer, errno));
  }
}

void TcpTransport::Connector::advance_dials(std::int64_t now_ms) {
  const std::size_t first = 2 + strangers_.size();
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    Peer& p = at(pending_[i]);
    if (p.state != Peer::State::kDialing) continue;
    if (pollfds_[first + i].revents != 0) p.dial->advance();
    const bool late = p.dial->state() == Handshake::State::kConnecting &&
                      p.dial_began_ms + options_.connect_timeout.count() <= now_ms;
    if (late) give_up(pending_[i], no_way(pending_[i], ETIMEDOUT));
    if (!late && p.dial->over()) on_dial_over(pending_[i], now_ms);
  }
}

void TcpTransport::Connector::on_dial_over(int peer, std::int64_t now_ms) {
  Peer& p = at(peer);
  switch (p.dial->state()) {
    case Handshake::State::kUnreachable:
      if (p.was_full) return give_up(peer, kNoDescriptorThere);  // and has ended by now
      return give_up(peer, left_at_our_proof(peer) ? other_secret(peer) : no_way(peer, p.dial->error()));
    case Handshake::State::kForged:
      return give_up(peer, other_secret(peer));
    case Handshake::State::kBroken:
      return rest_after_failure(
          peer, now_ms,
          left_at_our_proof(peer) ? other_secret(peer) : "died or cannot be reached any more: it ends every connection",
          kMostFailures);
    default:
      break;
  }
  switch (p.dial->verdict()) {
    case Verdict::kAccept:
      return bring_up(peer, p.dial->take_socket());
    case Verdict::kYield:
      p.dial.reset();
      p.state = Peer::State::kResting;
      p.rest_until_ms = now_ms + kYieldMs;
      return;
    case Verdict::kFull:
      p.was_full = true;
      return rest_after_failure(peer, now_ms, kNoDescriptorThere, kMostExhausted);
    case Verdict::kRefuse:
      return give_up(peer,
                     "died or cannot be reached any more: it has had a connection to this rank, and that is gone");
  }
}

void TcpTransport::Connector::rest_after_failure(int peer, std::int64_t now_ms, std::string why, int most) {
  Peer& p = at(peer);
  if (++p.failures > most) return give_up(peer, std::move(why));
  p.dial.reset();
  p.state = Peer::State::kResting;
  p.rest_until_ms = now_ms + std::min(kFirstRestMs << (p.failures - 1), kLongestRestMs);
}

void TcpTransport::Connector::bring_up(int peer, UniqueFd socket) {
  Peer& p = at(peer);
  p.link.attach(std::move(socket));
  p.dial.reset();
  p.state = Peer::State::kUp;
  if (links_up_++ == 0) watched_ms_ = now_in_ms();
  tell(peer);
}

void TcpTransport::Connector::give_up(int peer, std::string why) {
  Peer& p = at(peer);
  options_.logger.info("tcp transport: rank " + std::to_string(peer) + " " + why);
  {
    const std::lock_guard lock(mutex_);
    p.why = std::move(why);  // before the link ends: whoever sees that asks why
  }
  p.dial.reset();
  p.state = Peer::State::kDown;
  p.link.fail(Status::kPeerLost);
  tell(peer);
}

std::string TcpTransport::Connector::why_lost(int peer) const {
  if (peer < 0 || peer >= options_.size) return {};
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<std::size_t>(peer)]->why;
}

// A dialer proves itself only to a listener whose proof is right. One that says it is `peer` and hangs up at ours has
// another secret; it has given up, and its end must not be taken for a death. Only a hint, since it has proved nothing:
// asked when this rank's own dial has failed.
bool TcpTransport::Connector::left_at_our_proof(int peer) {
  return at(peer).left_at_our_proof || std::any_of(strangers_.begin(), strangers_.end(), [peer](Stranger& s) {
           return s.handshake.peer() == peer && s.handshake.advance() == Handshake::State::kBroken;
         });
}

std::string TcpTransport::Connector::other_secret(int peer) const {
  return "cannot be reached: whoever listens for it at " + known_addresses_[static_cast<std::size_t>(peer)].text() +
         " has another secret; give all ranks the same TUTTI_SECRET, or none";
}

std::string TcpTransport::Connector::no_way(int peer, int error) const {
  const std::string at = known_addresses_[static_cast<std::size_t>(peer)].text();
  if (error == ECONNREFUSED) return "died or cannot be reached any more: nobody listens at " + at;
  return "cannot be reached: no way from here to " + at + " (" + std::strerror(error) +
         "); TUTTI_SOCKET_IFNAME on that rank chooses the interface whose address it offers";
}

void TcpTransport::Connector::tell(int peer) {
  {
    const std::lock_guard lock(mutex_);
    news_.push_back(peer);
  }
  signal_eventfd(news_fd_.get());
}

// Without a listener a peer that dials is refused, and so learns that this rank is no more.
void TcpTransport::Connector::close_all() {
  closed_ = true;
  listener_.reset();
  strangers_.clear();
  for (const int peer : pending_) at(peer).dial.reset();
  pending_.clear();
  for (const auto& peer : peers_) {
    if (peer->state == Peer::State::kUp) peer->link.end_writing();
  }
  links_up_ = 0;
}

void TcpTransport::Connector::watch_hosts(std::int64_t now_ms) {
  const std::int64_t interval_ms = now_ms - watched_ms_;
  if (links_up_ == 0 || interval_ms < options_.heartbeat.count()) return;
  watched_ms_ = now_ms;
  for (int peer = 0; peer < options_.size; ++peer) {
    Peer& p = at(peer);
    if (p.state != Peer::State::kUp || p.link.poll_fd() < 0) continue;
    if (!p.watch.silent(p.link.poll_fd(), options_.silence(), static_cast<std::uint32_t>(interval_ms))) {
      continue;
    }
    options_.logger.info("tcp transport: the host of rank " + std::to_string(peer) + " does not answer any more");
    {
      const std::lock_guard lock(mutex_);
      p.why = "cannot be reached: its host does not answer any more";
    }
    p.link.fail(Status::kPeerLost);
  }
}

}  // namespace tutti::tcp
