#include "bootstrap/bootstrap.h"

#include <mutex>

#include "bootstrap/exchange.h"

namespace tutti {
namespace {

class StoreBootstrap final : public Bootstrap {
 public:
  StoreBootstrap(std::shared_ptr<Store> store, const std::string& id, int rank, int size)
      : Bootstrap(id, rank, size), store_(std::move(store)) {}

  std::vector<std::string> all_gather(std::string_view topic, std::string_view blob,
                                      std::chrono::milliseconds timeout) override {
    const std::lock_guard lock(mutex_);
    return exchange(*store_, id(), topic, rank(), size(), blob, timeout);
  }
  void watch() override {
    const std::lock_guard lock(mutex_);
    throw_if_told(*store_, id(), rank());
  }
  void tell(const std::exception& error) noexcept override {
    const std::lock_guard lock(mutex_);
    tell_failure(*store_, id(), rank(), error);
  }
  bool failed_before() noexcept override {
    const std::lock_guard lock(mutex_);
    return tutti::failed_before(*store_, id(), rank());
  }

 private:
  const std::shared_ptr<Store> store_;
  std::mutex mutex_;  // of the store, which serves one thread at a time; a leaf but for the store's own
};

}  // namespace

BootstrapPtr store_bootstrap(std::shared_ptr<Store> store, const std::string& id, int rank, int size) {
  return std::make_shared<StoreBootstrap>(std::move(store), id, rank, size);
}

}  // namespace tutti
