// Algorithms of plug-ins (include/tutti/plugin/algorithm.h).
//
// A rank's memory for one algorithm is a block of its arena: a counter a peer, then the scratch that the plug-in asked
// for. A counter holds call << 32 | k after the k-th signal of a call, so a signal that nobody has awaited is none in a
// later call; and no rank is in a later call before all have ended the earlier one, because the communicator has
// verified all announcements of it.
#include <dlfcn.h>

#include <atomic>
#include <utility>

#include "algorithm/built_in_algorithm.h"
#include "algorithm/plan/plan_memory.h"
#include "algorithm/user/algorithm_source.h"
#include "algorithm/user/identity.h"
#include "base/collective_traits.h"
#include "tutti/error.h"
#include "tutti/plugin/algorithm.h"
#include "tutti/user_algorithm.h"

namespace tutti {
namespace {

constexpr std::size_t kCounterStride = 128;  // as LineWord: neighbours' writers do not disturb each other

std::optional<Collective> collective_of_name(std::string_view name) noexcept {
  for (int i = 0; i < kCollectiveCount; ++i) {
    const auto collective = static_cast<Collective>(i);
    std::string plain(to_string(collective));  // "all_reduce"; plans and plug-ins say "allreduce"
    std::erase(plain, '_');
    if (collective != Collective::kBarrier && (name == plain || name == to_string(collective))) return collective;
  }
  return std::nullopt;
}

// A list of blocks as one piece of memory, which is what a plug-in sees.
class Piece {
 public:
  Piece(const Blocks& blocks, std::size_t count, std::size_t bytes, bool load) : blocks_(blocks), bytes_(bytes) {
    if (blocks.pointers == nullptr) return;
    copy_.resize(count * bytes);
    for (std::size_t b = 0; load && b < count; ++b) {
      copy_unless_same(copy_.data() + b * bytes, blocks.data(static_cast<int>(b)), bytes);
    }
  }
  std::byte* data() noexcept { return blocks_.pointers == nullptr ? blocks_.base : copy_.data(); }
  void store() noexcept {
    for (std::size_t b = 0; bytes_ != 0 && b < copy_.size() / bytes_; ++b) {
      copy_unless_same(blocks_.data(static_cast<int>(b)), copy_.data() + b * bytes_, bytes_);
    }
  }

 private:
  const Blocks& blocks_;
  std::size_t bytes_;
  std::vector<std::byte> copy_;
};

// What a plug-in keeps in one communicator, and the functions that it calls back.
class PluginRunner {
 public:
  PluginRunner(const TuttiPluginAlgorithm& plugin, Collective collective, const GroupPlace& world)
      : plugin_(plugin),
        collective_(collective),
        host_(*world.host),
        memory_(world, layouts(host_), plugin.scratch_bytes),
        sent_(static_cast<std::size_t>(world.ranks.ranks())),
        taken_(sent_.size()) {}

  Outcome run(const Call& call, CallContext& context) noexcept {
    Outcome outcome = {Status::kInternal, -1};
    try {
      outcome = run_call(call, context);
    } catch (const std::exception& error) {
      reason_ = error.what();
    }
    if (outcome.ok()) return outcome;
    memory_.fail();
    if (outcome.status == Status::kInternal)
      context.detail = describe("failed" + (reason_.empty() ? "" : ": " + reason_));
    if (outcome.status == Status::kTimeout && !waited_.empty()) context.detail = describe(waited_);
    return outcome;
  }

 private:
  static std::vector<executor::RankLayout> layouts(const HostChannel& host) {
    executor::RankLayout layout;
    layout.total = static_cast<std::size_t>(host.ranks()) * kCounterStride;
    return std::vector<executor::RankLayout>(static_cast<std::size_t>(host.ranks()), layout);
  }

  std::string describe(const std::string& what) const {
    return "plug-in \"" + std::string(plugin_.name) + "\" " + what;
  }

