#include "transport/tcp/endpoint.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/registry.h"
#include "base/thread.h"
#include "transport/tcp/retries.h"
#include "tutti/error.h"

namespace tutti::tcp {
namespace {

constexpr std::int64_t kLookAtLingeringMs = 5;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kPatienceMs = 1'000;  // a stranger this old gives its place to a new one

UniqueFd make_eventfd() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) throw_system_error(ErrorKind::kExhausted, "eventfd", errno);
  return fd;
}

UniqueFd listen_for(const TcpOptions& options) {
  const auto route = options.interface.empty() ? route_to(options.master_address) : std::nullopt;
  return listen_at(choose_address(interface_addresses(), options.interface, route));
}

// What is said of a stranger in such a state.
const char* strange(Handshake::State state) noexcept {
  switch (state) {
    case Handshake::State::kForged:
      return "does not know the secret of this job";
    case Handshake::State::kOtherVersion:
      return "has another version of Tutti";
    case Handshake::State::kForeign:
      return "is not Tutti's";
    default:
      return nullptr;
  }
}

// The endpoints of this process. In a forked child they are the parent's, and no copies of their sockets stay open: a
// process is seen to have ended by their end.
struct Endpoints : ForkHandler {
  static Endpoints& instance() {
    constexpr auto make = [] { return static_cast<void*>(new Endpoints); };
    return *static_cast<Endpoints*>(ProcessRegistry::instance().member(RegistryMember::kEndpoints, make));
  }
  void before_fork() noexcept override {
    mutex.lock();
    held.clear();
    for (Endpoint* const endpoint : living) {
      if (endpoint->hold_for_fork()) held.push_back(endpoint);  // there is room: see add()
    }
  }
  void after_fork_in_parent() noexcept override {
    for (Endpoint* const endpoint : held) endpoint->let_go();
    mutex.unlock();
  }
  void after_fork_in_child() noexcept override {
    for (Endpoint* const endpoint : held) {
      endpoint->close_copies();
      endpoint->let_go();
    }
    mutex.unlock();
  }
  // Under the mutex.
  void add(const std::shared_ptr<Endpoint>& endpoint) {
    all.reserve(all.size() + 1);
    held.reserve(living.size() + 1);
    living.push_back(endpoint.get());
    all.push_back(endpoint);
  }
  void remove(Endpoint* endpoint) noexcept {
    const std::lock_guard lock(mutex);
    std::erase(living, endpoint);
  }

  std::mutex mutex;  // guards what follows; held while an endpoint is made, and around a fork
  std::vector<std::weak_ptr<Endpoint>> all;
  std::vector<Endpoint*> living;  // their destructors have not begun
  std::vector<Endpoint*> held;    // during a fork
  ForkHook hook{*this};
};

}  // namespace

std::string Endpoint::settings_of(const TcpOptions& o) {
  ByteWriter text;
  text.text(o.interface).text(o.master_address).u32(static_cast<std::uint32_t>(o.most_strangers));
  for (const auto time : {o.heartbeat, o.handshake_timeout, o.connect_timeout, o.longest_linger, o.longest_end}) {
    text.u64(static_cast<std::uint64_t>(time.count()));
  }
  return std::move(text).str();
}

std::shared_ptr<Endpoint> Endpoint::of(const TcpOptions& options) {
  Endpoints& endpoints = Endpoints::instance();
  const std::string settings = settings_of(options);
  std::vector<std::shared_ptr<Endpoint>> others;  // this may be the last to hold one: it ends without the lock
  const std::lock_guard lock(endpoints.mutex);
  std::erase_if(endpoints.all, [](const auto& endpoint) { return endpoint.expired(); });
  others.reserve(endpoints.all.size());
  for (const auto& known : endpoints.all) {
    auto endpoint = known.lock();
    if (endpoint != nullptr && endpoint->settings_ == settings && !endpoint->inherited()) return endpoint;
    others.push_back(std::move(endpoint));
  }
  std::shared_ptr<Endpoint>& made = others.emplace_back(new Endpoint(options));
  endpoints.add(made);
  return made;
}

Endpoint::Endpoint(const TcpOptions& options)
    : owner_(::getpid()),
      settings_(settings_of(options)),
      heartbeat_(options.heartbeat),
      silence_(options.silence()),
      handshake_timeout_(options.handshake_timeout),
      connect_timeout_(options.connect_timeout),
      longest_linger_(options.longest_linger),
      longest_end_(options.longest_end),
      most_strangers_(options.most_strangers),
      logger_(options.logger),
      listener_(listen_for(options)),
      address_(local_address(listener_.get())),
      wake_fd_(make_eventfd()) {
  take_spare();
  // Without it a peer that dials would wait until its deadline.
  if (!spare_) throw_system_error(ErrorKind::kExhausted, "fcntl", errno);
  thread_ = start_thread("of the tcp transport", [this] { run(); });
}

