// One end of the TCP connection between two ranks, as the message port uses it.
//
// The link exists from the moment somebody asks for it; its socket comes later, from the I/O thread. Until then it
// accepts nothing and has nothing.
// Ownership: owns its socket once it has one; the socket is closed only by the destructor, so that the I/O thread may
// look at it or shut it down while it is in use.
// Thread rule: the Link members: one thread at a time (the port's lock). The others: the I/O thread.
#pragma once

#include <atomic>

#include "base/unique_fd.h"
#include "transport/link.h"

namespace tutti::tcp {

class TcpLink final : public Link {
 public:
  TcpLink() = default;
  ~TcpLink() override;
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  std::size_t write_some(ConstBytes head, ConstBytes body) noexcept override;
  std::size_t read_some(MutableBytes into) noexcept override;
  Status status() const noexcept override;
  int poll_fd() const noexcept override;

  // The connection stands.
  void attach(UniqueFd socket) noexcept;
  // There will be no connection, or the one that was is cut. Whoever polls the socket wakes up.
  void fail(Status status) noexcept;
  // The peer reads what has been written, then its end.
  void end_writing() noexcept;
  // Closes this process's descriptor only: in a forked child the connection is the parent's.
  void abandon() noexcept;

 private:
  void on_write_error(int fd) noexcept;

  std::atomic<int> fd_{-1};                  // release in attach(); pairs with the acquire loads of the link calls
  std::atomic<Status> status_{Status::kOk};  // publishes nothing but itself: relaxed everywhere
  bool write_failed_ = false;                // the port's lock
};

}  // namespace tutti::tcp
