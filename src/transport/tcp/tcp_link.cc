#include "transport/tcp/tcp_link.h"

#include <utility>

namespace tutti::tcp {

TcpLink::~TcpLink() {
  if (stream_ != nullptr) stream_->remove(part_);
}

std::size_t TcpLink::write_some(ConstBytes head, ConstBytes body) noexcept {
  if (!stands_.load(std::memory_order_acquire) || status() != Status::kOk) return 0;
  std::size_t gone = stream_->write(part_, head, body);
  if (gone == 0 && part_.awaits_credit) {
    stream_->take_in(part_);  // it may lie in the socket
    gone = stream_->write(part_, head, body);
  }
  if (gone == 0) look_for_the_end(*stream_);
  return gone;
}

std::size_t TcpLink::read_some(MutableBytes into) noexcept {
  if (!stands_.load(std::memory_order_acquire) || into.empty()) return 0;
  const std::size_t got = stream_->read(part_, into);
  if (got == 0) look_for_the_end(*stream_);
  return got;
}

// The link is dead when nothing is left to read.
void TcpLink::look_for_the_end(Stream& stream) noexcept {
  // relaxed: whether it has ended is asked again, under a lock
  if (!stream.doubtful() && !part_.ended.load(std::memory_order_relaxed)) return;
  if (!stream.over(part_)) return;
  status_.store(stream.starved() ? Status::kExhausted : Status::kPeerLost, std::memory_order_relaxed);
}

Status TcpLink::status() const noexcept { return status_.load(std::memory_order_relaxed); }

LastWords TcpLink::last_words() const noexcept {
  if (stands_.load(std::memory_order_acquire)) return stream_->last_words(part_);
  // acquire: pairs with the release in either fail()
  return status_.load(std::memory_order_acquire) != Status::kOk ? part_.words : LastWords{};
}

// A dead socket is always ready: whoever polled it would never sleep.
int TcpLink::poll_fd() const noexcept {
  if (!stands_.load(std::memory_order_acquire) || status() != Status::kOk) return -1;
  // relaxed: what follows from either is told to the group's sleepers
  if (stream_->dead() || part_.ended.load(std::memory_order_relaxed)) return -1;
  return stream_->fd();
}

bool TcpLink::has_input() const noexcept {
  return stands_.load(std::memory_order_acquire) && status() == Status::kOk && stream_->told(part_);
}

void TcpLink::expect(std::shared_ptr<Stream> stream, std::uint32_t inlet) {
  if (stream_ != nullptr) stream_->remove(part_);
  part_.reset();
  stream_ = std::move(stream);
  part_.inlet = inlet;
  if (stream_ != nullptr) stream_->add(part_);
}

void TcpLink::attach(std::uint32_t far) noexcept {
  stream_->open(part_, far);
  stands_.store(true, std::memory_order_release);
}

// release: publishes that there are no words (expect() has cleared them); pairs with last_words().
void TcpLink::fail(Status status) noexcept { status_.store(status, std::memory_order_release); }

void TcpLink::fail(const LastWords& words) noexcept {
  part_.words = words;
  status_.store(Status::kPeerLost, std::memory_order_release);  // publishes the words; pairs with last_words()
}

const char* TcpLink::why() const noexcept { return stands_.load(std::memory_order_acquire) ? stream_->why() : ""; }

void TcpLink::end_writing(const LastWords& words) noexcept {
  if (stands_.load(std::memory_order_relaxed)) stream_->end(part_, words);
}

void TcpLink::abandon() noexcept {
  if (stream_ != nullptr) stream_->abandon();
  // What remains is the parent's, its locks among it.
  new std::shared_ptr<Stream>(std::move(stream_));
}

}  // namespace tutti::tcp
