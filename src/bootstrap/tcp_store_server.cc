#include "bootstrap/tcp_store_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "base/clock.h"
#include "base/process.h"
#include "base/thread.h"
#include "net/named_host.h"
#include "net/tcp_socket.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::int64_t kStrangerNs = 5'000'000'000;
constexpr std::int64_t kPatienceNs = 300'000'000;  // where others need its place
constexpr std::size_t kLeastPlaces = 16;           // for strangers
constexpr std::size_t kMostPlaces = 1024;
constexpr int kAcceptsATurn = 256;
constexpr std::size_t kReadBytes = 65536;
constexpr std::size_t kMostUnsent = std::size_t{1} << 20;  // a client that does not read is not read from
constexpr int kExhaustedPollMs = 10;

// A part of the descriptors that the process may have now, so that strangers do not take them from the job.
std::size_t places_for_strangers() noexcept { return std::clamp(descriptor_limit() / 8, kLeastPlaces, kMostPlaces); }

}  // namespace

TcpStoreServer::TcpStoreServer(const std::string& host, std::uint16_t port, std::string secret, Logger logger)
    : secret_(std::move(secret)),
      logger_(logger),
      listener_(listen_tcp(host, port)),
      bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      full_(framed(kStoreFull)),
      port_(local_address(listener_.get()).port()),
      process_(::getpid()) {
  if (!bell_) throw_system_error(ErrorKind::kExhausted, "eventfd", errno);
  take_spare();
  // Without it a client that connects would wait until its deadline.
  if (!spare_) throw_system_error(ErrorKind::kExhausted, "fcntl", errno);
  thread_ = start_thread("of the job's store", [this] { serve(); });
}

TcpStoreServer::~TcpStoreServer() {
  if (::getpid() != process_) {
    if (thread_.joinable()) thread_.detach();  // a forked child has no such thread to join
    return;
  }
  bool serves = false;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    serves = thread_.joinable();
    if (bell_) ::eventfd_write(bell_.get(), 1);
  }
  if (serves) thread_.join();
}

void TcpStoreServer::end_when_left(int ranks, CameKey came, std::chrono::milliseconds within) noexcept {
  const std::int64_t left_ns = Deadline::after(within).remaining_ns();
  const std::int64_t now = now_ns();
  const std::int64_t until_ns = now + std::min(left_ns, std::numeric_limits<std::int64_t>::max() - now);
  const std::lock_guard lock(mutex_);
  told_leaving_ = Leaving{ranks, came, std::max(until_ns, told_leaving_ ? told_leaving_->until_ns : 0)};
  if (bell_) ::eventfd_write(bell_.get(), 1);
}

void TcpStoreServer::serve() {
  bool serving = true;
  while (serving) {
    try {
      serving = turn();
    } catch (const std::exception&) {
      drop_oldest_stranger(0);  // no memory, or no random bytes: the job's own clients come first
      serving = !told_to_stop(kExhaustedPollMs);
    }
  }
  close_all();
}

// For whoever has no memory for a turn: it is asked for again after a while, and meanwhile the server may be ended.
bool TcpStoreServer::told_to_stop(int within_ms) noexcept {
  pollfd bell = {bell_.get(), POLLIN, 0};
  return ::poll(&bell, 1, within_ms) == 1 && !hear();
}

// What the server has been told. False if it is to stop.
bool TcpStoreServer::hear() noexcept {
  const std::lock_guard lock(mutex_);
  eventfd_t times = 0;
  ::eventfd_read(bell_.get(), &times);
  leaving_ = told_leaving_;
  return !stop_;
}

// Whether it is to end by itself now.
bool TcpStoreServer::all_left() const {
  if (!leaving_) return false;
  if (now_ns() >= leaving_->until_ns) return true;
  if (std::ranges::any_of(clients_, [](const auto& c) { return c.second.proven; })) return false;
  for (int r = 0; r < leaving_->ranks; ++r) {
    const std::string key = leaving_->came(r);
    if (!values_.contains(key) && !lost_.contains(key)) return false;
  }
  return true;
}

