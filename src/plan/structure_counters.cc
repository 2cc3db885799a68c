// Who raises and who takes from every counter of a plan.
#include "plan/structure_counters.h"

#include <map>
#include <set>
#include <string>
#include <tuple>

#include "plan/json_document.h"
#include "plan/operations.h"
#include "plan/structure.h"

namespace tutti::plan {
namespace {

class CounterCheck {
 public:
  CounterCheck(const Plan& plan, const Links& links) : plan_(plan), links_(links) {}

  void check() {
    for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
      barriers_.clear();
      semaphores_.clear();
      for (std::size_t b = 0; b < plan_.ranks[rank].blocks.size(); ++b) {
        const auto& operations = plan_.ranks[rank].blocks[b].operations;
        for (std::size_t i = 0; i < operations.size(); ++i) {
          note(operations[i], rank, b, path_of(rank, b, i));
          for (std::size_t k = 0; k < operations[i].body.size(); ++k) {
            note(operations[i].body[k], rank, b, path_of(rank, b, i, k));
          }
        }
      }
      check_barriers();
    }
  }

 private:
  struct Barrier {
    std::int32_t blocks = 0;
    std::set<std::size_t> met;
    std::string path;
  };
  // (kind, rank, channel, raises) or (kNone, rank, semaphore, raises) -> the one thread block
  using Ends = std::map<std::tuple<ChannelKind, std::size_t, std::int32_t, bool>, std::size_t>;

  void note(const Operation& op, std::size_t rank, std::size_t block, const std::string& path) {
    const OperationRules& rules = rules_of(op.kind);
    switch (rules.sync) {
      case SyncKind::kBarrier:
        return note_barrier(op, block, path);
      case SyncKind::kSemaphoreAcquire:
      case SyncKind::kSemaphoreRelease:
        for (const std::int32_t id : op.semaphore_ids) {
          claim(semaphores_, {ChannelKind::kNone, rank, id, rules.sync == SyncKind::kSemaphoreRelease}, block,
                path + "/semaphore_ids", "semaphore");
        }
        return;
      case SyncKind::kSignal:
      case SyncKind::kRelaxedSignal:
        return note_channels(op, rank, block, path, true);
      case SyncKind::kWait:
      case SyncKind::kRelaxedWait:
        return note_channels(op, rank, block, path, false);
      default:
        if (rules.signals) note_channels(op, rank, block, path, true);
    }
  }

  void note_channels(const Operation& op, std::size_t rank, std::size_t block, const std::string& path, bool raises) {
    const ThreadBlock& own = plan_.ranks[rank].blocks[block];
    for (const std::int32_t id : op.channel_ids) {
      const std::int32_t channel = own.channels_of(op.channel)[id];
      if (links_.partner(op.channel, static_cast<std::int32_t>(rank), channel) == Links::kUnpaired) {
        throw_at(path + "/channel_ids", "unpaired: rank " +
                                            std::to_string(plan_.ranks[rank].channels_of(op.channel)[channel]) +
                                            " has no such channel to rank " + std::to_string(rank));
      }
      claim(channels_, {op.channel, rank, channel, raises}, block, path + "/channel_ids", "channel");
    }
  }

  static void claim(Ends& ends, const Ends::key_type& key, std::size_t block, const std::string& path,
                    const std::string& what) {
    const auto [found, added] = ends.try_emplace(key, block);
    if (!added && found->second != block) {
      throw_at(path, "thread blocks " + std::to_string(found->second) + " and " + std::to_string(block) + " both " +
                         (std::get<3>(key) ? "signal" : "wait on") + " one " + what +
                         ": its order would depend on the schedule");
    }
  }

  void note_barrier(const Operation& op, std::size_t block, const std::string& path) {
    const auto [found, added] = barriers_.try_emplace(op.barrier_id, Barrier{op.barrier_blocks, {}, path});
    if (!added && found->second.blocks != op.barrier_blocks) {
      throw_at(path + "/num_threadblocks", "differs from the " + std::to_string(found->second.blocks) +
                                               " of the same barrier at " + found->second.path);
    }
    found->second.met.insert(block);
  }

  void check_barriers() const {
    for (const auto& [id, barrier] : barriers_) {
      if (barrier.met.size() != static_cast<std::size_t>(barrier.blocks)) {
        throw_at(barrier.path + "/num_threadblocks", "barrier " + std::to_string(id) + " is for " +
                                                         std::to_string(barrier.blocks) + " thread blocks, but " +
                                                         std::to_string(barrier.met.size()) + " come to it");
      }
    }
  }

  const Plan& plan_;
  const Links& links_;
  Ends channels_;
  Ends semaphores_;
  std::map<std::int32_t, Barrier> barriers_;
};

}  // namespace

void check_counters(const Plan& plan, const Links& links) { CounterCheck(plan, links).check(); }

}  // namespace tutti::plan
