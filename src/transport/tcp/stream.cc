#include "transport/tcp/stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "net/tcp_socket.h"

namespace tutti::tcp {
namespace {

// What one read for a part moves for others at most, so that its caller gets to look at its other links.
constexpr std::size_t kMostForOthers = std::size_t{256} << 10;
// Laid into an inbox by one system call.
constexpr std::size_t kMostDirect = std::size_t{64} << 10;
// An empty inbox larger than this gives its memory back.
constexpr std::size_t kSmallInbox = std::size_t{8} << 10;

// (`bytes = {}` would empty it and keep its memory.)
void give_back(std::vector<std::byte>& bytes) noexcept { std::vector<std::byte>().swap(bytes); }

bool would_block(int error) noexcept { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS; }

std::uint64_t get(const std::byte* from, int bytes) noexcept {
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
  return value;
}

}  // namespace

void Wake::set(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

void Wake::operator()() noexcept {
  const std::lock_guard lock(mutex_);
  if (wake_) wake_();
}

void Part::reset() noexcept {
  inlet = far = 0;
  inbox.clear();
  inbox_begin = 0;
  announced = taken = credited = sent = 0;
  owed = 0;
  end_said = false;  // `awaits_credit` is a writer's, and nobody writes yet
  words = {};
  // relaxed: nobody else has it now
  ended.store(false, std::memory_order_relaxed);
  limit.store(window, std::memory_order_relaxed);
}

Lingering::Lingering(UniqueFd socket, std::vector<std::byte> rest)
    : socket_(std::move(socket)), rest_(std::move(rest)) {}

bool Lingering::over() noexcept {
  while (sent_ < rest_.size()) {
    const ssize_t sent = ::send(socket_.get(), rest_.data() + sent_, rest_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return !would_block(errno);
    sent_ += static_cast<std::size_t>(sent);
  }
  if (!std::exchange(ended_, true)) ::shutdown(socket_.get(), SHUT_WR);
  return has_arrived(socket_.get());
}

Stream::Stream(const StreamName& near, const StreamName& far, Care care)
    : near_(near), far_(far), care_(std::move(care)), fd_(-1) {
  spare_.reserve(kSpareBytes);
}

void Stream::adopt(UniqueFd socket) noexcept { fd_.store(socket.release(), std::memory_order_relaxed); }

Stream::~Stream() {
  UniqueFd socket(fd_.load(std::memory_order_relaxed));
  if (!socket || !writes_on()) {
    close_gently(std::move(socket));
    return;
  }
  rest_.erase(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(rest_begin_));
  Lingering end(std::move(socket), std::move(rest_));
  if (end.over()) return;
  try {
    care_.outlive(std::move(end));
  } catch (const std::exception&) {
    // No memory: it is closed, and what is under way may be lost.
  }
}

Stream::Header Stream::header(std::uint32_t to, Kind kind, std::size_t bytes) noexcept {
  Header header;
  put_u32(header.data(), to);
  put_u32(header.data() + 4, static_cast<std::uint32_t>(kind) << 24 | static_cast<std::uint32_t>(bytes));
  return header;
}

void Stream::add(Part& part) {
  const std::lock_guard lock(read_mutex_);
  parts_[part.inlet] = &part;
}

void Stream::open(Part& part, std::uint32_t far) noexcept {
  const std::lock_guard lock(write_mutex_);
  part.far = far;
}

void Stream::end(Part& part, const LastWords& words) noexcept {
  const std::lock_guard lock(write_mutex_);
  if (part.far == 0 || std::exchange(part.end_said, true)) return;
  control(part.far, Kind::kEnd, words);
}

void Stream::end(std::uint32_t far, const LastWords& words) noexcept {
  const std::lock_guard lock(write_mutex_);
  control(far, Kind::kEnd, words);
}

void Stream::remove(Part& part) noexcept {
  {
    const std::lock_guard lock(read_mutex_);
    parts_.erase(part.inlet);
    if (target_ == &part) target_ = nullptr;
  }
  end(part, {});
}

// Writing.

std::size_t Stream::write(Part& part, ConstBytes head, ConstBytes body) noexcept {
  const std::lock_guard lock(write_mutex_);
  part.awaits_credit = false;
  if (doubtful() || part.end_said || head.size() + body.size() == 0) return 0;
  try {
    return write_locked(part, head, body);
  } catch (const std::bad_alloc&) {
    starve_writing();
    return 0;
  }
}

std::size_t Stream::write_locked(Part& part, ConstBytes head, ConstBytes body) {
  if (!send_rest()) return 0;
  const std::size_t offered = head.size() + body.size();
  if (part.owed != 0) {
    const std::size_t gone = std::min(part.owed, offered);
    part.owed -= gone;
    return gone;
  }
  const std::uint64_t room = part.limit.load(std::memory_order_relaxed) - part.sent;
  const std::size_t bytes = std::min<std::uint64_t>({offered, room, kMostFrame});
  if (bytes == 0) {
    part.awaits_credit = true;
    return 0;
  }
  head = head.first(std::min(bytes, head.size()));
  body = body.first(bytes - head.size());
  const Header frame = header(part.far, Kind::kData, bytes);
  const std::array<ConstBytes, 3> pieces = {frame, head, body};
  std::array<iovec, 3> parts;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    parts[i] = {const_cast<std::byte*>(pieces[i].data()), pieces[i].size()};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    if (!would_block(errno)) write_failed_.store(true, std::memory_order_relaxed);
    return 0;
  }
  part.sent += bytes;
  auto gone = static_cast<std::size_t>(sent);
  const std::size_t of_payload = gone - std::min(gone, frame.size());
  if (of_payload == bytes) return bytes;
  part.owed = bytes - of_payload;
  for (const ConstBytes piece : pieces) {
    const std::size_t skip = std::min(gone, piece.size());
    keep_rest(piece.subspan(skip));
    gone -= skip;
  }
  send_rest();  // or tells the I/O thread: the writer may not come back
  return of_payload;
}

// Not for a part's bytes, so nobody waits for it to go.
void Stream::control(std::uint32_t to, Kind kind, ConstBytes payload) noexcept {
  std::array<std::byte, kHeaderBytes + kMostControl> bytes;
  const Header frame = header(to, kind, payload.size());
  std::ranges::copy(frame, bytes.begin());
  std::ranges::copy(payload, bytes.begin() + frame.size());
  if (doubtful()) return;
  try {
    keep_rest(ConstBytes(bytes).first(frame.size() + payload.size()));
    send_rest();
  } catch (const std::bad_alloc&) {
    starve_writing();
  }
}

// There is no memory for the rest of a frame that has begun, despite the spare: nothing can follow.
void Stream::starve_writing() noexcept {
  starved_.store(true, std::memory_order_relaxed);
  write_failed_.store(true, std::memory_order_relaxed);
  ::shutdown(fd(), SHUT_RDWR);
}

void Stream::keep_rest(ConstBytes bytes) {
  try {
    rest_.insert(rest_.end(), bytes.begin(), bytes.end());
  } catch (const std::bad_alloc&) {
    if (rest_is_spare_ || rest_.size() + bytes.size() > spare_.capacity()) throw;
    spare_.assign(rest_.begin(), rest_.end());
    rest_.swap(spare_);
    rest_is_spare_ = true;
    rest_.insert(rest_.end(), bytes.begin(), bytes.end());
  }
}

// All of it has gone.
void Stream::drop_rest() noexcept {
  rest_.clear();
  if (rest_is_spare_) {
    rest_.swap(spare_);
    rest_.clear();
    rest_is_spare_ = false;
  }
  if (rest_.capacity() > kSmallInbox) give_back(rest_);
  rest_begin_ = 0;
}

// False: some of it is still there, and the I/O thread sees to it.
bool Stream::send_rest() noexcept {
  while (rest_begin_ < rest_.size()) {
    const ssize_t sent =
        ::send(fd(), rest_.data() + rest_begin_, rest_.size() - rest_begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      if (!would_block(errno)) {
        write_failed_.store(true, std::memory_order_relaxed);
        has_rest_.store(false, std::memory_order_relaxed);
      } else if (!has_rest_.exchange(true, std::memory_order_relaxed)) {
        care_.flush_soon();
      }
      return false;
    }
    rest_begin_ += static_cast<std::size_t>(sent);
  }
  drop_rest();
  has_rest_.store(false, std::memory_order_relaxed);
  return true;
}

void Stream::flush() noexcept {
  const std::lock_guard lock(write_mutex_);
  if (!writes_on()) return;
  if (send_rest() && dead()) ::shutdown(fd(), SHUT_WR);
}

// Reading.

std::size_t Stream::read(Part& part, MutableBytes into) noexcept {
  if (into.empty()) return 0;
  std::size_t got = 0;
  bool owes_credit = false;
  std::array<std::byte, kCreditBytes> taken;
  {
    const std::lock_guard lock(read_mutex_);
    got = take(part, into);
    if (got == 0) got = receive(part, into);
    part.taken += got;
    owes_credit = part.taken - part.credited >= part.window / 4;
    if (owes_credit) part.credited = part.taken;
    put_u32(taken.data(), static_cast<std::uint32_t>(part.credited));
    put_u32(taken.data() + 4, static_cast<std::uint32_t>(part.credited >> 32));
  }
  if (owes_credit) {
    const std::lock_guard lock(write_mutex_);
    if (part.far != 0) control(part.far, Kind::kCredit, taken);
  }
  return got;
}

void Stream::take_in(Part& part) noexcept {
  const std::lock_guard lock(read_mutex_);
  receive(part, {});
}

bool Stream::over(Part& part) noexcept {
  const std::lock_guard lock(read_mutex_);
  if (!dead() && doubtful()) {
    // What the peer said before it went may still lie here unread, its reason for going among it.
    std::byte one;
    const ssize_t left = ::recv(fd(), &one, 1, MSG_PEEK | MSG_DONTWAIT);
    if (left <= 0) die();
  }
  // relaxed: set under the lock that is held
  return part.inbox.empty() && (dead() || part.ended.load(std::memory_order_relaxed));
}

LastWords Stream::last_words(const Part& part) noexcept {
  const std::lock_guard lock(read_mutex_);
  return part.words;
}

bool Stream::told(const Part& part) noexcept {
  const std::lock_guard lock(read_mutex_);
  // relaxed: set under the lock that is held
  return !part.inbox.empty() || part.ended.load(std::memory_order_relaxed) || dead();
}

std::size_t Stream::take(Part& part, MutableBytes into) noexcept {
  const std::size_t got = std::min(part.inbox.size() - part.inbox_begin, into.size());
  if (got == 0) return 0;
  std::memcpy(into.data(), part.inbox.data() + part.inbox_begin, got);
  part.inbox_begin += got;
  if (part.inbox_begin == part.inbox.size()) {
    part.inbox.clear();
    part.inbox_begin = 0;
    if (part.inbox.capacity() > kSmallInbox) give_back(part.inbox);
  } else if (part.inbox_begin > kMostDirect && part.inbox_begin >= part.inbox.size() / 2) {
    // More may come as fast as it is taken; each byte is moved once at most in the mean.
    part.inbox.erase(part.inbox.begin(), part.inbox.begin() + static_cast<std::ptrdiff_t>(part.inbox_begin));
    part.inbox_begin = 0;
  }
  return got;
}

std::size_t Stream::receive(Part& part, MutableBytes into) noexcept {
  std::size_t given = 0;  // which counts all the same: what follows it may lie in the inbox
  try {
    receive_all(part, into, given);
  } catch (const std::bad_alloc&) {  // for what has come for others, or behind that
    starve();
  }
  return given;
}

// `part` has nothing in its inbox, or `into` is empty.
void Stream::receive_all(Part& part, MutableBytes into, std::size_t& given) {
  for (std::size_t moved = 0; given == 0 && moved < kMostForOthers && !dead();) {
    // Of a frame that is known straight to where it is to go; what follows it is staged.
    const bool ours = target_ == &part;
    if (frame_left_ != 0 && ours && into.empty()) return;
    MutableBytes direct;
    if (frame_left_ != 0 && ours) direct = into.first(std::min<std::uint64_t>(into.size(), frame_left_));
    std::vector<std::byte>* const inbox = frame_left_ != 0 && !ours && target_ != nullptr ? &target_->inbox : nullptr;
    if (inbox != nullptr) {
      const std::size_t before = inbox->size();
      inbox->resize(before + std::min<std::uint64_t>(kMostDirect, frame_left_));
      direct = MutableBytes(*inbox).subspan(before);
    }
    const std::size_t got = read_socket(direct);
    const std::size_t straight = std::min(got, direct.size());
    if (inbox != nullptr) inbox->resize(inbox->size() - (direct.size() - straight));
    if (got == 0) break;
    if (inbox != nullptr) target_->wake();
    if (ours) given = straight;
    frame_left_ -= straight;
    staged_ += got - straight;
    moved += got;
    if (!sort(part, into, given)) die();
  }
}

// Into `direct`, then behind what is staged; how many bytes, 0: there are none now.
std::size_t Stream::read_socket(MutableBytes direct) noexcept {
  iovec places[2] = {{direct.data(), direct.size()}, {stage_.data() + staged_, stage_.size() - staged_}};
  msghdr message{};
  message.msg_iov = direct.empty() ? places + 1 : places;
  message.msg_iovlen = direct.empty() ? 1 : 2;
  ssize_t got = 0;
  do {
    got = ::recvmsg(fd(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got == 0 || !would_block(errno) || doubtful()) die();
  return 0;
}

// Gives all that is staged to whom it is for. False: the peer does not speak this protocol.
bool Stream::sort(Part& part, MutableBytes into, std::size_t& given) {
  std::size_t at = 0;
  while (at < staged_) {
    const ConstBytes rest = ConstBytes(stage_).subspan(at, staged_ - at);
    if (frame_left_ == 0) {
      const std::optional<std::size_t> used = begin_frame(rest);
      if (!used) return false;
      if (*used == 0) break;  // it has not come whole
      at += *used;
      continue;
    }
    std::size_t bytes = std::min<std::uint64_t>(rest.size(), frame_left_);
    if (target_ == &part && given < into.size()) {
      bytes = std::min(bytes, into.size() - given);
      std::memcpy(into.data() + given, rest.data(), bytes);
      given += bytes;
    } else if (target_ != nullptr) {
      target_->inbox.insert(target_->inbox.end(), rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(bytes));
      // Whoever reads for its own part goes on with that. A writer that wants a credit takes in what comes, and leaves.
      if (target_ != &part || into.empty()) target_->wake();
    }
    at += bytes;
    frame_left_ -= bytes;
  }
  std::memmove(stage_.data(), stage_.data() + at, staged_ - at);
  staged_ -= at;
  return true;
}

// How many bytes of `bytes` the frame's beginning has taken, 0 if there are too few; nothing if it makes no sense.
std::optional<std::size_t> Stream::begin_frame(ConstBytes bytes) {
  if (bytes.size() < kHeaderBytes) return 0;
  const auto inlet = static_cast<std::uint32_t>(get(bytes.data(), 4));
  const std::uint64_t word = get(bytes.data() + 4, 4);
  const std::uint64_t length = word & 0xffffff;
  const auto found = parts_.find(inlet);
  Part* const part = found != parts_.end() ? found->second : nullptr;
  switch (static_cast<Kind>(word >> 24)) {
    case Kind::kData:
      if (length > kMostFrame) return std::nullopt;
      target_ = part;
      frame_left_ = length;
      if (part == nullptr) return kHeaderBytes;
      part->announced += length;
      if (part->announced - part->taken > part->window) return std::nullopt;
      return kHeaderBytes;
    case Kind::kCredit:
      if (length != kCreditBytes) return std::nullopt;
      if (bytes.size() < kHeaderBytes + kCreditBytes) return 0;
      if (part != nullptr) {
        part->limit.store(get(bytes.data() + kHeaderBytes, 8) + part->window, std::memory_order_relaxed);
        part->wake();
      }
      return kHeaderBytes + kCreditBytes;
    case Kind::kEnd:
      if (length != sizeof(LastWords)) return std::nullopt;
      if (bytes.size() < kHeaderBytes + sizeof(LastWords)) return 0;
      if (part != nullptr) {
        std::ranges::copy(bytes.subspan(kHeaderBytes, sizeof(LastWords)), part->words.begin());
        part->ended.store(true, std::memory_order_relaxed);
        part->wake();
      }
      return kHeaderBytes + sizeof(LastWords);
    case Kind::kWant:
      if (length != 0 || inlet != kNoInlet) return std::nullopt;
      why_.store("has no memory left for what is sent to it", std::memory_order_release);
      return kHeaderBytes;
  }
  return std::nullopt;
}

void Stream::say_want(int fd) noexcept {
  const Header frame = header(kNoInlet, Kind::kWant, 0);
  ::send(fd, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::vector<std::byte> Stream::end_frame(std::uint32_t far, const LastWords& words) {
  std::vector<std::byte> bytes(kHeaderBytes + words.size());
  std::ranges::copy(words, std::ranges::copy(header(far, Kind::kEnd, words.size()), bytes.begin()).out);
  return bytes;
}

// Nothing more is read. What was to be sent still is, and why, last of all: only then is the end.
void Stream::starve() noexcept {
  starved_.store(true, std::memory_order_relaxed);
  {
    const std::lock_guard lock(write_mutex_);
    control(kNoInlet, Kind::kWant, {});
    dead_.store(true, std::memory_order_relaxed);
    if (!has_rest_.load(std::memory_order_relaxed)) ::shutdown(fd(), SHUT_WR);
  }
  for (const auto& [inlet, part] : parts_) part->wake();
}

// Nothing is left to read, or nothing that makes sense. Those at the other end are to know it too.
void Stream::die() noexcept {
  dead_.store(true, std::memory_order_relaxed);
  ::shutdown(fd(), SHUT_RDWR);
  for (const auto& [inlet, part] : parts_) part->wake();
}

void Stream::cut(const char* why) noexcept {
  why_.store(why, std::memory_order_release);  // before the end: whoever sees that asks why
  ::shutdown(fd(), SHUT_RDWR);
}

void Stream::abandon() noexcept { UniqueFd(fd_.exchange(-1, std::memory_order_relaxed)); }

}  // namespace tutti::tcp
