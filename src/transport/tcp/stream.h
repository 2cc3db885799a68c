// One connection between two processes, shared by all groups of which both have ranks.
//
// Each group's link has a part of it, in both directions. What travels: frames of eight bytes (for which inlet, what,
// how long) and a payload. An inlet is the number by which the peer addresses a part; each end chooses those of its
// own.
//
//   data     payload             bytes of the part
//   credit   how many bytes      taken out of the part since its beginning, by whoever sends this
//   end      last words          nothing more comes in the part
//   want                         for no inlet: this end of the stream has no memory for what comes, and all parts end
//
// No part stops another. Whoever reads, for whatever part, takes what comes for the others too and lays it into their
// inboxes; a sender may be `window` bytes ahead of what the part's reader has taken, so an inbox is bounded. A frame
// that does not fit into the socket at once is copied and belongs to the stream: the I/O thread sees to its end, even
// if its writer never comes back. The writer is told that its bytes have gone when they have.
//
// Want of memory ends the stream, for all its parts; but for the rest of a frame there is always some.
//
// No byte that could be given to a part is left where poll() does not show it and its group does not know of it: what
// is read is sorted before the reader returns, and a group is woken for what is laid into its inbox.
//
// Ownership: shared by the parts' links; owns its socket, which with the last goes to whoever outlives the stream
// (Lingering), and is closed when nothing can be lost any more.
// Thread rule: any thread may call any member. read_mutex_ comes before a group's waker; write_mutex_ is a leaf and may
// be taken under read_mutex_.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/unique_fd.h"
#include "transport/link.h"
#include "transport/tcp/handshake_messages.h"

namespace tutti::tcp {

// Wakes a group's sleepers, as long as there is somebody to wake them. Any thread.
class Wake {
 public:
  void set(std::function<void()> wake);
  void operator()() noexcept;

 private:
  std::mutex mutex_;  // held while `wake_` runs: once set() has returned, what was there before is not called any more
  std::function<void()> wake_;
};

// A link's part of a stream; the stream's own but for the constants.
struct Part {
  Part(Wake& w, std::uint64_t bytes) : wake(w), window(bytes), limit(bytes) {}

  // As it was made: nothing that came in one stream is left for another. Only while it is in none.
  void reset() noexcept;

  Wake& wake;
  const std::uint64_t window;  // equal at both ends
  std::uint32_t inlet = 0;     // of this end; set before add()
  std::uint32_t far = 0;       // of the peer's end; 0 until open()

  // Under the stream's read_mutex_.
  std::vector<std::byte> inbox;
  std::size_t inbox_begin = 0;
  std::uint64_t announced = 0;  // bytes of frames that have come or begun to come
  std::uint64_t taken = 0;
  std::uint64_t credited = 0;
  LastWords words{};               // the peer's
  std::atomic<bool> ended{false};  // the peer has said so; relaxed: what came before is guarded by the mutex

  // Under its write_mutex_.
  std::uint64_t sent = 0;
  std::size_t owed = 0;  // of bytes offered and not yet reported as gone, how many the stream has copied
  bool end_said = false;
  bool awaits_credit = false;  // the last write stopped for that

  std::atomic<std::uint64_t> limit;  // of `sent`; relaxed: publishes nothing but itself
};

// The socket of a stream that nobody uses any more, while what was written is on its way. Were it closed at once, a
// credit that comes behind would have the kernel reset the connection, and forget what the peer has no room for yet.
class Lingering {
 public:
  // `rest`: to be sent before the end.
  Lingering(UniqueFd socket, std::vector<std::byte> rest);
  // Goes on, without waiting. True when nothing can be lost any more: it may be closed.
  bool over() noexcept;
  // In a forked child: closes the copy of the socket, and no more.
  void abandon() noexcept { socket_.reset(); }

 private:
  UniqueFd socket_;
  std::vector<std::byte> rest_;
  std::size_t sent_ = 0;
  bool ended_ = false;
};

class Stream {
 public:
  // What the I/O thread does for streams; both are called from any thread.
  struct Care {
    std::function<void()> flush_soon;        // calls flush() when the socket has room; under write_mutex_
    std::function<void(Lingering)> outlive;  // asks until it is over, then closes it
  };
  // `near`, `far`: names of the ends.
  Stream(const StreamName& near, const StreamName& far, Care care);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Once, before anything of it is used but add().
  void adopt(UniqueFd socket) noexcept;

  const StreamName& near() const noexcept { return near_; }
  const StreamName& far() const noexcept { return far_; }

  // From here on what comes for part.inlet is kept.
  void add(Part& part);
  // The peer's inlet is known: the part can be written.
  void open(Part& part, std::uint32_t far) noexcept;
  // Nothing more is written in this part; the peer reads what was, then its end.
  void end(Part& part, const LastWords& words) noexcept;
  // The same for a part that has none here: the peer has agreed to it only now.
  void end(std::uint32_t far, const LastWords& words) noexcept;
  // The part is not touched any more.
  void remove(Part& part) noexcept;