  Outcome run_call(const Call& call, CallContext& context) {
    if (scratch_.empty()) {
      if (Outcome outcome = memory_.join(context.deadline); !outcome.ok()) {
        if (outcome.status == Status::kExhausted) {
          context.detail = "rank " + std::to_string(outcome.peer) + " has no room in its arena for the " +
                           std::to_string(plugin_.scratch_bytes) + " bytes of scratch of plug-in \"" + plugin_.name +
                           "\": ask for less there, or for more by TUTTI_ARENA_BYTES";
        }
        return outcome;
      }
      for (int rank = 0; rank < host_.ranks(); ++rank) scratch_.push_back(memory_.shadow(rank));
    }
    ++calls_;
    std::fill(sent_.begin(), sent_.end(), 0);
    std::fill(taken_.begin(), taken_.end(), 0);
    outcome_ = kOkOutcome;
    context_ = &context;
    call_ = &call;
    const auto n = static_cast<std::size_t>(host_.ranks());
    const std::size_t block = traits_of(collective_).takes_a_block() ? call.output.size(0) : call.input.size(0);
    Piece input(call.input, traits_of(collective_).input_blocks ? n : 1, block, true);
    Piece output(call.output, traits_of(collective_).output_blocks ? n : 1, block, false);
    if (call_plugin(call, input.data(), output.data(), block) == 0 && outcome_.ok()) outcome_ = {Status::kInternal, -1};
    if (!outcome_.ok()) return outcome_;
    output.store();
    memory_.end_call();
    return kOkOutcome;
  }

  int call_plugin(const Call& call, const void* input, void* output, std::size_t block) {
    const auto n = static_cast<std::size_t>(host_.ranks());
    const std::string dtype(to_string(call.dtype));
    const std::string op(to_string(call.op));
    std::vector<const void*> inputs = mapped<const void*>(&CallRecord::mapped_input, input);
    std::vector<void*> outputs = mapped<void*>(&CallRecord::mapped_output, output);
    TuttiPluginCall out{};
    out.library = this;
    out.input = input;
    out.output = output;
    out.scratch = scratch_.data();
    out.mapped_inputs = inputs.empty() ? nullptr : inputs.data();
    out.mapped_outputs = outputs.empty() ? nullptr : outputs.data();
    out.dtype = dtype.c_str();
    out.op = op.c_str();
    out.input_bytes = block * (traits_of(collective_).input_blocks ? n : 1);
    out.output_bytes = block * (traits_of(collective_).output_blocks ? n : 1);
    out.block_bytes = block;
    out.scratch_bytes = plugin_.scratch_bytes;
    out.element_bytes = size_of(call.dtype);
    out.rank = host_.index();
    out.size = host_.ranks();
    out.root = call.root;
    out.signal = [](void* self, std::int32_t peer) { return static_cast<PluginRunner*>(self)->signal(peer); };
    out.wait = [](void* self, std::int32_t peer) { return static_cast<PluginRunner*>(self)->wait(peer); };
    out.fail = [](void* self, const char* reason) { static_cast<PluginRunner*>(self)->fail(reason); };
    out.copy = [](void* /*self*/, void* to, const void* from, std::uint64_t bytes) {
      copy_unless_same(to, from, bytes);
    };
    out.reduce = [](void* self, void* to, const void* const* from, std::int32_t sources, std::uint64_t elements) {
      static_cast<PluginRunner*>(self)->reduce(to, from, sources, elements);
    };
    out.extra = [](void* self, const char* name, std::int64_t otherwise) {
      return static_cast<PluginRunner*>(self)->extra(name, otherwise);
    };
    out.flag = flag();
    out.await_packets = [](void* self, std::int32_t peer, const std::uint64_t* words, std::uint64_t count) {
      return static_cast<PluginRunner*>(self)->await_packets(peer, words, count);
    };
    out.ring = [](void* self, std::int32_t peer) { static_cast<PluginRunner*>(self)->ring(peer); };
    // It stores by itself what others wait for, packets among it: so it publishes wherever it does not wait.
    const HostChannel::Publishing publishing(&host_);
    return plugin_.run(&out);
  }

