// What every transport gives: an ordered, reliable, non-blocking stream of bytes to one peer.
//
// A transport never sees a collective or a message boundary; framing and matching are channel/message_port.h's.
// Thread rule: one thread at a time uses a link (the message port's lock sees to it).
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/outcome.h"

namespace tutti {

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

// A link without a descriptor takes at least this much before it says "no room"; its reader rings the doorbell of a
// writer that may wait for room after every so many bytes.
inline constexpr std::size_t kLinkSlack = 4096;

// What a rank says when it fails or leaves. Transports do not read it; zeros: nothing.
using LastWords = std::array<std::byte, 72>;

class Link {
 public:
  virtual ~Link() = default;

  // Takes a prefix of `head` followed by `body` and returns how many bytes: 0 means "no room now", not an error. What
  // it has not taken is offered again before anything else.
  virtual std::size_t write_some(ConstBytes head, ConstBytes body) noexcept = 0;

  // Gives up to `into.size()` bytes and returns how many: 0 means "nothing now".
  virtual std::size_t read_some(MutableBytes into) noexcept = 0;

  // kOk, or why the link is dead: kPeerLost, or kExhausted if this rank has no memory for it. Bytes that arrived before
  // the end can still be read. Asked seldom, not every pass.
  virtual Status status() const noexcept = 0;

  // Of a dead link: what the peer gave to Transport::close(), if it ended so.
  virtual LastWords last_words() const noexcept { return {}; }

  // A descriptor that poll() finds readable when read_some() has something (and writable, when `write_some` returned
  // 0 and there is room again), unless the transport wakes for it: see on_news(). -1 where there is none: links that
  // ring the host's doorbell instead, and those that do not stand yet or any more.
  virtual int poll_fd() const noexcept { return -1; }

  // Whether there is something to read of which poll_fd() does not tell, and whether the peer has read all that was
  // written in a link without a descriptor. Asked in long waits only.
  virtual bool has_input() const noexcept { return false; }
  virtual bool is_drained() const noexcept { return false; }

  // After write_some() returned 0: whether poll_fd() tells when there is room again. If not, the transport wakes.
  virtual bool polls_for_room() const noexcept { return true; }
};

// One transport, as one communicator sees it: a folder under transport/ each.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const noexcept = 0;  // "shm", "tcp", "sim"

  // The link to `peer`; made when first asked for. Never blocks: a link that is still connecting accepts nothing
  // yet. Null if the transport cannot reach that rank.
  virtual Link* link(int peer) noexcept = 0;

  // Links that peers opened towards this rank since the last call; the port must read from them.
  // Returns how many were added to `peers` (ranks).
  virtual int accept_new(std::span<int> peers) noexcept = 0;

  // Whether links are made together with the peer: then they can be news, and a peer without one cannot be watched.
  virtual bool connects() const noexcept { return false; }

  // `wake` is called, on any thread and under locks of the transport's, when accept_new() has something, and when a
  // link has something to read or room, or has ended, and its descriptor does not tell. Not any more once on_news({})
  // has returned.
  virtual void on_news(std::function<void()> /*wake*/) {}

  // Why there is no link to `peer`, as the rest of a sentence that begins with its name and says what to do; empty when
  // no more is known than that the link has ended. Any thread, at any time.
  virtual std::string why_lost(int /*peer*/) const { return {}; }

  // What this rank itself has lacked for a link to `peer` that is not there, as a sentence's part; empty: nothing that
  // is known. Any thread, at any time.
  virtual std::string want_here(int /*peer*/) const { return {}; }

  // This rank has failed or left: nothing more is written or accepted. Peers read what has been written, then their
  // links die, with these words; so do the links of those that ask for one only later, for a while. Never blocks, and
  // takes no memory. Transports whose peers learn of it by other means need not do anything.
  virtual void close(Status /*why*/, const LastWords& /*words*/) noexcept {}

  // Behind close(), in a process that ends when this returns: whoever has a link has been told by then, as far as it
  // can be without waiting for a peer.
  virtual void finish_close() noexcept {}
};

}  // namespace tutti
