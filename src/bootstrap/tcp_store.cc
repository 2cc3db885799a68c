#include "bootstrap/tcp_store.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/interruption.h"
#include "net/named_host.h"
#include "net/tcp_socket.h"
#include "tutti/error.h"

namespace tutti {
namespace {

// What a server may take longer to answer than was asked for, before it counts as gone.
constexpr std::chrono::milliseconds kGrace{10'000};
constexpr int kMostRetryMs = 100;
// For a server to begin to speak, at first: one in this process may wait for the descriptor of this very connection.
constexpr std::chrono::milliseconds kFirstPatience{2'000};
constexpr std::int64_t kExhaustedNs = 2'000'000'000;  // descriptors may come back, but not often

}  // namespace

TcpStore::TcpStore(const TcpStoreOptions& options) : options_(options), owner_(::getpid()) {
  if (options_.serve) {
    server_ = std::make_unique<TcpStoreServer>(options_.host, options_.port, options_.secret, options_.logger);
    options_.port = server_->port();
  }
  connect();
}

std::string TcpStore::place() const {
  return options_.server + " at " + options_.host + " port " + std::to_string(options_.port);
}

// The connection is of no more use: an answer that comes late would be taken for another one's.
void TcpStore::lost(const std::string& why) {
  socket_.reset();
  throw_error(ErrorKind::kPeerLost, "the job's store (" + place() + ") is gone: " + why);
}

// An answer that comes later would be taken for another's: so the connection ends, and another can be made, by which
// this rank tells the others.
void TcpStore::throw_if_stopped() {
  if (go_on_waiting()) return;
  socket_.reset();
  gave_up_ = true;
  throw_if_interrupted("waiting for the job's store (" + place() + ")");
}

// Until rank 0 is up: it may start last.
void TcpStore::connect() {
  Deadline deadline = Deadline::after(options_.timeout);
  ConnectFailure failure;
  std::int64_t exhausted_since_ns = 0;  // 0: it is not
  std::chrono::milliseconds patience = kFirstPatience;
  for (int pause_ms = 1;; pause_ms = std::min(2 * pause_ms, kMostRetryMs)) {
    socket_ = connect_tcp(options_.host, options_.port, deadline, failure);
    if (socket_) {
      if (greet(deadline, patience, failure)) return;
      patience = std::min(2 * patience, options_.timeout);
      socket_.reset();  // its descriptor may be the one that the server needs, if that is of this process
    } else if (options_.up && failure.refused) {
      lost("nobody listens there any more");
    }
    if (!failure.exhausted || exhausted_since_ns == 0) exhausted_since_ns = failure.exhausted ? now_ns() : 0;
    if (failure.exhausted && now_ns() - exhausted_since_ns > kExhaustedNs) {
      throw_error(ErrorKind::kExhausted, "the job's store (" + place() + ") could not be reached: " + failure.why);
    }
    if (deadline.expired()) {
      throw_error(ErrorKind::kTimeout, "the job's store (" + place() + ") could not be reached within " +
                                           std::to_string(options_.timeout.count()) + " ms: " + failure.why);
    }
    ::poll(nullptr, 0, pause_ms);
    throw_if_interrupted("connecting to the job's store (" + place() + ")");
  }
}

// False, with the reason, if the other side is no store, or closed before it gave its answer.
bool TcpStore::greet(Deadline& deadline, std::chrono::milliseconds patience, ConnectFailure& failure) {
  std::string& why = failure.why;
  why =
      "what listens there does not answer like a Tutti store; if it is another one (torchrun keeps its own on "
      "MASTER_PORT), choose a free port with TUTTI_MASTER_PORT";
  in_ = FrameBuffer();
  Nonce server{};
  const Nonce client = random_nonce();
  try {
    const std::chrono::milliseconds left(deadline.remaining_ns() / 1'000'000);
    Deadline beginning = Deadline::after(std::min(left, patience));
    const std::string first = receive(beginning);
    if (first == kStoreFull) {
      failure.exhausted = true;
      why =
          "its process has no descriptor left for a connection: raise ulimit -n there, or destroy groups that are not "
          "used";
    }
    const std::optional<Nonce> challenge = decode_challenge(first);
    if (!challenge) return false;
    server = *challenge;
    send(encode(StoreResponse{client, store_proof(options_.secret, "client", server, client)}), deadline);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kInternal) throw;
    return false;
  }
  try {
    const std::string welcome = receive(deadline);
    ByteReader in(welcome);
    const Digest proof = in.digest();
    if (in.done() && equal(proof, store_proof(options_.secret, "server", server, client))) return true;
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kInternal) throw;
    why = "it closed the connection before its answer: too many connect at once, or it has ended";
    return false;
  }
  throw_error(ErrorKind::kInvalidArgument,
              "the job's store (" + place() + ") has another secret: give all ranks the same TUTTI_SECRET");
}

void TcpStore::send(std::string_view payload, Deadline& deadline) {
  if (::getpid() != owner_) {  // its answers would be read by whoever reads first
    throw_error(
        ErrorKind::kUnsupported,
        "the job's store of this process belongs to the parent, from which it was forked: make one in this process");
  }
  if (!socket_ && std::exchange(gave_up_, false)) connect();  // others are to hear of it
  if (!socket_) lost("an earlier operation failed");
  if (payload.size() > kMaxStoreFrame) {
    throw_error(ErrorKind::kInvalidArgument, "the store takes at most " + std::to_string(kMaxStoreFrame) +
                                                 " bytes at once, not " + std::to_string(payload.size()));
  }
  const std::string bytes = framed(payload);
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = ::send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent += static_cast<std::size_t>(n);
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      lost(std::strerror(errno));
    } else if (!wait_ready(socket_.get(), POLLOUT, deadline)) {
      throw_if_stopped();
      lost("it takes no more bytes");
    }
  }
}