  // All ranks' addresses of a buffer, or nothing if some rank's is not mapped.
  template <class Pointer>
  std::vector<Pointer> mapped(std::uint64_t CallRecord::*place, Pointer own) const {
    std::vector<Pointer> list;
    for (int rank = 0; rank < host_.ranks(); ++rank) {
      const std::uint64_t offset = host_.peer_record(rank).*place;
      if (offset == kNotMapped) return {};
      list.push_back(rank == host_.index() ? own : host_.arena(rank) + offset);
    }
    return list;
  }

  std::atomic<std::uint64_t>& counter(int owner, int writer) const noexcept {
    std::byte* base = memory_.ranks()[static_cast<std::size_t>(owner)].base;
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(base + static_cast<std::size_t>(writer) * kCounterStride);
  }

  bool is_peer(std::int32_t peer, const char* what) noexcept {
    if (peer >= 0 && peer < host_.ranks()) return true;
    fail(what);
    return false;
  }

  int signal(std::int32_t peer) noexcept {
    if (!outcome_.ok() || !is_peer(peer, "it signals a rank that does not exist")) return 0;
    const std::uint64_t value = calls_ << 32 | ++sent_[static_cast<std::size_t>(peer)];
    // release: publishes what this rank has written, and orders what it has read; pairs with the acquire in Signalled.
    counter(peer, host_.index()).store(value, std::memory_order_release);
    if (peer != host_.index()) host_.ring_doorbell(peer, WaitLane::kCollective);
    return 1;
  }

  class Signalled final : public HostChannel::Condition {
   public:
    Signalled(std::atomic<std::uint64_t>& word, std::uint64_t value) noexcept : word_(word), value_(value) {}
    // acquire: pairs with the release in signal().
    bool holds() noexcept override { return word_.load(std::memory_order_acquire) >= value_; }

   private:
    std::atomic<std::uint64_t>& word_;
    const std::uint64_t value_;
  };

  Outcome await(int peer, HostChannel::Condition& condition) noexcept {
    host_.end_publishing(WaitLane::kCollective);
    const Outcome outcome = host_.await_condition(peer, condition, context_->deadline);
    host_.begin_publishing(WaitLane::kCollective);
    return outcome;
  }

  int wait(std::int32_t peer) noexcept {
    if (!outcome_.ok() || !is_peer(peer, "it waits for a rank that does not exist")) return 0;
    const std::uint64_t number = ++taken_[static_cast<std::size_t>(peer)];
    Signalled signalled(counter(host_.index(), peer), calls_ << 32 | number);
    outcome_ = await(peer, signalled);
    if (outcome_.status == Status::kTimeout) note_wait("signal", number, peer);
    return outcome_.ok() ? 1 : 0;
  }

  // Never 0, which is what fresh memory holds.
  std::uint32_t flag() const noexcept { return static_cast<std::uint32_t>(calls_ % 0xffffffffu) + 1; }

  class Arrived final : public HostChannel::Condition {
   public:
    Arrived(const std::uint64_t* words, std::uint64_t count, std::uint32_t flag) noexcept
        : words_(words), end_(words + count), flag_(flag) {}
    bool holds() noexcept override {
      // acquire: pairs with the release in the peer's store of the packet (tutti/plugin/kernel.cuh).
      while (words_ != end_ && __atomic_load_n(words_, __ATOMIC_ACQUIRE) >> 32 == flag_) ++words_;
      return words_ == end_;
    }

   private:
    const std::uint64_t* words_;  // the first that has not come
    const std::uint64_t* const end_;
    const std::uint32_t flag_;
  };

