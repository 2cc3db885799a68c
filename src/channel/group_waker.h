// Where the threads of a rank sleep while they wait for messages: the host's doorbell, sockets, or both.
//
// With sockets to watch, a thread sleeps in poll(), and the ranks of its host ring its bell. Only where the system has
// no bells, or no descriptor, it looks up every millisecond. Bell and eventfd are the process's (channel/berths.h).
// Thread rule: any thread. The mutex guards the sleepers; the berths' is taken under it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/rank_map.h"
#include "base/unique_fd.h"
#include "channel/host_channel.h"
#include "channel/message_port.h"

namespace tutti {

class GroupWaker final : public PortWaker {
 public:
  // `host` may be null (alone on its host).
  GroupWaker(HostChannel* host, const RankMap& map, int rank);

  bool sleep(const std::vector<pollfd>& fds, std::int64_t timeout_ns, Sleeper& sleeper) noexcept override;
  void nudge() noexcept override;
  void ring(int peer) noexcept override;
  void begin_publishing() noexcept override;
  void end_publishing() noexcept override;
  Outcome check(int peer) noexcept override;
  // A group of several hosts: what check() and the waits of the host's channel ask besides, whose answer names a rank
  // of the group. See HostChannel::look_elsewhere(). Before the first call.
  void look_elsewhere(const std::function<Outcome()>& look);

 private:
  bool sleep_on_doorbell(std::int64_t timeout_ns, Sleeper& sleeper) noexcept;
  bool sleep_in_poll(std::vector<pollfd>& all, std::int64_t timeout_ns, Sleeper& sleeper) noexcept;
  template <class Nap, class Rung>
  bool sleep_whole(std::int64_t timeout_ns, Sleeper& sleeper, const Nap& nap, const Rung& rung) noexcept;
  void count_sleeper(int by) noexcept;
  bool is_here(int peer) const noexcept { return map_.together(rank_, peer); }

  HostChannel* host_;
  const RankMap map_;
  const int rank_;
  bool polls_ = false;                       // there are sockets to watch
  std::function<Outcome()> look_elsewhere_;  // empty: there is nothing else
  std::atomic<std::int64_t> looked_ns_{0};   // when it was last asked; relaxed: asking twice does no harm
  std::mutex mutex_;                         // guards what follows
  int sleepers_ = 0;
  UniqueFd nudge_fd_;           // while somebody sleeps in poll()
  std::unique_ptr<Bell> bell_;  // likewise
};

}  // namespace tutti