std::string TcpStore::receive(Deadline& deadline) {
  for (;;) {
    if (const auto frame = in_.next(kMaxStoreFrame)) {
      std::string payload(*frame);
      in_.drop_taken();
      return payload;
    }
    if (in_.broken()) lost("its answer is malformed");
    std::array<char, 16384> buffer;
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0) {
      in_.append({buffer.data(), static_cast<std::size_t>(got)});
    } else if (got == 0) {
      lost("it closed the connection");
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      lost(std::strerror(errno));
    } else if (!wait_ready(socket_.get(), POLLIN, deadline)) {
      throw_if_stopped();
      lost("it does not answer");
    }
  }
}

void TcpStore::tell(const StoreRequest& request) {
  Deadline deadline = Deadline::after(options_.timeout);
  send(encode(request), deadline);
}

std::string TcpStore::ask(const StoreRequest& request, Deadline& deadline) {
  send(encode(request), deadline);
  try {
    return receive(deadline);
  } catch (const std::bad_alloc&) {
    socket_.reset();  // as in lost()
    gave_up_ = true;
    throw;
  }
}

void TcpStore::set(std::string_view key, std::string_view value) {
  tell({.op = StoreOp::kSet, .key = key, .value = value});
}

std::string TcpStore::get(std::string_view key, std::chrono::milliseconds timeout) {
  return multi_get({std::string(key)}, timeout).front();
}

std::vector<std::string> TcpStore::multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  const std::int64_t timeout_ms = std::max<std::int64_t>(0, timeout.count());
  const bool forever = timeout == std::chrono::milliseconds::max();
  Deadline deadline = forever ? Deadline::never() : Deadline::after(timeout + kGrace);
  const std::string answer = ask(
      {.op = StoreOp::kGet, .timeout_ms = static_cast<std::uint64_t>(timeout_ms), .keys = {keys.begin(), keys.end()}},
      deadline);
  const std::optional<StoreValues> values = decode_values(answer, keys.size());
  if (!values) lost("its answer is malformed");
  if (values->status == StoreReply::kLost) throw_error(ErrorKind::kPeerLost, std::string(values->texts.front()));
  if (values->status == StoreReply::kMissing) {
    throw_error(ErrorKind::kTimeout, "no rank has set the store's key \"" + std::string(values->texts.front()) +
                                         "\" within " + std::to_string(timeout_ms) + " ms");
  }
  return {values->texts.begin(), values->texts.end()};
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t amount) {
  Deadline deadline = Deadline::after(options_.timeout);
  const StoreRequest request{.op = StoreOp::kAdd, .key = key, .amount = static_cast<std::uint64_t>(amount)};
  const std::optional<StoreSum> answer = decode_sum(ask(request, deadline));
  if (!answer) lost("its answer is malformed");
  if (answer->status == StoreReply::kNoNumber) {
    throw_error(ErrorKind::kInvalidArgument, "the store's key \"" + std::string(key) + "\" holds no number");
  }
  return static_cast<std::int64_t>(answer->sum);
}

void TcpStore::leave_will(const std::vector<std::string>& keys, std::string_view text) {
  tell({.op = StoreOp::kWill, .value = text, .keys = {keys.begin(), keys.end()}});
}

void TcpStore::await_others(std::chrono::milliseconds within) const noexcept {
  constexpr int kLookEveryMs = 10;
  if (!server_ || owner_ != ::getpid()) return;
  const std::size_t own = socket_ ? 1 : 0;
  for (Deadline deadline = Deadline::after(within); server_->clients() > own && !deadline.expired();) {
    ::poll(nullptr, 0, kLookEveryMs);
  }
}

void TcpStore::erase(std::string_view key) noexcept {
  try {
    tell({.op = StoreOp::kErase, .key = key});
  } catch (const std::exception&) {
    // A key that stays is never an error; a lost server shows at the next operation.
  }
}

}  // namespace tutti