// What is left then takes no descriptor, and its thread has ended.
void TcpStoreServer::close_all() noexcept {
  clients_.clear();
  listener_.reset();
  spare_.reset();
  const std::lock_guard lock(mutex_);
  bell_.reset();
  // By itself: nobody may ever come to join it, and its stack would stay. Whoever drops the server takes the lock
  // first, whose release is the last that this thread does with it.
  if (!stop_) thread_.detach();
  ended_.store(true, std::memory_order_release);  // release: closed for who sees it, in ended()
}

bool TcpStoreServer::turn() {
  std::vector<pollfd> fds = {{bell_.get(), POLLIN, 0},
                             {accept_exhausted_ || !accepting() ? -1 : listener_.get(), POLLIN, 0}};
  fds.reserve(clients_.size() + fds.size());
  for (const auto& [id, client] : clients_) {
    short events = client.out.empty() ? 0 : POLLOUT;
    if (client.out.size() < kMostUnsent) events |= POLLIN;
    fds.push_back({client.socket.get(), events, 0});
  }
  const int ready = ::poll(fds.data(), fds.size(), poll_timeout_ms());
  if (fds[0].revents != 0 && !hear()) return false;
  auto fd = fds.begin() + 2;
  for (auto it = clients_.begin(); ready > 0 && it != clients_.end(); ++it, ++fd) {
    if ((fd->revents & POLLOUT) != 0) flush(it->second);
    if ((fd->revents & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(it->first, it->second);
  }
  work_on_runnable();
  expire();
  sweep();
  proven_clients_.store(clients_.size() - strangers_, std::memory_order_relaxed);
  if (accept_exhausted_ || fds[1].revents != 0) accept_all();
  return !all_left();
}

int TcpStoreServer::poll_timeout_ms() const {
  if (accept_exhausted_) return kExhaustedPollMs;
  std::int64_t until = now_ns() + 60'000'000'000;
  if (leaving_) until = std::min(until, leaving_->until_ns);
  if (!accepting()) until = std::min(until, gives_way_ns());
  for (const auto& [id, client] : clients_) {
    if (!client.proven) until = std::min(until, client.until_ns);
    if (client.waiting) until = std::min(until, client.waiting->until_ns);
  }
  return static_cast<int>(std::max<std::int64_t>(0, (until - now_ns()) / 1'000'000 + 1));
}

// When the places are taken, newcomers wait in the kernel's backlog until someone has proven the secret or has been
// here too long: an honest crowd passes quickly.
bool TcpStoreServer::accepting() const noexcept {
  return strangers_ < places_for_strangers() || now_ns() >= gives_way_ns();
}

// When the oldest stranger does, of some.
std::int64_t TcpStoreServer::gives_way_ns() const noexcept {
  return oldest_stranger()->second.until_ns - kStrangerNs + kPatienceNs;
}

void TcpStoreServer::accept_all() {
  if (!spare_) take_spare();  // before a client gets what has come free
  for (int turn = 0; turn < kAcceptsATurn && accepting(); ++turn) {
    UnforkedFd socket = UnforkedFd::opened_by([&] { return accept_from(listener_.get(), kSystemsSilence); });
    accept_exhausted_ = !socket && out_of_resources(errno);
    if (!socket) {
      if (accept_exhausted_) {
        drop_oldest_stranger(kPatienceNs);
        turn_away();
      }
      return;
    }
    if (strangers_ >= places_for_strangers()) drop_oldest_stranger(kPatienceNs);
    Client& client = clients_[next_id_++];
    ++strangers_;
    client.socket = std::move(socket);
    client.nonce = random_nonce();
    client.until_ns = now_ns() + kStrangerNs;
    serving(client, [&] { send(client, encode_challenge(client.nonce)); });
  }
}

// A client that is not accepted waits for nothing, and cannot know why.
void TcpStoreServer::turn_away() noexcept {
  pollfd newcomers = {listener_.get(), POLLIN, 0};
  if (::poll(&newcomers, 1, 0) != 1) return;  // else others would take the spare one meanwhile
  spare_.reset();
  UniqueFd socket = accept_from(listener_.get(), kSystemsSilence);
  if (!socket) return take_spare();
  static_cast<void>(::send(socket.get(), full_.data(), full_.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  // Closes it and takes its place at once: no other thread gets this descriptor in between.
  if (::dup3(bell_.get(), socket.get(), O_CLOEXEC) >= 0) spare_ = std::move(socket);
}

void TcpStoreServer::take_spare() noexcept { spare_ = UniqueFd(::fcntl(bell_.get(), F_DUPFD_CLOEXEC, 0)); }

std::map<TcpStoreServer::ClientId, TcpStoreServer::Client>::const_iterator TcpStoreServer::oldest_stranger()
    const noexcept {
  return std::find_if(clients_.begin(), clients_.end(), [](const auto& c) { return !c.second.proven; });
}

// If it has been here for so long.
void TcpStoreServer::drop_oldest_stranger(std::int64_t age_ns) {
  const auto oldest = oldest_stranger();
  if (oldest == clients_.end() || now_ns() < oldest->second.until_ns - kStrangerNs + age_ns) return;
  clients_.erase(oldest);
  --strangers_;
}

void TcpStoreServer::read_from(ClientId id, Client& client) {
  std::array<char, kReadBytes> buffer;
  const ssize_t got = ::recv(client.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (got <= 0) {
    client.gone = true;
    return;
  }
  serving(client, [&] {
    client.in.append({buffer.data(), static_cast<std::size_t>(got)});
    // Whoever waits for an answer has nothing more to say.
    if (client.waiting && client.in.left() > kMaxStoreFrame) client.gone = true;
    work_on(id, client);
  });
}

void TcpStoreServer::work_on(ClientId id, Client& client) {
  while (!client.gone && !client.waiting) {
    const auto frame = client.in.next(client.proven ? kMaxStoreFrame : kMaxStrangerFrame);
    if (!frame) break;
    if (!(client.proven ? handle(id, client, *frame) : prove(client, *frame))) client.gone = true;
  }
  if (client.in.broken()) client.gone = true;
  client.in.drop_taken();
}

// Not from within set(): a chain of waiting clients must not become a chain of calls.
void TcpStoreServer::work_on_runnable() {
  while (!runnable_.empty()) {
    const ClientId id = runnable_.front();
    runnable_.pop_front();
    const auto found = clients_.find(id);
    if (found != clients_.end()) serving(found->second, [&] { work_on(id, found->second); });
  }
}

void TcpStoreServer::expire() {
  const std::int64_t now = now_ns();
  for (auto& [id, client] : clients_) {
    if (!client.proven && now >= client.until_ns) client.gone = true;
    if (!client.waiting || now < client.waiting->until_ns) continue;
    serving(client, [&, id = id] { answer_missing(id, client); });
  }
  work_on_runnable();
}

void TcpStoreServer::sweep() {
  for (auto it = clients_.begin(); it != clients_.end();) {
    if (!it->second.gone) {
      ++it;
      continue;
    }
    stop_waiting(it->first, it->second);
    if (!it->second.proven) --strangers_;
    if (!it->second.will.keys.empty()) wills_.push_back(std::move(it->second.will));
    it = clients_.erase(it);
  }
  for (; !wills_.empty(); wills_.pop_back()) execute(wills_.back());
  work_on_runnable();
}

void TcpStoreServer::send(Client& client, std::string_view payload) {
  client.out += framed(payload);
  flush(client);
}

void TcpStoreServer::flush(Client& client) noexcept {
  std::size_t sent = 0;
  while (sent < client.out.size()) {
    const ssize_t n =
        ::send(client.socket.get(), client.out.data() + sent, client.out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) client.gone = true;
      break;
    }
    sent += static_cast<std::size_t>(n);
  }
  client.out.erase(0, sent);
}

}  // namespace tutti
