// Its communicators meet their peers, keep their time limit, and do nothing else.
#include "communicator/told_device.h"

#include <atomic>
#include <chrono>
#include <memory>

#include "support/cuda_communicators.h"

namespace {

using namespace tutti;

test::Told& told() {
  static test::Told one;
  return one;
}

void tell(const std::function<void()>& of) {
  if (of) of();
}

class ToldCommunicator final : public test::Bare<StreamCommunicator> {
 public:
  ToldCommunicator(const Bootstrap& bootstrap, const DeviceOptions& options)
      : Bare(bootstrap.rank(), bootstrap.size(), options), timeout_ms_(options.timeout.count()) {}
  void run(const Call&, DeviceStream, std::chrono::milliseconds) override {}
  // relaxed, here and below: a number, and nothing beside it.
  std::chrono::milliseconds timeout() const noexcept override {
    return std::chrono::milliseconds(timeout_ms_.load(std::memory_order_relaxed));
  }
  void set_timeout(std::chrono::milliseconds timeout) override {
    tell(told().setting_timeout);
    timeout_ms_.store(timeout.count(), std::memory_order_relaxed);
  }

 private:
  std::atomic<std::int64_t> timeout_ms_;
};

class ToldDevice final : public test::BareDevice {
 public:
  std::string_view name() const noexcept override { return "told"; }
  void begin_thread(int device) override {
    if (told().beginning) told().beginning(device);
  }
  StreamCommunicatorPtr make_communicator(const BootstrapPtr& bootstrap, const DeviceOptions& options) override {
    tell(told().meeting);
    if (told().making) told().making(bootstrap->id(), options);
    bootstrap->all_gather("here", "", options.timeout);
    return std::make_shared<ToldCommunicator>(*bootstrap, options);
  }
};

constexpr DevicePlugin kPlugin = test::plugin_of<ToldDevice>("told");

}  // namespace

extern "C" __attribute__((visibility("default"))) const tutti::DevicePlugin* tutti_device_plugin() noexcept {
  return &kPlugin;
}
extern "C" __attribute__((visibility("default"))) tutti::test::Told* tutti_told() noexcept { return &told(); }
