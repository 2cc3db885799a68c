// A plug-in for CUDA without CUDA: its communicators check and record the calls. FAKE_REFUSES names a rank that cannot
// make one, FAKE_WAIT_FD a descriptor that the others have to wake this rank by before it has made its own,
// FAKE_LATE_FD one before it meets them. With FAKE_HANGS, a descriptor, kernels run until they are aborted; a byte says
// that they are waited for, and another that the communicator has ended. With FAKE_BEHIND_NCCL, a descriptor, they lie
// behind a kernel of NCCL's, and then wait for a byte. FAKE_FAILURE is the kind of error that
// fake_fails() brings. FAKE_THROWS_AT is the number of the call, of all of the process, that cannot be issued.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string>

#include "base/collective_traits.h"
#include "bootstrap/exchange.h"
#include "support/cuda_communicators.h"
#include "support/no_threads.h"

namespace {

using namespace tutti;

std::mutex mutex;
std::string log_text;
std::atomic<bool> failed{false};
std::atomic<bool> blocks_signals{false};  // where the last communicator was made
std::atomic<int> working{0};              // threads that are here
std::atomic<int> calls{0};
std::string aborts;  // the reasons, guarded by `mutex`

struct Working {
  Working() { ++working; }
  ~Working() { --working; }
};

void tell(int fd) {
  if (fd >= 0 && ::write(fd, "!", 1) != 1) std::abort();
}

class FakeCommunicator final : public test::BareCommunicator {
 public:
  using BareCommunicator::BareCommunicator;
  ~FakeCommunicator() override {
    finish();
    tell(hangs_);
  }
  void run(const Call& call, CudaStream, std::chrono::milliseconds) override {
    check(call);
    if (const auto error = failure()) throw Error(*error);
    const std::lock_guard lock(mutex);
    std::ostringstream text;
    text << (log_text.empty() ? "" : " ") << to_string(call.collective) << ":" << call.count;
    if (device() != 0) text << "@" << device();
    if (call.collective == Collective::kBroadcast && call.input.base != call.output.base) text << " elsewhere";
    if (call.op == ReduceOp::kPremulSum && reduces(call.collective)) {
      if (call.device_factor != nullptr) {
        text << "*at " << call.device_factor;
      } else {
        text << "*" << call.factor;
      }
    }
    if (call.choice != nullptr) text << " by " << call.choice->algorithm->name();
    log_text += text.str();
  }
  void run_as(std::uint64_t plan, const Call& call, CudaStream stream, std::chrono::milliseconds timeout) override {
    const char* const throws = std::getenv("FAKE_THROWS_AT");
    if (++calls == (throws != nullptr ? std::atoi(throws) : 0)) {
      throw_error(ErrorKind::kInternal, "the queue of launches is gone");
    }
    BareCommunicator::run_as(plan, call, stream, timeout);
  }
  void synchronize(CudaStream) override {}
  void finish() noexcept override {
    await_nccl();
    if (hangs_ < 0 || aborted_) return;
    const Working here;
    tell(hangs_);
    std::unique_lock lock(ending_);
    ended_.wait(lock, [this] { return aborted_.load(); });
  }
  std::optional<Error> failure() const override {
    if (!failed && !aborted_) return std::nullopt;
    const char* const kind = std::getenv("FAKE_FAILURE");
    return Error(kind != nullptr ? static_cast<ErrorKind>(std::atoi(kind)) : ErrorKind::kPeerLost, "rank 1 is gone");
  }
  void abort(const std::string& reason) noexcept override {
    {
      const std::lock_guard lock(mutex);
      aborts += (aborts.empty() ? "" : "; ") + reason;
    }
    const std::lock_guard lock(ending_);
    aborted_ = true;
    ended_.notify_all();
  }

 private:
  void await_nccl() noexcept {
    const char* const woken = std::getenv("FAKE_BEHIND_NCCL");
    if (woken == nullptr) return;
    void* const nccl = ::dlopen(std::getenv("TUTTI_NCCL_LIB_PATH"), RTLD_NOW | RTLD_NOLOAD);
    const auto await = reinterpret_cast<bool (*)()>(::dlsym(nccl, "stand_in_await_kernels"));
    const bool over = await();
    ::dlclose(nccl);
    char byte = 0;
    if (over && ::read(std::atoi(woken), &byte, 1) != 1) std::abort();
  }

  const int hangs_ = std::getenv("FAKE_HANGS") != nullptr ? std::atoi(std::getenv("FAKE_HANGS")) : -1;
  std::atomic<bool> aborted_{false};
  std::mutex ending_;
  std::condition_variable ended_;
};

void await_byte(const char* variable) {
  const char* const fd = std::getenv(variable);
  char byte = 0;
  if (fd != nullptr && ::read(std::atoi(fd), &byte, 1) != 1) {
    throw_error(ErrorKind::kInternal, "nobody woke this rank");
  }
}

class FakeDevice final : public test::BareDevice {
 public:
  // Meets the others, as the real one does, and compares plans of files.
  StreamCommunicatorPtr make_communicator(const BootstrapPtr& bootstrap, const DeviceOptions& options) override {
    const Working here;
    blocks_signals = test::blocks_signals();
    const int rank = bootstrap->rank(), size = bootstrap->size();
    const char* const refuses = std::getenv("FAKE_REFUSES");
    if (refuses != nullptr && std::atoi(refuses) == rank) throw_error(ErrorKind::kUnsupported, "no room on this GPU");
    const Config& config = *options.config;
    const PlanFiles plans = load_plans(config.plan_path, size, cache_folder(config));
    await_byte("FAKE_LATE_FD");
    const std::string mine = config.secret + " " + std::to_string(plans.identity);
    for (const std::string& other : bootstrap->all_gather(kCudaTopic, mine, options.timeout)) {
      if (other.substr(0, other.find(' ')) != config.secret) {
        throw_error(ErrorKind::kInternal, "another group's key");
      }
      if (other != mine) throw_error(ErrorKind::kInvalidArgument, "ranks have different plans");
    }
    await_byte("FAKE_WAIT_FD");
    auto made = std::make_shared<FakeCommunicator>(rank, size, options);
    made->use_files(options);
    return made;
  }
};

constexpr DevicePlugin kPlugin = test::plugin_of<FakeDevice>("cuda");

}  // namespace

extern "C" __attribute__((visibility("default"))) const tutti::DevicePlugin* tutti_device_plugin() noexcept {
  return &kPlugin;
}

// The calls so far, and forgets them.
extern "C" __attribute__((visibility("default"))) const char* fake_take() {
  static thread_local std::string taken;
  const std::lock_guard lock(mutex);
  taken = std::move(log_text);
  log_text.clear();
  return taken.c_str();
}
// Why communicators have been aborted, and forgets it.
extern "C" __attribute__((visibility("default"))) const char* fake_take_aborts() {
  static thread_local std::string taken;
  const std::lock_guard lock(mutex);
  taken = std::move(aborts);
  aborts.clear();
  return taken.c_str();
}
extern "C" __attribute__((visibility("default"))) const char* fake_fails() {
  failed = true;
  return "";
}
extern "C" __attribute__((visibility("default"))) const char* fake_blocks_signals() {
  return blocks_signals ? "yes" : "no";
}
// Whether a thread forms a communicator or waits for its kernels.
extern "C" __attribute__((visibility("default"))) const char* fake_works() { return working > 0 ? "yes" : "no"; }
