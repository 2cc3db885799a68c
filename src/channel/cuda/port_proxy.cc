#include "channel/cuda/port_proxy.h"

#include <sys/prctl.h>

#include <algorithm>

#include "base/no_memory.h"
#include "base/thread.h"

namespace tutti::cuda {
namespace {

// The first free entry of a table, or a new one at its end.
template <class Entry, class Free>
std::uint32_t place_for(std::vector<Entry>& table, Free is_free, const char* what) {
  const auto found = std::find_if(table.begin(), table.end(), is_free);
  const auto index = static_cast<std::size_t>(found - table.begin());
  if (index >= device::kPortIds) {
    throw_error(ErrorKind::kExhausted, std::string("more than 2^20 ") + what + " of one communicator");
  }
  if (found == table.end()) table.emplace_back();
  return static_cast<std::uint32_t>(index);
}

}  // namespace

PortProxy::PortProxy(std::unique_ptr<CopyEngine> engine, const Shared& shared, int rank, int ranks)
    : engine_(std::move(engine)),
      shared_(shared),
      rank_(rank),
      ring_(shared.slots, shared.tail, shared.size),
      flushes_(static_cast<std::size_t>(ranks)),
      thread_(start_thread("of ports of GPUs", [this] { run(); })) {}

PortProxy::~PortProxy() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  bell_.notify_all();
  thread_.join();
}

std::uint32_t PortProxy::add_memory(std::vector<std::byte*> data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t number = place_for(
      memories_, [](const Memory& m) { return m.data.empty(); }, "memories");
  memories_[number] = {std::move(data), bytes};
  return number;
}

std::uint32_t PortProxy::add_port(int peer, std::uint64_t* word) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t number = place_for(
      ports_, [](const Port& p) { return p.peer < 0; }, "ports");
  ports_[number] = {peer, word, 0};
  return number;
}

void PortProxy::remove(std::uint32_t memory, const std::vector<std::uint32_t>& ports) {
  drain();
  const std::lock_guard lock(mutex_);
  memories_[memory] = {};
  for (const std::uint32_t port : ports) ports_[port] = {};
}

void PortProxy::drain() {
  std::unique_lock lock(mutex_);
  const std::uint64_t mine = ++drains_asked_;
  bell_.notify_all();
  drained_.wait(lock, [&] { return drains_done_ >= mine || left_; });
  if (drains_done_ >= mine) return;
  // The proxy has left, and gives no more to the engine.
  try {
    engine_->finish();
  } catch (const Error&) {  // it has failed before: that is why the proxy has left
  }
}

