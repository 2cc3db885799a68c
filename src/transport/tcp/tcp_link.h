// One group's way from one rank to another: a part of the stream (stream.h) between their processes.
//
// The link exists from the moment somebody asks for it; its stream comes later, from the I/O thread. Until then it
// accepts nothing and has nothing.
// Ownership: keeps its stream until it is destroyed, so that the I/O thread may look at it while it is in use.
// Thread rule: the Link members: one thread at a time (the port's lock). The others: the I/O thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "transport/link.h"
#include "transport/tcp/stream.h"

namespace tutti::tcp {

class TcpLink final : public Link {
 public:
  TcpLink(Wake& wake, std::uint64_t window) : part_(wake, window) {}
  ~TcpLink() override;
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  std::size_t write_some(ConstBytes head, ConstBytes body) noexcept override;
  std::size_t read_some(MutableBytes into) noexcept override;
  Status status() const noexcept override;
  LastWords last_words() const noexcept override;
  int poll_fd() const noexcept override;
  bool has_input() const noexcept override;
  bool polls_for_room() const noexcept override { return !part_.awaits_credit; }

  // What comes for `inlet` in this stream is the link's, from here on. Null: what was expected will not come.
  // Not of a link that stands or has failed: its user may be reading what this changes.
  void expect(std::shared_ptr<Stream> stream, std::uint32_t inlet);
  // The peer expects likewise: the link stands.
  void attach(std::uint32_t far) noexcept;
  const std::shared_ptr<Stream>& stream() const noexcept { return stream_; }
  // Any thread: why the link has ended, if more is known.
  const char* why() const noexcept;
  // There will be no stream.
  void fail(Status status = Status::kPeerLost) noexcept;
  // The same: the peer has said so. Of a link that does not stand.
  void fail(const LastWords& words) noexcept;
  // The peer reads what has been written, then the link's end, with these words.
  void end_writing(const LastWords& words) noexcept;
  // In a forked child the connection is the parent's.
  void abandon() noexcept;

 private:
  void look_for_the_end(Stream& stream) noexcept;

  Part part_;
  std::shared_ptr<Stream> stream_;   // does not change any more once the link stands
  std::atomic<bool> stands_{false};  // release in attach(); pairs with the acquire loads of the link calls
  // Relaxed where the link stands: nothing but itself. Release where there will be no stream: publishes the words.
  std::atomic<Status> status_{Status::kOk};
};

}  // namespace tutti::tcp
