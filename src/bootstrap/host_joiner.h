// A member's side of a forming host: connects to the leader, proves itself, maps the segment.
//
// Ownership: its socket and what it received, until the group takes it. Thread rule: one thread.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "base/unforked_fd.h"
#include "bootstrap/host_protocol.h"
#include "net/local_socket.h"

namespace tutti {

class HostJoiner {
 public:
  // `listener` is this rank's own. Nobody is answered there: while it is open, the leader knows that this rank comes.
  HostJoiner(const HostContext& context, UnforkedFd listener)
      : context_(context), pair_(context, context.request.rank), listener_(std::move(listener)) {}

  // The leader's verdict as it came over the socket; fills `group` when this rank is in it. Nothing if a step failed:
  // then the leader knows by the store that this rank is out, and its verdict comes by the store too. Throws
  // Error(kPeerLost) where the leader has ended.
  std::optional<HostVerdict> run(HostGroup& group);

  // What was wanting, if that is why run() gave nothing: of the system, or of the memory that came. Else empty.
  const std::string& wanting() const noexcept { return wanting_; }

  // This rank has said that it is in: the leader may count it, and its answer have been lost.
  bool is_counted() const noexcept { return acked_; }

  // What the connection to the leader failed of, an errno; 0 if it did not fail.
  int end_error() const noexcept { return end_error_; }

  // The leader's process, to be watched while waiting for the store; -1 when unknown.
  int leader_pidfd() const noexcept { return leader_.pidfd.get(); }

 private:
  SocketStatus connect();
  HostVerdict last_words();
  bool say(std::string_view bytes, std::span<const int> fds);
  std::optional<HostVerdict> listen();
  bool take_welcome(const HostWelcome& welcome, std::vector<UniqueFd> fds);
  bool map_and_ack(const HostWelcome& welcome);
  void wait_for_message();
  void build_group(const HostVerdict& verdict, HostGroup& group);
  void leave();

  struct Other {
    HostEntry entry;
    UniqueFd pidfd;
    UniqueFd arena;
  };

  const HostContext& context_;
  HostPair pair_;
  UnforkedFd listener_;
  HostEntry self_;
  UnforkedFd socket_;
  LocalPeer leader_;
  std::uint32_t batches_ = 0;  // that have come
  std::vector<Other> others_;  // this rank included, without descriptors
  UniqueFd segment_;
  std::uint64_t segment_bytes_ = 0;
  std::string wanting_;
  bool acked_ = false;
  int end_error_ = 0;
};

}  // namespace tutti
