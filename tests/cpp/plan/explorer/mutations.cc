#include "plan/explorer/mutations.h"

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <utility>

#include "plan/links.h"
#include "plan/operations.h"
#include "plan/plan_builder.h"

namespace tutti::plan::explorer {
namespace {

// Where an operation stands; inner: in the body of a pipeline, else -1.
struct Position {
  std::size_t rank, block, op;
  std::ptrdiff_t inner = -1;
};

std::vector<Operation>& list_of(Plan& plan, const Position& at) {
  auto& operations = plan.ranks[at.rank].blocks[at.block].operations;
  return at.inner < 0 ? operations : operations[at.op].body;
}

std::size_t index_of(const Position& at) { return at.inner < 0 ? at.op : static_cast<std::size_t>(at.inner); }
Operation& operation_of(Plan& plan, const Position& at) { return list_of(plan, at)[index_of(at)]; }

template <typename T>
void erase_at(std::vector<T>& list, std::size_t index) {
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(index));
}

// The operation as another thread block of the same rank has to name its channels and buffers.
Operation renamed_for(Operation op, const ThreadBlock& from, ThreadBlock& to) {
  const auto kind = static_cast<std::size_t>(op.channel);
  for (std::int32_t& id : op.channel_ids) {
    id = intern(to.channels[kind], from.channels[kind][static_cast<std::size_t>(id)]);
  }
  for (auto* side : {&op.sources, &op.destinations}) {
    for (Operand& operand : *side) {
      if (operand.place == Operand::Place::kLocal) continue;
      auto& table = operand.place == Operand::Place::kGroup ? to.channels[kind] : to.remote_buffers[kind];
      const auto& other = operand.place == Operand::Place::kGroup ? from.channels[kind] : from.remote_buffers[kind];
      operand.id = intern(table, other[static_cast<std::size_t>(operand.id)]);
    }
  }
  return op;
}

class Collector {
 public:
  explicit Collector(const Plan& plan) : plan_(plan), links_(plan) {}

  std::vector<Mutation> collect() {
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
      for (std::size_t b = 0; b < plan_.ranks[r].blocks.size(); ++b) {
        const auto& operations = plan_.ranks[r].blocks[b].operations;
        for (std::size_t i = 0; i < operations.size(); ++i) {
          concern({r, b, i});
          for (std::size_t k = 0; k < operations[i].body.size(); ++k)
            concern({r, b, i, static_cast<std::ptrdiff_t>(k)});
        }
      }
      change_rank(r);
    }
    change_plan();
    return std::move(mutations_);
  }

 private:
  using Change = std::function<void(Operation&)>;

  void add(std::string name, std::function<void(Plan&)> apply) {
    mutations_.push_back({std::move(name), std::move(apply)});
  }

  void at(const Position& at, const std::string& what, std::function<void(Plan&)> apply) {
    std::ostringstream name;
    name << "rank " << at.rank << ", block " << at.block << ", operation " << at.op;
    if (at.inner >= 0) name << '.' << at.inner;
    name << ": " << what;
    add(name.str(), std::move(apply));
  }

  void change(const Position& where, const std::string& what, Change change) {
    at(where, what, [where, change = std::move(change)](Plan& plan) { change(operation_of(plan, where)); });
  }

  void concern(const Position& where) {
    const auto& operations = plan_.ranks[where.rank].blocks[where.block].operations;
    const Operation& op =
        where.inner < 0 ? operations[where.op] : operations[where.op].body[static_cast<std::size_t>(where.inner)];
    reorder(where, op);
    synchronise(where, op);
    if (!op.sources.empty()) change_data(where, op);
    for (std::size_t i = 0; i < op.sources.size(); ++i) change_operand(where, op, i, true);
    for (std::size_t i = 0; i < op.destinations.size(); ++i) change_operand(where, op, i, false);
    if (op.kind == OpKind::kPipeline) change_loop(where, op);
    if (op.kind == OpKind::kBarrier) change(where, "the barrier after", [](Operation& o) { ++o.barrier_id; });
  }

