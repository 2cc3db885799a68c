// What goes between ranks of a group while something forms in it: how its messages are named and cut, and what their
// failures mean. For group_bootstrap.h and group_store.h.
//
// Thread rule: functions; values of one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/outcome.h"
#include "communicator/failure.h"

namespace tutti {

class CommunicatorImpl;
class MessagePort;
struct MessageOp;

// What is to be said begins in a message of one size, for the receiver knows no other. The rest comes behind it.
inline constexpr std::size_t kHeadBytes = 1024, kFirstBytes = kHeadBytes - sizeof(std::uint64_t);
struct MessageHead {
  MessageHead() = default;
  explicit MessageHead(std::string_view text);

  std::uint64_t bytes = 0;
  std::array<char, kFirstBytes> first{};
};
static_assert(sizeof(MessageHead) == kHeadBytes);

// As much of the text as a head that has come holds, as long as the whole. Throws Error(kInternal), if it is longer
// than anybody means, saying of which rank and of `what` it is.
std::string text_of(const MessageHead& head, int rank, const std::string& what);

// Of what forms under `id`, and of no call.
std::uint64_t forming_tag(std::string_view id, std::string_view topic, std::string_view part);

void post_forming(MessagePort& port, MessageOp& op, bool send, int peer, std::uint64_t tag, void* data,
                  std::size_t bytes) noexcept;

// What the end of a message to or from a peer means for `what`: "'id' of group 'name'", which forms or has `formed`.
[[noreturn]] void throw_forming_failed(const CommunicatorImpl& group, Outcome outcome, const std::string& what,
                                       bool formed = false);
// The same where the group itself has not failed; `context`: what CommunicatorImpl::find_cause() found of outcome.peer;
// `rank` is this one.
[[noreturn]] void throw_lost_rank(Outcome outcome, const FailureContext& context, int rank, const std::string& what,
                                  bool formed = false);

}  // namespace tutti