  int await_packets(std::int32_t peer, const std::uint64_t* words, std::uint64_t count) noexcept {
    if (!outcome_.ok() || !is_peer(peer, "it waits for a rank that does not exist")) return 0;
    Arrived arrived(words, count, flag());
    outcome_ = await(peer, arrived);
    if (outcome_.status == Status::kTimeout) note_wait("packets of call", calls_, peer);
    return outcome_.ok() ? 1 : 0;
  }

  void ring(std::int32_t peer) noexcept {
    if (!outcome_.ok() || !is_peer(peer, "it rings for a rank that does not exist")) return;
    if (peer != host_.index()) host_.ring_doorbell(peer, WaitLane::kCollective);
  }

  void note_wait(const char* what, std::uint64_t number, std::int32_t peer) noexcept {
    try {
      waited_ = std::string("waits for ") + what + " " + std::to_string(number) + " of rank " + std::to_string(peer);
    } catch (...) {
      waited_.clear();  // without memory the error goes without its detail
    }
  }

  void fail(const char* reason) noexcept {
    if (!outcome_.ok()) return;
    outcome_ = {Status::kInternal, -1};
    try {
      reason_ = reason != nullptr ? reason : "";
    } catch (...) {
      reason_.clear();  // likewise
    }
  }

  // Without sources: the end of an average.
  void reduce(void* to, const void* const* from, std::int32_t sources, std::size_t elements) const noexcept {
    if (sources > 0) {
      const ReduceOp op = call_->op == ReduceOp::kAvg ? ReduceOp::kSum : call_->op;
      cpu::reduce(&to, 1, from, sources, elements, call_->dtype, op);
    } else if (call_->op == ReduceOp::kAvg) {
      const void* source = to;
      cpu::reduce(&to, 1, &source, 1, elements, call_->dtype, ReduceOp::kAvg, host_.ranks());
    }
  }

  std::int64_t extra(const char* name, std::int64_t otherwise) const noexcept {
    if (call_->choice == nullptr) return otherwise;
    for (const auto& [key, value] : call_->choice->extras) {
      if (key == name) return value;
    }
    return otherwise;
  }

  const TuttiPluginAlgorithm& plugin_;
  const Collective collective_;
  HostChannel& host_;
  PlanMemory memory_;
  std::vector<void*> scratch_;  // by rank; empty before the ranks have joined
  std::uint64_t calls_ = 0;
  std::vector<std::uint64_t> sent_, taken_;  // signals of this call, by peer
  Outcome outcome_;                          // of this call; the first failure stays
  std::string reason_, waited_;
  CallContext* context_ = nullptr;
  const Call* call_ = nullptr;
};

class PluginHostAlgorithm final : public Algorithm {
 public:
  PluginHostAlgorithm(const TuttiPluginAlgorithm& plugin, Collective collective, std::string name,
                      const GroupPlace& world)
      : plugin_(plugin),
        collective_(collective),
        name_(std::move(name)),
        runner_(std::make_unique<PluginRunner>(plugin, collective, world)) {}

  std::string_view name() const noexcept override { return name_; }
  Collective collective() const noexcept override { return collective_; }
  std::string_view summary() const noexcept override { return "runs a plug-in compiled at run time"; }

  const char* refusal(const CallShape& shape) const noexcept override {
    if (shape.hosts > 1) return "needs all ranks on one host";
    return plugin_refusal(plugin_.refusal, shape);
  }

  // Const like every algorithm; what changes belongs to the communicator that runs it under its lock.
  Outcome run(const Call& call, CallContext& context) const noexcept override { return runner_->run(call, context); }

 private:
  const TuttiPluginAlgorithm& plugin_;
  const Collective collective_;
  const std::string name_;
  const std::unique_ptr<PluginRunner> runner_;
};

class UserPlugin final : public AlgorithmSource {
 public:
  // `source`: null, or of its kernel.
  UserPlugin(const TuttiPluginAlgorithm& plugin, Collective collective, std::uint64_t content,
             const AlgorithmLimits& limits, std::shared_ptr<const KernelSource> source)
      : AlgorithmSource(limits),
        plugin_(plugin),
        collective_(collective),
        content_(content),
        name_(plugin.name),
        collective_name_(plugin.collective),
        kernel_{plugin.function, collective,     plugin.scratch_bytes, plugin.blocks,
                plugin.threads,  plugin.refusal, std::move(source)} {}