  void change_loop(const Position& where, const Operation& loop) {
    change(where, "units twice as large", [](Operation& o) { o.iteration.unit_bytes *= 2; });
    change(where, "units three times as large", [](Operation& o) { o.iteration.unit_bytes *= 3; });
    change(where, "units half as large", [](Operation& o) { o.iteration.unit_bytes /= 2; });
    change(where, "a chunk more to repeat over", [](Operation& o) { ++o.iteration.chunks; });
    change(where, "a chunk less to repeat over", [](Operation& o) { --o.iteration.chunks; });
    const auto place = [where](Plan& plan, std::size_t after) {
      return list_of(plan, where).begin() + static_cast<std::ptrdiff_t>(where.op + after);
    };
    // One chunk after the other instead of together, and the other way round.
    at(where, "two loops, of a chunk and of the others", [=](Plan& plan) {
      Operation first = operation_of(plan, where);
      narrow(operation_of(plan, where), 1, first.iteration.chunks - 1);
      narrow(first, 0, 1);
      list_of(plan, where).insert(place(plan, 0), std::move(first));
    });
    at(where, "one loop with the one after", [=](Plan& plan) {
      auto& list = list_of(plan, where);
      if (where.op + 1 == list.size() || list[where.op + 1].kind != OpKind::kPipeline) return;
      const std::int32_t more = list[where.op + 1].iteration.chunks;
      narrow(list[where.op], 0, list[where.op].iteration.chunks + more);
      erase_at(list, where.op + 1);
    });
    for (std::size_t k = 1; k < loop.body.size(); ++k) {
      at(where, "two loops, cut before operation " + std::to_string(k), [=](Plan& plan) {
        Operation second = operation_of(plan, where);
        const auto cut = static_cast<std::ptrdiff_t>(k);
        second.body.erase(second.body.begin(), second.body.begin() + cut);
        operation_of(plan, where).body.resize(k);
        list_of(plan, where).insert(place(plan, 1), std::move(second));
      });
    }
    if (loop.body.size() > 1) {
      at(where, "its first operation once, before it", [=](Plan& plan) {
        Operation moved = operation_of(plan, where).body.front();
        erase_at(operation_of(plan, where).body, 0);
        list_of(plan, where).insert(place(plan, 0), std::move(moved));
      });
      at(where, "its last operation once, after it", [=](Plan& plan) {
        Operation moved = operation_of(plan, where).body.back();
        operation_of(plan, where).body.pop_back();
        list_of(plan, where).insert(place(plan, 1), std::move(moved));
      });
    }
    at(where, "the operation after in every iteration", [=](Plan& plan) {
      auto& list = list_of(plan, where);
      if (where.op + 1 == list.size() || list[where.op + 1].kind == OpKind::kPipeline) return;
      list[where.op].body.push_back(list[where.op + 1]);
      erase_at(list, where.op + 1);
    });
    at(where, "the operation before in every iteration", [=](Plan& plan) {
      auto& list = list_of(plan, where);
      if (where.op == 0 || list[where.op - 1].kind == OpKind::kPipeline) return;
      list[where.op].body.insert(list[where.op].body.begin(), list[where.op - 1]);
      erase_at(list, where.op - 1);
    });
  }

  // The loop over `chunks` chunks from its `first` on.
  static void narrow(Operation& loop, std::int32_t first, std::int32_t chunks) {
    for (Operation& op : loop.body) {
      for (auto* side : {&op.sources, &op.destinations}) {
        for (Operand& operand : *side) {
          operand.index += first;
          operand.size += chunks - loop.iteration.chunks;
        }
      }
    }
    loop.iteration.chunks = chunks;
  }

