// Where the threads of a rank sleep while they wait for messages: the host's doorbell, sockets, or both.
//
// With sockets to watch, a thread sleeps in poll(), and the ranks of its host ring its bell. Only where the system has
// no bells it looks at the host's rings every millisecond.
// Thread rule: any thread. The mutex guards the count of sleepers and is a leaf.
#pragma once

#include <mutex>
#include <vector>

#include "base/unique_fd.h"
#include "channel/host_channel.h"
#include "channel/message_port.h"

namespace tutti {

class GroupWaker final : public PortWaker {
 public:
  // `host` may be null (alone on its host); `host_ranks` are the communicator's ranks on this host, by index.
  GroupWaker(HostChannel* host, std::vector<int> host_ranks, int rank, int size);

  void sleep(const std::vector<pollfd>& fds, std::int64_t timeout_ns,
             const std::function<bool()>& still_idle) noexcept override;
  void nudge() noexcept override;
  void ring(int peer) noexcept override;
  Outcome check(int peer) noexcept override;

 private:
  void sleep_on_doorbell(std::int64_t timeout_ns, const std::function<bool()>& still_idle) noexcept;
  void count_sleeper(int by) noexcept;

  HostChannel* host_;
  std::vector<int> host_ranks_;
  std::vector<int> index_of_rank_;  // -1: on another host
  Bell* bell_ = nullptr;            // the host channel's, where there are sockets to watch, too
  UniqueFd nudge_fd_;
  std::mutex mutex_;
  int sleepers_ = 0;
};

}  // namespace tutti
