#include "transport/shm/ring.h"

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

// Between two publications of a long copy: long enough that the stores of the counters do not matter, a fraction of
// the ring so that both sides copy at once.
constexpr std::size_t kPieceBytes = 16384;

std::size_t piece_bytes(std::size_t capacity) noexcept {
  return std::min(kPieceBytes, std::max<std::size_t>(capacity / 4, 1));
}

}  // namespace

RingWriter::RingWriter(std::byte* memory, std::size_t capacity) noexcept
    : header_(reinterpret_cast<RingHeader*>(memory)), data_(memory + sizeof(RingHeader)), capacity_(capacity) {}

// Free bytes, at most `wanted` of which matter: the shared counter is read only when the known room is less.
std::size_t RingWriter::room(std::size_t wanted) noexcept {
  std::size_t free = capacity_ - static_cast<std::size_t>(head_ - seen_tail_);
  if (free >= wanted) return free;
  // acquire: the reader has copied the bytes below `tail` out before we overwrite them; pairs with the release of
  // `tail` in RingReader::read, in another process.
  const std::uint64_t tail = header_->tail.load(std::memory_order_acquire);
  if (tail - seen_tail_ > head_ - seen_tail_) {  // went back, or passed what was written
    broken_ = true;
    return 0;
  }
  seen_tail_ = tail;
  return capacity_ - static_cast<std::size_t>(head_ - seen_tail_);
}

void RingWriter::put(ConstBytes bytes) noexcept {
  const std::size_t at = static_cast<std::size_t>(head_) & (capacity_ - 1);
  const std::size_t first = std::min(bytes.size(), capacity_ - at);
  std::memcpy(data_ + at, bytes.data(), first);
  if (first < bytes.size()) std::memcpy(data_, bytes.data() + first, bytes.size() - first);
  head_ += bytes.size();
}

std::size_t RingWriter::write(ConstBytes head, ConstBytes body) noexcept {
  if (broken_) return 0;
  const std::size_t wanted = head.size() + body.size();
  const std::size_t total = std::min(wanted, room(wanted));
  if (total == 0) return 0;
  const std::size_t piece = piece_bytes(capacity_);
  std::size_t done = std::min(total, head.size());
  if (done != 0) put(head.first(done));
  do {
    const std::size_t n = std::min(piece, total - done);
    if (n != 0) put(body.subspan(done - head.size(), n));
    done += n;
    // release: publishes the bytes below `head`; pairs with the acquire in RingReader::available, in another process.
    header_->head.store(head_, std::memory_order_release);
  } while (done < total);
  return total;
}

bool RingWriter::drained() const noexcept {
  // acquire: what the reader has published before is visible; pairs with the release in RingReader::read().
  return header_->tail.load(std::memory_order_acquire) == head_;
}

RingReader::RingReader(std::byte* memory, std::size_t capacity) noexcept
    : header_(reinterpret_cast<RingHeader*>(memory)), data_(memory + sizeof(RingHeader)), capacity_(capacity) {}

std::size_t RingReader::available() noexcept {
  if (seen_head_ != tail_) return static_cast<std::size_t>(seen_head_ - tail_);
  // acquire: the bytes below `head` are there; pairs with the release of `head` in RingWriter::write.
  const std::uint64_t head = header_->head.load(std::memory_order_acquire);
  if (head - tail_ > capacity_) {  // went back, or more than fits
    broken_ = true;
    return 0;
  }
  seen_head_ = head;
  return static_cast<std::size_t>(head - tail_);
}

bool RingReader::empty() const noexcept {
  // acquire: as in available().
  return seen_head_ == tail_ && header_->head.load(std::memory_order_acquire) == tail_;
}

std::size_t RingReader::read(MutableBytes into) noexcept {
  if (broken_) return 0;
  const std::size_t piece = piece_bytes(capacity_);
  std::size_t done = 0;
  while (done < into.size()) {
    const std::size_t n = std::min({available(), piece, into.size() - done});
    if (n == 0) break;
    const std::size_t at = static_cast<std::size_t>(tail_) & (capacity_ - 1);
    const std::size_t first = std::min(n, capacity_ - at);
    std::memcpy(into.data() + done, data_ + at, first);
    if (first < n) std::memcpy(into.data() + done + first, data_, n - first);
    done += n;
    tail_ += n;
    // release: our loads of these bytes come before the writer's reuse of their place; pairs with the acquire in
    // RingWriter::room, in another process.
    header_->tail.store(tail_, std::memory_order_release);
  }
  return done;
}

}  // namespace tutti