  // As Link's.
  std::size_t write(Part& part, ConstBytes head, ConstBytes body) noexcept;
  std::size_t read(Part& part, MutableBytes into) noexcept;
  // Reads what has come, into the inboxes, up to a frame for this part: its reader has a place for that.
  void take_in(Part& part) noexcept;
  // Whether nothing more can be read from the part, now or later.
  bool over(Part& part) noexcept;
  LastWords last_words(const Part& part) noexcept;
  // Whether something lies here for the part, its end among it. Whoever has laid it here has woken its group.
  bool told(const Part& part) noexcept;

  // relaxed: whoever acts on it takes a lock first, or polls once too often.
  bool dead() const noexcept { return dead_.load(std::memory_order_relaxed); }
  // Dead, because this end had no memory for what came.
  bool starved() const noexcept { return starved_.load(std::memory_order_relaxed); }
  bool doubtful() const noexcept { return dead() || write_failed_.load(std::memory_order_relaxed); }
  int fd() const noexcept { return fd_.load(std::memory_order_relaxed); }

  // The I/O thread's: the rest of a frame waits for room in the socket.
  bool has_rest() const noexcept { return has_rest_.load(std::memory_order_relaxed) && writes_on(); }
  void flush() noexcept;

  // Ends the connection: readers find its end after what has arrived. `why`, a literal: see Transport::why_lost.
  void cut(const char* why) noexcept;
  // Empty if it is not known.
  const char* why() const noexcept { return why_.load(std::memory_order_acquire); }
  // To the other end of a stream that could not be made here.
  static void say_want(int fd) noexcept;
  // The whole of a stream whose only part has ended before it was made.
  static std::vector<std::byte> end_frame(std::uint32_t far, const LastWords& words);
  // Closes this process's descriptor only: in a forked child the connection is the parent's.
  void abandon() noexcept;

 private:
  enum class Kind : std::uint8_t { kData, kCredit, kEnd, kWant };
  static constexpr std::uint32_t kNoInlet = 0;
  static constexpr std::size_t kHeaderBytes = 8;
  static constexpr std::size_t kCreditBytes = 8;
  static constexpr std::size_t kMostControl = sizeof(LastWords);
  static constexpr std::size_t kMostFrame = std::size_t{544} << 10;  // a fragment of a message, and its header
  // And some frames for no part's bytes.
  static constexpr std::size_t kSpareBytes = kMostFrame + (std::size_t{16} << 10);
  using Header = std::array<std::byte, kHeaderBytes>;
  static Header header(std::uint32_t to, Kind kind, std::size_t bytes) noexcept;

  // What has begun to be written is written to its end.
  bool writes_on() const noexcept {
    return !doubtful() || (starved() && !write_failed_.load(std::memory_order_relaxed));
  }
  std::size_t write_locked(Part& part, ConstBytes head, ConstBytes body);
  void control(std::uint32_t to, Kind kind, ConstBytes payload) noexcept;
  void keep_rest(ConstBytes bytes);
  void drop_rest() noexcept;
  bool send_rest() noexcept;

  std::size_t take(Part& part, MutableBytes into) noexcept;
  std::size_t receive(Part& part, MutableBytes into) noexcept;
  void receive_all(Part& part, MutableBytes into, std::size_t& given);
  std::size_t read_socket(MutableBytes direct) noexcept;
  bool sort(Part& part, MutableBytes into, std::size_t& given);
  std::optional<std::size_t> begin_frame(ConstBytes bytes);
  void starve() noexcept;
  void starve_writing() noexcept;
  void die() noexcept;

  const StreamName near_;
  const StreamName far_;
  const Care care_;
  std::atomic<int> fd_;               // relaxed: changes only where nobody else uses the stream any more
  std::atomic<bool> dead_{false};     // relaxed: see dead()
  std::atomic<bool> starved_{false};  // relaxed: who comes to see it late says less of why the stream has ended
  // relaxed: set under write_mutex_, which writers hold; a reader that sees it late finds the socket's end itself
  std::atomic<bool> write_failed_{false};
  // relaxed: changes under write_mutex_; what the I/O thread is to see of it comes with flush_soon(), a system call
  std::atomic<bool> has_rest_{false};

  std::mutex read_mutex_;  // guards what follows, and each part's side of it
  std::unordered_map<std::uint32_t, Part*> parts_;
  std::array<std::byte, 4096> stage_;  // read ahead; sorted out, but for a header that has not come whole
  std::size_t staged_ = 0;
  std::uint64_t frame_left_ = 0;
  Part* target_ = nullptr;  // whom the frame is for; null: nobody any more

  std::mutex write_mutex_;  // guards what follows, and each part's side of it
  std::vector<std::byte> rest_;
  std::size_t rest_begin_ = 0;
  std::vector<std::byte> spare_;  // takes the place of rest_ where there is no memory for it; untouched until then
  bool rest_is_spare_ = false;

  std::atomic<const char*> why_{""};  // release: what it points at is constant; pairs with the acquire in why()
};

}  // namespace tutti::tcp