std::optional<Error> PortProxy::failure() const {
  // acquire: pairs with the release in fail().
  if (!failed_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool PortProxy::communicator_failed() const noexcept {
  return device::load_relaxed(&shared_.control->abort) != 0 || device::load_relaxed(&shared_.control->code) != 0;
}

void PortProxy::fail(const Error& error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    failure_ = error;
    failed_.store(true, std::memory_order_release);  // release: publishes that there is a failure to failure()
  }
  // Ends this rank's kernels that wait; they tell the peers.
  device::store_relaxed(&shared_.control->abort, 1);
}

void PortProxy::run() noexcept {
  // Pauses are short: the kernel's default slack of 50 us would be a good part of them.
  ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  try {
    engine_->begin_thread();
    serve();
  } catch (const Error& error) {
    fail(error);
  } catch (const std::bad_alloc&) {
    fail(no_memory([] { return std::string("the proxy of ports has no memory"); }));
  } catch (const std::exception& error) {
    fail(Error(ErrorKind::kInternal, std::string("the proxy of ports: ") + error.what()));
  }
  const std::lock_guard lock(mutex_);
  left_ = true;
  drained_.notify_all();
}

void PortProxy::serve() {
  IdlePace pace;
  while (!communicator_failed()) {
    std::uint64_t asked = 0;
    bool stopping = false;
    {
      const std::lock_guard lock(mutex_);
      asked = drains_asked_;
      stopping = stopping_;
    }
    // Read before the look at the ring: what was asked for by then has been put into it before.
    const bool moved = answer_flushes() | serve_one();
    if (moved) {
      pace.busy(IdlePace::Clock::now());
      continue;
    }
    if (asked != drains_done_ || stopping) {
      engine_->finish();
      if (answer_flushes()) continue;
      const std::lock_guard lock(mutex_);
      drains_done_ = asked;
      drained_.notify_all();
      if (stopping) return;
      continue;
    }
    const auto pause = flushes_under_way_ > 0 ? std::chrono::microseconds(0) : pace.next(IdlePace::Clock::now());
    if (pause.count() == 0) {
      std::this_thread::yield();
      continue;
    }
    std::unique_lock lock(mutex_);
    bell_.wait_for(lock, pause, [&] { return stopping_ || drains_asked_ != drains_done_; });
  }
}

// Answers the flushes whose marks have been reached. True if there were any.
bool PortProxy::answer_flushes() {
  if (flushes_under_way_ == 0) return false;
  bool any = false;
  for (std::size_t peer = 0; peer < flushes_.size(); ++peer) {
    std::deque<std::uint64_t>& waiting = flushes_[peer];
    if (waiting.empty()) continue;
    std::uint64_t last = 0;
    for (int n = engine_->take_reached(static_cast<int>(peer)); n > 0; --n) {
      last = waiting.front() + 1;
      waiting.pop_front();
      --flushes_under_way_;
    }
    if (last == 0) continue;
    // release: the copies have read their sources; pairs with the acquire in PortChannel::flush.
    device::store_release(&shared_.flushed[peer], last);
    any = true;
  }
  return any;
}

// Takes one request, if there is one and the engine has room for it.
bool PortProxy::serve_one() {
  const std::optional<device::PortRequest> request = ring_.front();
  if (!request) return false;
  const std::lock_guard lock(mutex_);
  if (!carry_out(*request)) return false;
  ring_.pop();
  return true;
}

// False: only the mark of its flush is missing, for which there is no room now.
bool PortProxy::carry_out(const device::PortRequest& request) {
  if (request.port >= ports_.size() || ports_[request.port].peer < 0) {
    throw_error(ErrorKind::kInvalidArgument, "a kernel uses port " + std::to_string(request.port) +
                                                 ", which is gone: memory must outlive the kernels that use its ports");
  }
  Port& port = ports_[request.port];
  if (done_ != ring_.position()) {
    if ((request.kind & device::kPortPut) != 0 && request.bytes > 0) put(request, port.peer);
    if ((request.kind & device::kPortSignal) != 0) engine_->store(port.peer, port.word, ++port.signals);
    done_ = ring_.position();
  }
  if ((request.kind & device::kPortFlush) == 0) return true;
  if (!engine_->mark(port.peer)) return false;
  flushes_[static_cast<std::size_t>(port.peer)].push_back(ring_.position());
  ++flushes_under_way_;
  return true;
}

void PortProxy::put(const device::PortRequest& request, int peer) {
  std::byte* to = place(request.to_memory, peer, request.to, request.bytes, "to");
  const std::byte* from = place(request.from_memory, rank_, request.from, request.bytes, "from");
  engine_->copy(peer, to, from, request.bytes);
}

std::byte* PortProxy::place(std::uint32_t number, int owner, std::uint64_t offset, std::uint64_t bytes,
                            const char* what) const {
  const std::string text = std::string("a kernel puts ") + std::to_string(bytes) + " bytes " + what + " offset " +
                           std::to_string(offset) + " of memory " + std::to_string(number);
  if (number >= memories_.size() || memories_[number].data.empty()) {
    throw_error(ErrorKind::kInvalidArgument, text + ", which is gone: memory must outlive the kernels that use it");
  }
  const Memory& memory = memories_[number];
  std::byte* base = memory.data[static_cast<std::size_t>(owner)];
  if (base == nullptr) {
    throw_error(ErrorKind::kInvalidArgument, text + ", of which rank " + std::to_string(owner) + " has no part here");
  }
  if (offset > memory.bytes || bytes > memory.bytes - offset) {
    throw_error(ErrorKind::kInvalidArgument, text + ", which has " + std::to_string(memory.bytes) + " bytes");
  }
  return base + offset;
}

}  // namespace tutti::cuda
