// A message port against a peer that writes any frames: whatever comes, the port stays within its memory, and all its
// ops end.
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include "channel/farewell.h"
#include "channel/message_frame.h"
#include "channel/message_port.h"
#include "fuzz_main.h"

namespace tutti::fuzz {
namespace {

constexpr int kPeer = 1;
constexpr std::uint64_t kTag = 3;
constexpr int kTurnsToTheEnd = 600;  // enough for a port to ask after dead links

// Gives the fuzzer's bytes and takes everything, in pieces of changing sizes.
class HostileLink final : public Link {
 public:
  void feed(std::string_view bytes) { bytes_ = bytes; }
  void end(const LastWords& words) { words_ = words; }
  bool drained() const noexcept { return bytes_.empty(); }

  std::size_t write_some(ConstBytes head, ConstBytes body) noexcept override {
    return std::min(next_piece(), head.size() + body.size());
  }
  std::size_t read_some(MutableBytes into) noexcept override {
    const std::size_t n = std::min({into.size(), bytes_.size(), next_piece()});
    if (n != 0) std::memcpy(into.data(), bytes_.data(), n);
    bytes_.remove_prefix(n);
    return n;
  }
  Status status() const noexcept override { return words_ ? Status::kPeerLost : Status::kOk; }
  LastWords last_words() const noexcept override { return words_.value_or(LastWords{}); }

 private:
  std::size_t next_piece() noexcept {
    constexpr std::array<std::size_t, 4> kPieces = {104, 1, 4096, 33};
    return kPieces[turn_++ % kPieces.size()];
  }
  std::string_view bytes_;
  std::optional<LastWords> words_;
  std::size_t turn_ = 0;
};

class HostileTransport final : public Transport {
 public:
  std::string_view name() const noexcept override { return "hostile"; }
  Link* link(int /*peer*/) noexcept override { return &link_; }
  int accept_new(std::span<int> peers) noexcept override {
    if (accepted_) return 0;
    accepted_ = true;
    peers[0] = kPeer;
    return 1;
  }
  HostileLink& wire() noexcept { return link_; }