  Kind kind() const noexcept override { return kernel() != nullptr ? Kind::kKernel : Kind::kPlugin; }
  const std::string& name() const noexcept override { return name_; }
  const std::string& collective_name() const noexcept override { return collective_name_; }
  std::optional<Collective> collective() const noexcept override { return collective_; }
  UserAlgorithmPtr with_limits(const AlgorithmLimits& limits) const override {
    return std::make_shared<UserPlugin>(plugin_, collective_, content_, limits, kernel_.source);
  }
  std::shared_ptr<const Algorithm> make(const GroupPlace& world) const override {
    if (world.host == nullptr || !world.ranks.one_host()) {
      throw_error(ErrorKind::kUnsupported, "plug-in \"" + name_ + "\" needs several ranks, all on one host");
    }
    return std::make_shared<PluginHostAlgorithm>(plugin_, collective_, "native:" + name_, world);
  }
  const KernelAlgorithm* kernel() const noexcept override {
    return plugin_.blocks > 0 && kernel_.source != nullptr ? &kernel_ : nullptr;
  }

 protected:
  std::uint64_t content() const noexcept override { return content_; }

 private:
  const TuttiPluginAlgorithm& plugin_;  // in a shared object that stays loaded
  const Collective collective_;
  const std::uint64_t content_;
  const std::string name_;
  const std::string collective_name_;
  const KernelAlgorithm kernel_;
};

template <class Function>
Function symbol(void* object, const char* name) {
  return reinterpret_cast<Function>(::dlsym(object, name));
}

}  // namespace

const char* plugin_refusal(PluginRefusal refusal, const CallShape& shape) noexcept {
  if (shape.uneven) return "needs blocks of equal size";
  if (refusal == nullptr) return nullptr;
  const std::string dtype(to_string(shape.dtype));  // short: takes no memory, and so does the other
  const std::string op(reduces(shape.collective) ? to_string(shape.op) : std::string_view());
  return refusal(dtype.c_str(), op.c_str(), shape.bytes, shape.ranks);
}

std::vector<PluginAlgorithm> plugin_algorithms(const std::string& path, const std::string& content,
                                               std::shared_ptr<const KernelSource> kernels) {
  const auto refuse = [&path](const std::string& why) { throw_error(ErrorKind::kInvalidArgument, path + ": " + why); };
  void* object = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) refuse(std::string("cannot be loaded: ") + ::dlerror());
  const auto version = symbol<std::uint32_t (*)()>(object, "tutti_plugin_version");
  const auto first = symbol<const TuttiPluginAlgorithm* (*)()>(object, "tutti_plugin_algorithms");
  if (version == nullptr || first == nullptr) {
    refuse("no plug-in: its source does not include <tutti/plugin/algorithm.h>");
  }
  if (version() != kTuttiPluginVersion) refuse("built with another version of <tutti/plugin/algorithm.h>");
  std::vector<PluginAlgorithm> list;
  for (const TuttiPluginAlgorithm* entry = first(); entry != nullptr; entry = entry->next) {
    const std::optional<Collective> collective = collective_of_name(entry->collective);
    if (!collective) refuse("\"" + std::string(entry->collective) + "\" is no collective that a plug-in can be for");
    const std::uint64_t identity = Identity().add("plugin").add(content).add(entry->name).value();
    AlgorithmLimits limits;
    limits.min_bytes = entry->min_bytes;
    limits.max_bytes = entry->max_bytes;
    list.push_back({entry->function, std::make_shared<UserPlugin>(*entry, *collective, identity, limits, kernels)});
  }
  if (list.empty()) refuse("it has no TUTTI_NATIVE_ALGORITHM");
  return list;
}

}  // namespace tutti
