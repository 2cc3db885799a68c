// A plug-in for CUDA without CUDA: its communicators check and record the calls. FAKE_REFUSES names a rank that cannot
// make one.
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

#include "communicator/call_check.h"
#include "device/registry.h"
#include "tutti/cuda_communicator.h"

namespace {

using namespace tutti;

std::mutex mutex;
std::string log_text;
std::atomic<bool> failed{false};

class FakeCommunicator final : public CudaCommunicator {
 public:
  FakeCommunicator(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  int device() const noexcept override { return 0; }
  void check(const Call& call) const override { check_call(call, rank_, size_); }
  void run(const Call& call, CudaStream, std::chrono::milliseconds) override {
    check(call);
    if (failed || aborted_) throw_error(ErrorKind::kPeerLost, "rank 1 is gone");
    const std::lock_guard lock(mutex);
    log_text +=
        (log_text.empty() ? "" : " ") + std::string(to_string(call.collective)) + ":" + std::to_string(call.count);
  }
  std::shared_ptr<CudaMemory> allocate(Store&, const std::string&, std::size_t) override { return nullptr; }
  void run_in(const CudaRegion&, const Call&, CudaStream, std::chrono::milliseconds) override {}
  std::vector<std::shared_ptr<CudaRegion>> register_memory(Store&, const std::vector<CudaRange>&) override {
    return {};
  }
  void unregister_memory(Store&, std::vector<std::shared_ptr<CudaRegion>>) override {}
  std::uint32_t port_memory(const CudaRegion&) override { return 0; }
  bool is_registered(const void*, std::size_t) const override { return false; }
  std::uint64_t direct_calls() const noexcept override { return 0; }
  void exchange(const std::vector<CudaMessage>&, CudaStream, std::chrono::milliseconds) override {}
  void all_reduce_add_rms_norm(const CudaAddRmsNorm&, CudaStream, std::chrono::milliseconds) override {}
  void all_reduce_quantized(const CudaQuantizedAllReduce&, CudaStream, std::chrono::milliseconds) override {}
  bool is_capturing(CudaStream) const override { return false; }
  void synchronize(CudaStream) override {}
  std::optional<Error> failure() const override {
    if (failed) return Error(ErrorKind::kPeerLost, "rank 1 is gone");
    return std::nullopt;
  }
  void abort(const std::string&) noexcept override { aborted_ = true; }
  void set_timeout(std::chrono::milliseconds) noexcept override {}
  std::string explain(const Call&) const override { return "fake"; }
  std::string explain_in(const Call&) const override { return "fake"; }
  const std::string& transport() const noexcept override { return transport_; }
  Metrics metrics() const override { return {}; }
  void reset_metrics() noexcept override {}
  std::string flight_record() const override { return {}; }
  std::uint64_t sequence() const noexcept override { return 0; }

 private:
  const int rank_, size_;
  const std::string transport_ = "peer memory of nothing";
  std::atomic<bool> aborted_{false};
};

class FakeDevice final : public Device {
 public:
  std::string_view name() const noexcept override { return "cuda"; }
  void* allocate(std::size_t) override { return nullptr; }
  void deallocate(void*, std::size_t) noexcept override {}
  bool supports(DataType, ReduceOp) const noexcept override { return false; }
  void reduce(void* const*, int, const void* const*, int, std::size_t, DataType, ReduceOp,
              int) const noexcept override {}
  void copy(void*, const void*, std::size_t) const noexcept override {}
  void synchronize() override {}
  // Meets the others in the store, as the real one does.
  std::shared_ptr<CudaCommunicator> make_communicator(Store& store, const std::string& id, int rank, int size,
                                                      const CudaOptions& options) override {
    const char* const refuses = std::getenv("FAKE_REFUSES");
    if (refuses != nullptr && std::atoi(refuses) == rank) throw_error(ErrorKind::kUnsupported, "no room on this GPU");
    store.set(id + std::to_string(rank), options.secret);
    for (int r = 0; refuses == nullptr && r < size; ++r) {
      if (store.get(id + std::to_string(r), options.timeout) != options.secret) {
        throw_error(ErrorKind::kInternal, "another group's key");
      }
    }
    return std::make_shared<FakeCommunicator>(rank, size);
  }
};

constexpr DevicePlugin kPlugin{kDeviceAbiVersion, "cuda", []() -> Device* { return new FakeDevice; },
                               [](Device* device) noexcept { delete device; }};

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
extern "C" __attribute__((visibility("default"))) const char* fake_fails() {
  failed = true;
  return "";
}