  void reorder(const Position& where, const Operation& op) {
    const std::string name(to_string(op.kind));
    const std::size_t index = index_of(where);
    at(where, name + " dropped", [=](Plan& plan) { erase_at(list_of(plan, where), index); });
    at(where, name + " twice", [=](Plan& plan) {
      auto& list = list_of(plan, where);
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(index), Operation(list[index]));
    });
    at(where, "a nop before", [=](Plan& plan) {
      auto& list = list_of(plan, where);
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(index), Operation{});
    });
    for (const std::size_t distance : {std::size_t{1}, std::size_t{2}}) {
      at(where, "swapped with the one " + std::to_string(distance) + " after", [=](Plan& plan) {
        auto& list = list_of(plan, where);
        if (index + distance < list.size()) std::swap(list[index], list[index + distance]);
      });
    }
    if (where.inner >= 0) return;
    for (const bool to_end : {false, true}) {
      at(where, to_end ? "moved to the end of the next block" : "moved into the next block", [=](Plan& plan) {
        Rank& rank = plan.ranks[where.rank];
        if (rank.blocks.size() == 1) rank.blocks.emplace_back();
        ThreadBlock& from = rank.blocks[where.block];
        ThreadBlock& to = rank.blocks[(where.block + 1) % rank.blocks.size()];
        Operation moved = renamed_for(from.operations[where.op], from, to);
        erase_at(from.operations, where.op);
        const std::size_t place = to_end ? to.operations.size() : std::min(where.op, to.operations.size());
        to.operations.insert(to.operations.begin() + static_cast<std::ptrdiff_t>(place), std::move(moved));
      });
    }
  }

  void synchronise(const Position& where, const Operation& op) {
    const auto become = [&](OpKind from, OpKind to) {
      if (op.kind != from) return;
      change(where, std::string(to_string(from)) + " becomes " + std::string(to_string(to)),
             [to](Operation& o) { o.kind = to; });
    };
    become(OpKind::kSignal, OpKind::kRelaxedSignal);
    become(OpKind::kWait, OpKind::kRelaxedWait);
    become(OpKind::kRelaxedSignal, OpKind::kSignal);
    become(OpKind::kRelaxedWait, OpKind::kWait);
    become(OpKind::kPut, OpKind::kPutWithSignal);
    become(OpKind::kPutWithSignal, OpKind::kPut);
    become(OpKind::kPutWithSignal, OpKind::kPutWithSignalAndFlush);
    become(OpKind::kPutWithSignalAndFlush, OpKind::kPutWithSignal);
    for (std::size_t i = 0; i < op.channel_ids.size(); ++i) {
      if (op.channel_ids.size() > 1 && !moves_data(op.kind)) {
        change(where, "a channel less", [i](Operation& o) { erase_at(o.channel_ids, i); });
        change(where, "the first channel last", [](Operation& o) {
          std::rotate(o.channel_ids.begin(), o.channel_ids.begin() + 1, o.channel_ids.end());
        });
      }
      const std::size_t there = plan_.ranks[where.rank].blocks[where.block].channels_of(op.channel).size();
      for (std::size_t other = 0; other < there; ++other) {
        if (static_cast<std::int32_t>(other) == op.channel_ids[i]) continue;
        change(where, "another channel",
               [i, other](Operation& o) { o.channel_ids[i] = static_cast<std::int32_t>(other); });
      }
    }
    for (std::size_t i = 0; i < op.semaphore_ids.size(); ++i) {
      change(where, "the semaphore after", [i](Operation& o) { ++o.semaphore_ids[i]; });
    }
    drop_pair(where, op);
  }

  // Both halves of a pair: the signal, and the wait that takes it.
  void drop_pair(const Position& where, const Operation& op) {
    if ((op.kind != OpKind::kSignal && op.kind != OpKind::kRelaxedSignal) || op.channel_ids.size() != 1) return;
    const std::int32_t channel = plan_.ranks[where.rank].blocks[where.block].channels_of(
        op.channel)[static_cast<std::size_t>(op.channel_ids[0])];
    const std::int32_t peer = plan_.ranks[where.rank].channels_of(op.channel)[static_cast<std::size_t>(channel)];
    const std::int32_t theirs = links_.partner(op.channel, static_cast<std::int32_t>(where.rank), channel);
    const auto& blocks = plan_.ranks[static_cast<std::size_t>(peer)].blocks;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      for (std::size_t i = 0; i < blocks[b].operations.size(); ++i) {
        const Operation& wait = blocks[b].operations[i];
        if ((wait.kind != OpKind::kWait && wait.kind != OpKind::kRelaxedWait) || wait.channel != op.channel) continue;
        if (wait.channel_ids.size() != 1 || where.inner >= 0) continue;
        if (blocks[b].channels_of(op.channel)[static_cast<std::size_t>(wait.channel_ids[0])] != theirs) continue;
        const Position other{static_cast<std::size_t>(peer), b, i};
        at(where, "dropped with a wait", [=](Plan& plan) {
          erase_at(list_of(plan, other), i);
          erase_at(list_of(plan, where), where.op);
        });
        if (op.channel != ChannelKind::kMemory) continue;
        at(where, "relaxed with a wait", [=](Plan& plan) {
          operation_of(plan, other).kind = OpKind::kRelaxedWait;
          operation_of(plan, where).kind = OpKind::kRelaxedSignal;
        });
      }
    }
  }

  void change_data(const Position& where, const Operation& op) {
    const auto resize = [](Operation& o, std::int32_t by) {
      for (Operand& operand : o.sources) operand.size += by;
      for (Operand& operand : o.destinations) operand.size += by;
    };
    change(where, "a chunk more", [resize](Operation& o) { resize(o, 1); });
    if (op.sources[0].size > 1) change(where, "a chunk less", [resize](Operation& o) { resize(o, -1); });
    if (op.sources.size() > 1) {
      change(where, "a source less", [](Operation& o) { o.sources.pop_back(); });
      change(where, "sources swapped", [](Operation& o) { std::swap(o.sources.front(), o.sources.back()); });
      change(where, "a source twice", [](Operation& o) { o.sources.front() = o.sources.back(); });
    }
    if (op.destinations.size() > 1) {
      change(where, "a destination less", [](Operation& o) { o.destinations.pop_back(); });
      change(where, "destinations swapped",
             [](Operation& o) { std::swap(o.destinations.front(), o.destinations.back()); });
    }
    if (reduces(op.kind)) change(where, "another reduction", [](Operation& o) { o.reduce = ReduceKind::kMax; });
    if (uses_packets(op)) change(where, "a fence or none", [](Operation& o) { o.fence = !o.fence; });
    if (op.part) {
      change(where, "the next part", [](Operation& o) { o.part->index = (o.part->index + 1) % o.part->size; });
      change(where, "all parts", [](Operation& o) { o.part.reset(); });
    }
  }

  void change_operand(const Position& where, const Operation& op, std::size_t i, bool source) {
    const auto operand = [i, source](Operation& o) -> Operand& { return source ? o.sources[i] : o.destinations[i]; };
    const std::string which = (source ? "source " : "destination ") + std::to_string(i);
    const Operand& now = source ? op.sources[i] : op.destinations[i];
    for (const std::int32_t by : {-1, 1, 2}) {
      if (now.index + by < 0) continue;
      change(where, which + " elsewhere", [=](Operation& o) { operand(o).index += by; });
    }
    if (now.place == Operand::Place::kLocal) {
      for (const BufferKind buffer : {BufferKind::kInput, BufferKind::kOutput, BufferKind::kScratch}) {
        if (buffer == now.buffer) continue;
        change(where, which + " in another buffer", [=](Operation& o) { operand(o).buffer = buffer; });
      }
    } else {
      const ThreadBlock& own = plan_.ranks[where.rank].blocks[where.block];
      const bool group = now.place == Operand::Place::kGroup;
      const std::size_t there = (group ? own.channels_of(op.channel) : own.buffers_of(op.channel)).size();
      for (std::size_t other = 0; other < there; ++other) {
        if (static_cast<std::int32_t>(other) == now.id) continue;
        change(where, which + " of another peer",
               [=](Operation& o) { operand(o).id = static_cast<std::int32_t>(other); });
      }
    }
  }

  void change_rank(std::size_t r) {
    const Rank& rank = plan_.ranks[r];
    const std::string where = "rank " + std::to_string(r);
    for (std::size_t s = 0; s < rank.semaphores.size(); ++s) {
      for (const std::int32_t by : {-1, 1}) {
        if (rank.semaphores[s] + by < 0) continue;
        add(where + ": another initial value of semaphore " + std::to_string(s),
            [=](Plan& plan) { plan.ranks[r].semaphores[s] += by; });
      }
    }
    add(where + ": a chunk of scratch more", [r](Plan& plan) { ++plan.ranks[r].chunks[2]; });
    for (std::int32_t chunk = 1; chunk < rank.chunks_of(BufferKind::kScratch); ++chunk) {
      add(where + ": scratch renamed", [r, chunk](Plan& plan) { rename_scratch(plan, r, chunk - 1, chunk); });
    }
    add(where + ": an operation after all others", [r](Plan& plan) {
      if (!plan.ranks[r].blocks.empty()) plan.ranks[r].blocks.back().operations.emplace_back();
    });
  }

  // Consistently, so nothing changes.
  static void rename_scratch(Plan& plan, std::size_t of, std::int32_t a, std::int32_t b) {
    for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
      Rank& rank = plan.ranks[r];
      for (ThreadBlock& block : rank.blocks) {
        const auto rename = [&](Operation& op, Operand& operand) {
          Place place{static_cast<std::int32_t>(r), operand.buffer};
          if (operand.place == Operand::Place::kRemote) {
            const auto id =
                static_cast<std::size_t>(block.buffers_of(op.channel)[static_cast<std::size_t>(operand.id)]);
            place = {rank.remote_buffers[id].rank, rank.remote_buffers[id].buffer};
          }
          if (operand.place == Operand::Place::kGroup) return;
          if (place.buffer != BufferKind::kScratch || place.rank != static_cast<std::int32_t>(of)) return;
          if (operand.index == a) {
            operand.index = b;
          } else if (operand.index == b) {
            operand.index = a;
          }
        };
        for (Operation& op : block.operations) {
          for (Operand& operand : op.sources) rename(op, operand);
          for (Operand& operand : op.destinations) rename(op, operand);
          for (Operation& inner : op.body) {
            for (Operand& operand : inner.sources) rename(inner, operand);
            for (Operand& operand : inner.destinations) rename(inner, operand);
          }
        }
      }
    }
  }

  void change_plan() {
    add("scratch in one half or two", [](Plan& plan) { plan.double_scratch = !plan.double_scratch; });
    add("in place or not", [](Plan& plan) { plan.in_place = !plan.in_place; });
    add("scratch of a fixed size or not", [](Plan& plan) { plan.reuse_resources = !plan.reuse_resources; });
    add("another root", [](Plan& plan) { plan.root = (plan.root + 1) % static_cast<std::int32_t>(plan.ranks.size()); });
  }

  const Plan& plan_;
  Links links_;
  std::vector<Mutation> mutations_;
};

}  // namespace

std::vector<Mutation> mutations_of(const Plan& plan) { return Collector(plan).collect(); }

}  // namespace tutti::plan::explorer
