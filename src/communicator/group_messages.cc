#include "communicator/group_messages.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/interruption.h"
#include "base/secret.h"
#include "bootstrap/exchange.h"
#include "communicator/call_records.h"
#include "communicator/communicator_impl.h"

namespace tutti {
namespace {

// Of monitored_barrier()'s a part that it does not use: 2^62 and 2^61.
constexpr std::uint64_t kFormingTag = std::uint64_t{3} << 61;

}  // namespace

MessageHead::MessageHead(std::string_view text) : bytes(text.size()) {
  std::ranges::copy(text.substr(0, kFirstBytes), first.begin());
}

std::string text_of(const MessageHead& head, int rank, const std::string& what) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 32;  // bounds what a rank believes of another
  if (head.bytes > kMost) {
    throw_error(ErrorKind::kInternal, "rank " + std::to_string(rank) + " says that it gives " +
                                          std::to_string(head.bytes) + " bytes for " + what +
                                          ": use one version on all ranks");
  }
  std::string text(head.first.data(), std::min<std::size_t>(head.bytes, kFirstBytes));
  text.resize(head.bytes);
  return text;
}

std::uint64_t forming_tag(std::string_view id, std::string_view topic, std::string_view part) {
  const Digest digest = sha256(store_key(id, topic, part));
  std::uint64_t hash = 0;
  std::memcpy(&hash, digest.data(), sizeof hash);
  return kFormingTag | hash >> 3;
}

void post_forming(MessagePort& port, MessageOp& op, bool send, int peer, std::uint64_t tag, void* data,
                  std::size_t bytes) noexcept {
  const CallRecord record = record_of_message(send, bytes, DataType::kByte, tag);
  if (send) {
    port.post_send(op, peer, tag, data, bytes, record);
  } else {
    port.post_recv(op, peer, tag, data, bytes, record);
  }
}

void throw_forming_failed(const CommunicatorImpl& group, Outcome outcome, const std::string& what, bool formed) {
  throw_if_interrupted("the forming of " + what);  // the first: then the outcome is of no peer
  group.throw_if_unusable();
  FailureContext context;
  group.find_cause(outcome, context);
  throw_lost_rank(outcome, context, group.rank(), what, formed);
}

void throw_lost_rank(Outcome outcome, const FailureContext& context, int rank, const std::string& what, bool formed) {
  const std::string who = "rank " + std::to_string(outcome.peer) + " ";
  const std::string when = " while " + what + (formed ? " was in use" : " was forming");
  switch (outcome.status) {
    case Status::kPeerLost:
      throw_error(ErrorKind::kPeerLost,
                  who + (context.why_lost.empty() ? "died or cannot be reached any more" : context.why_lost) + when);
    case Status::kPeerLeft:
      throw_error(ErrorKind::kPeerLost, who + "has left it (it exited or destroyed it)" + when);
    case Status::kExhausted:
      throw_error(ErrorKind::kExhausted, "rank " + std::to_string(rank) + " has no memory for the messages" + when);
    default:
      throw_error(ErrorKind::kPeerLost,
                  who + "gave up" + when +
                      (context.reported.ok() ? "" : ": " + reported_text(context.reported, context.reported_reason)));
  }
}

}  // namespace tutti