 private:
  HostileLink link_;
  bool accepted_ = false;
};

class SilentWaker final : public PortWaker {
 public:
  bool sleep(const std::vector<pollfd>&, std::int64_t, Sleeper&) noexcept override { return false; }
  void nudge() noexcept override {}
  void ring(int) noexcept override {}
  Outcome check(int) noexcept override { return kOkOutcome; }
};

CallRecord record(std::uint8_t call) {
  CallRecord r;
  r.call = call;
  r.dtype = static_cast<std::uint8_t>(DataType::kFloat32);
  return r;
}

// A receive or send with memory of its own, so that a byte too many is seen.
struct Post {
  explicit Post(std::size_t bytes) : memory(std::make_unique<std::byte[]>(bytes)), size(bytes) {}
  std::unique_ptr<std::byte[]> memory;
  std::size_t size;
  MessageOp op;
};

using Posts = std::vector<std::unique_ptr<Post>>;

void post(MessagePort& port, Posts& posts, unsigned what) {
  constexpr std::array<std::size_t, 4> kSizes = {0, 16, kEagerBytes, 3 * kFragmentBytes / 2};
  if (posts.size() >= 16) return;
  Post& p = *posts.emplace_back(std::make_unique<Post>(kSizes[what % 4]));
  const std::uint64_t tag = (what & 4) != 0 ? kTag : kTag + 1;
  if ((what & 8) != 0) {
    port.post_send(p.op, kPeer, tag, p.memory.get(), p.size, record(kCallSend));
  } else {
    port.post_recv(p.op, (what & 16) != 0 ? kAnySource : kPeer, tag, p.memory.get(), p.size, record(kCallRecv));
  }
}

FrameHeader header(FrameKind kind, std::uint64_t id, std::uint64_t bytes) {
  FrameHeader h;
  h.kind = kind;
  h.id = id;
  h.tag = kTag;
  h.bytes = bytes;
  h.record = record(kCallSend);
  return h;
}

std::string frame(FrameKind kind, std::uint64_t id, std::uint64_t bytes, std::size_t payload) {
  const FrameHeader h = header(kind, id, bytes);
  return std::string(reinterpret_cast<const char*>(&h), sizeof h) + std::string(payload, 'p');
}

std::string farewell(Outcome outcome, std::string_view reason) {
  const LastWords words = last_words(outcome, reason);
  return {reinterpret_cast<const char*>(words.data()), words.size()};
}

}  // namespace

// The first byte says how many bytes of steps follow, and whether the last of all are the peer's last words; the rest
// is what the peer writes, taken a part a step.
void run(std::string_view bytes) {
  if (bytes.empty()) return;
  std::optional<LastWords> words;
  if ((static_cast<unsigned char>(bytes[0]) & 128) != 0 && bytes.size() > sizeof(LastWords)) {
    std::memcpy(words.emplace().data(), bytes.data() + bytes.size() - sizeof(LastWords), sizeof(LastWords));
    bytes.remove_suffix(sizeof(LastWords));
  }
  const std::size_t count = std::min<std::size_t>(static_cast<unsigned char>(bytes[0]) % 32, bytes.size() - 1);
  const std::string_view steps = bytes.substr(1, count);
  std::string_view stream = bytes.substr(1 + count);
  HostileTransport transport;
  SilentWaker waker;
  Posts posts;  // outlive the port, which still holds them
  {
    MessagePort port(0, 2, {nullptr, &transport}, &waker, 1);
    const std::size_t part = stream.size() / (count + 1) + 1;
    for (std::size_t i = 0; i <= count; ++i) {
      const unsigned step = i < count ? static_cast<unsigned char>(steps[i]) : 0;
      if ((step & 32) != 0 && !posts.empty()) {
        port.cancel(posts[step % posts.size()]->op);
      } else if (i < count) {
        post(port, posts, step);
      }
      transport.wire().feed(stream.substr(0, part));
      for (int turn = 0; turn < 4096 && !transport.wire().drained() && port.progress(); ++turn) {
      }
      stream.remove_prefix(std::min(part, stream.size()));
    }
    if (words) transport.wire().end(*words);
    for (int turn = 0; words && turn < kTurnsToTheEnd; ++turn) port.progress();
    require(
        !words || std::ranges::all_of(posts, [](const auto& p) { return p->op.done() || p->op.peer == kAnySource; }),
        "every op of a peer ends with its link");
  }
  for (const auto& p : posts) require(p->op.done(), "every op ends with its port");
}

std::vector<std::string> seeds() {
  using namespace std::string_literals;
  const std::string receive_small = "\1\5"s;  // one receive of 16 bytes
  const std::string receive_large = "\1\7"s;
  const std::string send_large = "\1\17"s;
  return {receive_small + frame(FrameKind::kEager, 1, 16, 16),
          "\0"s + frame(FrameKind::kEager, 1, 16, 16) + frame(FrameKind::kBlank, 2, 0, 0),
          "\2\0\5"s + frame(FrameKind::kEager, 1, 16, 16),
          receive_large + frame(FrameKind::kAnnounce, 1, 3 * kFragmentBytes / 2, 0) +
              frame(FrameKind::kData, 1, 64, 64) + frame(FrameKind::kWithdraw, 1, 0, 0),
          "\2\7\40"s + frame(FrameKind::kAnnounce, 1, 3 * kFragmentBytes / 2, 0) + frame(FrameKind::kData, 1, 64, 64),
          "\1\4"s + frame(FrameKind::kAnnounce, 1, 0, 0) + frame(FrameKind::kData, 1, 0, 0),
          send_large + frame(FrameKind::kGrant, 1, 0, 0) + frame(FrameKind::kDecline, 1, 0, 0),
          send_large + frame(FrameKind::kRefuse, 1, sizeof(CallRecord), sizeof(CallRecord)),
          "\201\5"s + farewell({Status::kPeerLost, 1}, {}),
          "\201\5"s + farewell({Status::kAborted, 1}, "a reason")};
}

}  // namespace tutti::fuzz
