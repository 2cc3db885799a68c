#include "communicator/nccl/joining.h"

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/interruption.h"
#include "base/thread.h"
#include "bootstrap/exchange.h"

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kWatchEvery(500);

// What each rank says before NCCL is begun.
struct Card {
  std::string problem, version, id;

  std::string pack() const {
    ByteWriter out;
    out.text(problem).text(version).text(id);
    return std::move(out).str();
  }
  static Card unpack(std::string_view blob) {
    ByteReader in(blob);
    Card card;
    card.problem = in.text();
    card.version = in.text();
    card.id = in.text();
    if (!in.done())
      throw_error(ErrorKind::kMismatch,
                  "what a rank says before NCCL begins cannot be read: use one version of Tutti on all ranks");
    return card;
  }
};

Card own_card(const NcclLibrary& nccl, bool first) {
  Card card{nccl.problem, nccl.version, {}};
  if (!card.problem.empty() || !first) return card;
  ncclUniqueId id{};
  const ncclResult_t result = nccl.ncclGetUniqueId(&id);
  if (result != ncclSuccess) card.problem = nccl_error(nccl, result, "ncclGetUniqueId").what();
  card.id.assign(id.internal, sizeof id.internal);
  return card;
}

// What the thread that is inside NCCL comes to.
struct Joined {
  std::mutex mutex;  // guards the members below; a leaf
  std::condition_variable changed;
  bool over = false, abandoned = false;
  ncclComm_t made = nullptr;
  std::optional<Error> error;
};

ncclUniqueId agree(Bootstrap& bootstrap, const NcclJoin& join, const NcclLibrary& nccl) {
  std::vector<Card> cards;
  for (const std::string& blob :
       bootstrap.all_gather(kCudaTopic, own_card(nccl, bootstrap.rank() == 0).pack(), join.timeout)) {
    cards.push_back(Card::unpack(blob));
  }
  for (std::size_t r = 0; r < cards.size(); ++r) {
    if (!cards[r].problem.empty()) {
      throw KnownToAll(ErrorKind::kUnsupported, "group '" + join.group + "': " + join.why +
                                                    ", so its calls on GPUs are NCCL's, and rank " + std::to_string(r) +
                                                    " cannot use it: " + cards[r].problem +
                                                    ". Install NCCL, or name its file in TUTTI_NCCL_LIB_PATH");
    }
    if (cards[r].version != cards[0].version) {
      throw KnownToAll(ErrorKind::kMismatch, "group '" + join.group + "': rank 0 has NCCL " + cards[0].version +
                                                 ", rank " + std::to_string(r) + " has " + cards[r].version +
                                                 ": install one version");
    }
  }
  ncclUniqueId id{};
  if (cards[0].id.size() != sizeof id.internal) throw_error(ErrorKind::kInternal, "rank 0 gave no NCCL id");
  std::memcpy(id.internal, cards[0].id.data(), sizeof id.internal);
  return id;
}

}  // namespace

// NCCL waits for the others, whether they come or not: so it does that on a thread that can be left.
ncclComm_t join_nccl(Bootstrap& bootstrap, const NcclJoin& join, const NcclLibrary& nccl,
                     const std::shared_ptr<StreamWork>& work) {
  const ncclUniqueId id = agree(bootstrap, join, nccl);
  const std::string named = "group '" + join.group + "' on rank " + std::to_string(bootstrap.rank());
  const auto joined = std::make_shared<Joined>();
  start_thread("NCCL's beginning", [joined, id, &nccl, work, named, first = join.first, rank = bootstrap.rank(),
                                    size = bootstrap.size()] {
    ncclComm_t made = nullptr;
    std::optional<Error> error;
    try {
      work->run([&] {
        ncclResult_t result = nccl.ncclCommInitRank(&made, size, id, rank);
        if (result != ncclSuccess) {
          error = nccl_error(nccl, result, named + ": ncclCommInitRank");
        } else if (first && (result = first(made)) != ncclSuccess) {
          error = nccl_error(nccl, result, named + ": the first message");
        }
      });
    } catch (const Error& failed) {
      error = failed;
    }
    std::unique_lock lock(joined->mutex);
    joined->over = true;
    joined->made = made;
    joined->error = std::move(error);
    joined->changed.notify_all();
    const bool abandoned = joined->abandoned;
    lock.unlock();
    if (abandoned && made != nullptr) static_cast<void>(nccl.ncclCommAbort(made));
  }).detach();

  const auto deadline = Clock::now() + join.timeout;
  auto watched = Clock::now();
  std::unique_lock lock(joined->mutex);
  try {
    while (!joined->changed.wait_for(lock, std::chrono::milliseconds(kAskEveryMs), [&] { return joined->over; })) {
      lock.unlock();
      throw_if_interrupted(named);
      const auto now = Clock::now();
      if (now - watched >= kWatchEvery) {
        bootstrap.watch();
        watched = now;
      }
      if (now >= deadline) {
        throw_error(ErrorKind::kTimeout, named + ": NCCL has not begun within " + std::to_string(join.timeout.count()) +
                                             " ms: NCCL_DEBUG=INFO shows what it waits for");
      }
      lock.lock();
    }
  } catch (...) {
    lock.lock();
    joined->abandoned = true;
    if (joined->over && joined->made != nullptr) {
      lock.unlock();
      static_cast<void>(nccl.ncclCommAbort(joined->made));
    }
    throw;
  }
  if (joined->error) {
    if (joined->made != nullptr) static_cast<void>(nccl.ncclCommAbort(joined->made));
    throw Error(*joined->error);
  }
  return joined->made;
}

}  // namespace tutti
