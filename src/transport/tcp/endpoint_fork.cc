// An endpoint where its process forks. The child has copies of all sockets, and the kernel ends a connection when its
// last copy goes: peers would take a process that was killed for alive as long as a child of it lives.
#include <poll.h>

#include "transport/tcp/endpoint.h"

namespace tutti::tcp {
namespace {

constexpr int kMostTriesToHold = 200;  // a millisecond apart: what is done under the locks takes microseconds

}  // namespace

// By trying: POSIX lets a thread try a lock that it holds itself, as one does whose handler of a signal forks.
bool Endpoint::hold_for_fork() noexcept {
  for (int i = 0; i < kMostTriesToHold; ++i) {
    if (mutex_.try_lock()) {
      if (lingering_mutex_.try_lock()) return true;
      mutex_.unlock();
    }
    ::poll(nullptr, 0, 1);
  }
  return false;
}

void Endpoint::let_go() noexcept {
  lingering_mutex_.unlock();
  mutex_.unlock();
}

// Nothing but close(): no memory, and no shutdown(), which the parent's connection would feel.
void Endpoint::close_copies() noexcept {
  listener_.reset();
  for (const Known& known : streams_) {
    if (const auto stream = known.stream.lock()) stream->abandon();
  }
  for (Stranger& stranger : strangers_) stranger.handshake.take_socket();
  for (Parting& parting : partings_) parting.dial.take_socket();
  for (Outlived& outlived : lingering_) outlived.socket.abandon();
  for (const Member* const member : members_) {
    for (const auto& peer : member->peers) {
      if (peer->dial) peer->dial->take_socket();
    }
  }
}

}  // namespace tutti::tcp
