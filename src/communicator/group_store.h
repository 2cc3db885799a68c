// A store among some ranks of a group, in messages of the group: for the forming of a smaller group, which then asks no
// store of the job's.
//
// What is set is sent to the others, who keep it; so nobody serves, and a get() waits for what is on its way. Up to
// kMostDirect members send to each other. Of more, all send to the first and get from it, which passes on what they
// set, whenever it waits here itself: no connections that the group had no use for.
//
// It watches the ranks that it hears: every wait, and every look into it, ends by Error(kPeerLost) once one of them has
// died or left, or by the failure of the group. Its messages fail by themselves, and count in no metrics. But where a
// rank of this host has died or failed, a group waits for nobody any more, on no host. So if members of other hosts are
// to hear of it, the group fails, and by that they do.
//
// Ownership: holds the group. Thread rule: one thread; any number of them, of other ids, over one group.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/outcome.h"
#include "channel/message_port.h"
#include "communicator/group_messages.h"
#include "tutti/store.h"

namespace tutti {

class GroupStore final : public Store {
 public:
  // Among `members`, ranks of the group of which this one is one. `id`: equal on all of them. No two of them are under
  // way in another store of the same id, or have been in one that has not come to its end().
  GroupStore(std::shared_ptr<CommunicatorImpl> group, std::vector<int> members, const std::string& id);
  // Waits half a second at most until what this rank has set has left.
  ~GroupStore() override;
  GroupStore(const GroupStore&) = delete;
  GroupStore& operator=(const GroupStore&) = delete;

  int rank() const noexcept { return rank_; }  // among the members
  int size() const noexcept { return static_cast<int>(members_.size()); }

  void set(std::string_view key, std::string_view value) override;
  bool set_for(int reader, std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  // The sum of what has come so far.
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  void erase(std::string_view key) noexcept override;

  // Nothing is set any more. Returns when that holds for all members: none of them waits for another any more, and no
  // message is left. Throws Error(kTimeout) naming who has not come so far, and what a member has told of a failure.
  void end(std::chrono::milliseconds timeout);

 private:
  enum class Kind : std::uint8_t { kValue, kAmount, kEnd };
  // A member that this rank hears.
  struct Peer {
    int member = 0;
    bool ended = false;
    MessageHead head;
    std::string text;      // of a head that has come: the rest follows
    bool is_rest = false;  // what `op` receives
    MessageOp op;
  };
  // What is sent, as long as it has not left.
  struct Sending {
    std::string text;
    MessageHead head;
    std::deque<MessageOp> ops;  // which do not move
  };

  bool passes_on() const noexcept { return star_ && rank_ == 0; }
  std::string what() const;
  void expect(Peer& peer);
  void send(const std::string& text, int except = -1);
  void say(Kind kind, bool to_all, std::string_view key, std::string_view value);
  void take_in();
  void take_in(Peer& peer, const std::string& text);
  bool await(const std::function<bool()>& there, Deadline& deadline);
  void sleep(Deadline& deadline);
  void drop_sent() noexcept;
  void note_lost(Outcome outcome) noexcept;
  void note_want() noexcept;
  void tell_lost() noexcept;
  void flush(Deadline& deadline) noexcept;
  [[noreturn]] void throw_lost();

  const std::shared_ptr<CommunicatorImpl> group_;
  const std::vector<int> members_;
  const std::string id_;
  const int rank_;
  const bool star_;
  const std::uint64_t head_tag_, rest_tag_;
  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, std::int64_t, std::less<>> sums_;
  std::list<Peer> peers_;
  std::list<Sending> sent_;
  Outcome lost_;  // of a member that has not ended
  bool ended_ = false;
};

}  // namespace tutti
