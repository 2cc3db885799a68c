// A smaller group of those who are still there.
//
// Every survivor signs in at the store and waits for the sign-in of all old ranks that are not known to be dead, at
// most `timeout`. Whoever is done first publishes the ranks it has seen; all others take that list. A rank that signed
// in too late is not on it and raises.
#include <algorithm>
#include <charconv>
#include <string_view>

#include "bootstrap/exchange.h"
#include "communicator/communicator_impl.h"

namespace tutti {
namespace {

bool known_dead(HostChannel* host, const std::vector<int>& host_ranks, int rank) {
  const auto found = std::find(host_ranks.begin(), host_ranks.end(), rank);
  return host != nullptr && found != host_ranks.end() && host->died(static_cast<int>(found - host_ranks.begin()));
}

// "0 2 3 " as written below. Not by a stream: those are the one part of the C++ library that fails where two copies of
// it meet in a process, as with a toolchain that links its own into libtutti.
std::vector<int> read_ranks(std::string_view list) {
  std::vector<int> ranks;
  for (std::size_t end = 0; (end = list.find(' ')) != std::string_view::npos; list.remove_prefix(end + 1)) {
    int rank = 0;
    std::from_chars(list.data(), list.data() + end, rank);
    ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

std::shared_ptr<Communicator> CommunicatorImpl::shrink(Store& store, const std::string& id,
                                                       std::chrono::milliseconds timeout, std::vector<int>* members) {
  throw_if_forked();
  abort("the group is being shrunk");
  Deadline deadline = Deadline::after(effective(timeout));
  store.set(store_key(id, "here", std::to_string(rank_)), "1");
  std::vector<int> present;
  for (int r = 0; r < size_; ++r) {
    if (r != rank_ && known_dead(topology_.host.get(), topology_.host_ranks, r)) continue;
    const std::chrono::milliseconds left(std::max<std::int64_t>(1, deadline.remaining_ns() / 1'000'000));
    try {
      store.get(store_key(id, "here", std::to_string(r)), left);
      present.push_back(r);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kTimeout) throw;
    }
  }
  const std::string list_key = store_key(id, "members");
  if (store.add(store_key(id, "first"), 1) == 1) {
    std::string list;
    for (const int r : present) list += std::to_string(r) + " ";
    store.set(list_key, list);
  }
  present = read_ranks(store.get(list_key, effective(timeout)));
  const auto self = std::find(present.begin(), present.end(), rank_);
  if (self == present.end()) {
    throw_error(ErrorKind::kTimeout, "shrink: rank " + std::to_string(rank_) +
                                         " came after the others had agreed to go on without it: allow more time");
  }
  if (members != nullptr) *members = present;
  CommunicatorOptions options = options_;
  options.timeout = this->timeout();
  return Communicator::create(store, id, static_cast<int>(self - present.begin()), static_cast<int>(present.size()),
                              options);
}

}  // namespace tutti