Endpoint::~Endpoint() {
  Endpoints::instance().remove(this);
  see_partings_off();
  stop_.store(true, std::memory_order_relaxed);
  look();
  thread_.join();
  partings_.clear();  // they may be the last to hold a stream: its socket lingers as others do
  // A process may end now, and with it its sockets.
  for (const std::int64_t until_ms = now_in_ms() + longest_end_.count();
       anything_lingers() && now_in_ms() < until_ms;) {
    look_at_lingering(now_in_ms());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool Endpoint::inherited() const noexcept { return ::getpid() != owner_; }

void Endpoint::look() noexcept { ::eventfd_write(wake_fd_.get(), 1); }

std::unique_ptr<Member> Endpoint::join(const TcpOptions& options) {
  const std::lock_guard lock(mutex_);
  auto member = std::make_unique<Member>(options, next_group_++);
  members_.push_back(member.get());
  return member;
}

void Endpoint::run() noexcept {
  while (!stop_.load(std::memory_order_relaxed)) {
    try {
      turn();
    } catch (const std::exception&) {
      starve();
    }
  }
}

// For one more of what is polled, so that a turn begins without taking memory. On the endpoint's thread.
void Endpoint::make_room() {
  const std::size_t most = 2 + strangers_.size() + pending_.size() + partings_.size() + streams_.size() + 1;
  if (pollfds_.capacity() < most) pollfds_.reserve(2 * most);
}

void Endpoint::turn() {
  std::unique_lock lock(mutex_);
  std::int64_t now_ms = now_in_ms();
  collect_pollfds(now_ms);
  const int timeout = timeout_ms(now_ms);
  reshaped_ = false;
  lock.unlock();
  ::poll(pollfds_.data(), pollfds_.size(), timeout);
  lock.lock();
  if (stop_.load(std::memory_order_relaxed)) return;
  now_ms = now_in_ms();
  const bool accept_now = pollfds_[1].revents != 0;
  if (pollfds_[0].revents != 0) {
    eventfd_t count = 0;
    ::eventfd_read(wake_fd_.get(), &count);
  }
  if (!reshaped_) {  // else at the next turn
    // What they add comes behind what was polled.
    advance_partings(now_ms);
    advance_dials(now_ms);
    advance_strangers(now_ms);
  }
  if (accept_now) accept_strangers(now_ms);
  take_requests(now_ms);
  start_dials(now_ms);
  flush_streams();
  watch_hosts(now_ms);
  look_at_lingering(now_ms);
}

void Endpoint::collect_pollfds(std::int64_t now_ms) {
  std::erase_if(pending_, [](const Pending& p) {
    const Member::Peer::State state = p.member->at(p.peer).state;
    return state != Member::Peer::State::kDialing && state != Member::Peer::State::kResting;
  });
  std::erase_if(streams_, [](const Known& known) { return known.stream.expired(); });
  pollfds_.clear();
  pollfds_.push_back({wake_fd_.get(), POLLIN, 0});
  pollfds_.push_back({accepting(now_ms) ? listener_.get() : -1, POLLIN, 0});
  for (const Stranger& stranger : strangers_) pollfds_.push_back({stranger.handshake.fd(), POLLIN, 0});
  for (Pending& p : pending_) {  // not who rests: poll() takes no more entries than there may be descriptors
    const auto& dial = p.member->at(p.peer).dial;
    if (!dial) continue;
    p.polled = pollfds_.size();
    const bool connecting = dial->state() == Handshake::State::kConnecting;
    pollfds_.push_back({dial->fd(), static_cast<short>(connecting ? POLLOUT : POLLIN), 0});
  }
  partings_polled_ = pollfds_.size();
  for (const Parting& p : partings_) pollfds_.push_back({p.dial.fd(), POLLIN, 0});
  for (const Known& known : streams_) {
    const auto stream = known.stream.lock();
    if (stream != nullptr && stream->has_rest()) pollfds_.push_back({stream->fd(), POLLOUT, 0});
  }
}

int Endpoint::timeout_ms(std::int64_t now_ms) const {
  std::int64_t next = kNever;
  if (!accepting(now_ms)) next = std::max(accept_again_ms_, now_ms + kFirstRestMs);
  for (const Parting& p : partings_) next = std::min(next, p.since_ms + handshake_timeout_.count());
  for (const Stranger& s : strangers_) {
    if (on_probation(s)) next = std::min(next, s.since_ms + handshake_timeout_.count());
  }
  const EndpointSet under_way = dialed_now();
  const bool room = room_for_dials() > 0;
  for (const Pending& pending : pending_) {
    const Member::Peer& p = pending.member->at(pending.peer);
    if (room && p.state == Member::Peer::State::kResting && !pending.member->known_addresses.empty() &&
        !must_queue(pending, under_way)) {
      next = std::min(next, p.rest_until_ms);
    }
    if (p.dial && p.dial->state() == Handshake::State::kConnecting) {
      next = std::min(next, p.unanswered_since_ms + connect_timeout_.count());
    }
  }
  if (watching()) next = std::min(next, watched_ms_ + heartbeat_.count());
  if (anything_lingers()) next = std::min(next, now_ms + kLookAtLingeringMs);
  if (next == kNever) return -1;
  return static_cast<int>(std::clamp<std::int64_t>(next - now_ms, 0, 60'000));
}

void Endpoint::take_requests(std::int64_t now_ms) {
  for (Member* const member : members_) {
    if (member->closed) continue;
    if (member->closing.load(std::memory_order_relaxed)) {
      close(*member);
      continue;
    }
    const std::lock_guard lock(member->mutex);
    if (member->addresses_are_new) {
      member->known_addresses = member->addresses;
      member->addresses_are_new = false;
      for (int peer = 0; peer < member->options.size; ++peer) name_stream(*member, peer);
    }
    for (const int peer : member->wanted) {
      Member::Peer& p = member->at(peer);
      if (p.state != Member::Peer::State::kIdle) continue;  // the peer was faster
      make_room();
      pending_.push_back({member, peer});
      p.state = Member::Peer::State::kResting;
      p.rest_until_ms = now_ms;
    }
    member->wanted.clear();
  }
}

Member* Endpoint::member_of(const Handshake& handshake) const noexcept {
  const auto found =
      std::ranges::find_if(members_, [&](const Member* m) { return !m->closed && m->self == handshake.self(); });
  return found != members_.end() ? *found : nullptr;
}

std::shared_ptr<const Identity> Endpoint::identity_for(const Hello& hello) const {
  for (const Member* const member : members_) {
    if (!member->closed && member->number == hello.group) return member->self;
  }
  const auto found = std::ranges::find(departed_, hello.group, &Departed::number);
  return found != departed_.end() ? found->self : nullptr;
}

Handshake::Lookup Endpoint::lookup() const {
  return [this](const Hello& hello) { return identity_for(hello); };
}

bool Endpoint::on_probation(const Stranger& stranger) noexcept {
  return stranger.handshake.state() != Handshake::State::kSealing;
}

int Endpoint::probationers() const noexcept {
  return static_cast<int>(std::ranges::count_if(strangers_, on_probation));
}

// When the places are taken, newcomers wait in the kernel's backlog until someone has proved himself or has been here
// too long. An honest crowd passes quickly; whoever only holds a place does not keep it.
bool Endpoint::accepting(std::int64_t now_ms) const noexcept {
  if (now_ms < accept_again_ms_) return false;
  if (probationers() < most_strangers_) return true;
  return std::any_of(strangers_.begin(), strangers_.end(),
                     [now_ms](const Stranger& s) { return on_probation(s) && s.since_ms + kPatienceMs <= now_ms; });
}

void Endpoint::accept_strangers(std::int64_t now_ms) {
  while (accepting(now_ms)) {
    UniqueFd socket = accept_from(listener_.get(), silence_);
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (out_of_resources(errno) && accept_on_spare(now_ms)) return;
      // Out of descriptors or memory: the listener stays readable, so look away for a moment.
      if (errno != EAGAIN && errno != EWOULDBLOCK) accept_again_ms_ = now_ms + kLongestRestMs / 10;
      return;
    }
    if (probationers() >= most_strangers_) {
      strangers_.erase(std::min_element(strangers_.begin(), strangers_.end(), [](const Stranger& a, const Stranger& b) {
        if (on_probation(a) != on_probation(b)) return on_probation(a);
        return a.since_ms < b.since_ms;
      }));
    }
    make_room();
    strangers_.push_back({Handshake::listen(std::move(socket), lookup()), now_ms});
  }
}

// A dialer that is not accepted waits for nothing, and cannot know why.
bool Endpoint::accept_on_spare(std::int64_t now_ms) {
  const int error = errno;
  if (!spare_) return false;
  spare_.reset();
  UniqueFd socket = accept_from(listener_.get(), silence_);
  if (!socket) {
    take_spare();
    return false;
  }
  if (!warned_of_exhaustion_) {
    logger_.warning("tcp transport: a connection of another rank is refused: " + describe_errno(error));
    warned_of_exhaustion_ = true;
  }
  make_room();
  strangers_.push_back({Handshake::listen(std::move(socket), lookup()), now_ms, true});
  return true;
}

void Endpoint::take_spare() noexcept { spare_ = UniqueFd(::fcntl(wake_fd_.get(), F_DUPFD_CLOEXEC, 0)); }

void Endpoint::advance_strangers(std::int64_t now_ms) {
  for (std::size_t i = 0; i < strangers_.size(); ++i) {
    Stranger& stranger = strangers_[i];
    Handshake& handshake = stranger.handshake;
    if (pollfds_[2 + i].revents != 0) handshake.advance();
    Member* const member = handshake.self() != nullptr ? member_of(handshake) : nullptr;
    if (handshake.state() == Handshake::State::kProven) {
      member != nullptr ? admit(*member, stranger) : tell_of_end(handshake);
    }
    if (member != nullptr && handshake.state() == Handshake::State::kBroken) on_stranger_broke(*member, handshake);
    if (const char* const what = strange(handshake.state()); what != nullptr) {
      const LogLevel level = warned_of_strangers_ ? LogLevel::kDebug : LogLevel::kWarning;
      logger_.log(level, std::string("tcp transport: dropped a connection that ") + what);
      warned_of_strangers_ = true;
    }
  }
  std::erase_if(strangers_, [&](const Stranger& s) {
    return s.handshake.over() || (on_probation(s) && s.since_ms + handshake_timeout_.count() <= now_ms);
  });
  if (!spare_ && std::none_of(strangers_.begin(), strangers_.end(), [](const Stranger& s) { return s.on_spare; })) {
    take_spare();
  }
}

// After kShare nobody may be at the other end of what was agreed on: the dialer would have sealed it.
void Endpoint::on_stranger_broke(Member& member, const Handshake& handshake) {
  const int peer = handshake.peer();
  if (peer < 0) return;
  if (handshake.verdict() == Verdict::kShare) {
    if (member.at(peer).state != Member::Peer::State::kUp) return;  // the answer has found no way
    member.set_why(peer, handshake.withdrawn() ? kStarvedThere : kConnectionGone);
    member.at(peer).link.fail();
    member.tell(peer);
  } else {
    member.at(peer).left_at_our_proof = true;
  }
}

void Endpoint::admit(Member& member, Stranger& stranger) {
  Handshake& handshake = stranger.handshake;
  const int peer = handshake.peer();
  Member::Peer& p = member.at(peer);
  Verdict verdict = judge(member, peer);
  std::shared_ptr<Stream> shared = stream_named(handshake.offer().stream);
  if (verdict == Verdict::kAccept && shared != nullptr) verdict = Verdict::kShare;
  if (verdict == Verdict::kAccept && stranger.on_spare) {
    verdict = Verdict::kFull;
    p.wanting.store(true, std::memory_order_relaxed);
  }
  if (verdict != Verdict::kAccept && verdict != Verdict::kShare) {
    handshake.answer(verdict, 0);
    return;
  }
  admitting_ = {&member, peer};
  // Its own dial is given up; it is begun anew should the answer find no way.
  drop_dial(p);
  if (p.state == Member::Peer::State::kDialing) p.state = Member::Peer::State::kResting;
  const std::uint32_t inlet = next_inlet_++;
  bool agreed = false;
  if (verdict == Verdict::kShare) {
    p.link.expect(std::move(shared), inlet);  // the dialer writes as soon as it knows
    agreed = handshake.answer(verdict, inlet) == Handshake::State::kSealing;
  } else {
    // Made before the answer, for there may be no memory for it.
    const auto stream = new_stream(handshake, false, there_of(member, peer));
    p.link.expect(stream, inlet);
    agreed = handshake.answer(verdict, inlet) == Handshake::State::kDone;
    if (agreed) stream->adopt(handshake.take_socket());
  }
  if (agreed) {
    bring_up(member, peer, handshake.offer().inlet);
  } else {
    p.link.expect(nullptr, 0);
  }
  admitting_ = {};
}

Verdict Endpoint::judge(Member& member, int peer) noexcept {
  const Member::Peer& p = member.at(peer);
  if (p.starved) return Verdict::kStarved;
  if (p.state == Member::Peer::State::kUp || p.state == Member::Peer::State::kDown) return Verdict::kRefuse;
  // A dial whose proof is under way may have been accepted already. One that has heard nothing yet is given up: the
  // peer got through in the other direction, which we may never do.
  const bool proven = p.state == Member::Peer::State::kDialing && p.dial->has_proved_itself();
  return proven && member.options.rank < peer ? Verdict::kYield : Verdict::kAccept;
}

}  // namespace tutti::tcp
