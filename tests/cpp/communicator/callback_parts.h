// What tests of callbacks have in common.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>

namespace tutti::test {

inline constexpr auto kBound = std::chrono::seconds(60);

// A call that holds it does not complete before it is opened: callbacks can be attached in time.
class Gate {
 public:
  std::shared_ptr<void> hold() {
    return {this, [opened = opened_](void*) { opened.wait(); }};
  }
  void open() { open_.set_value(); }

 private:
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

template <typename T>
T within_bound(std::future<T> future) {
  if (future.wait_for(kBound) != std::future_status::ready) throw std::runtime_error("it hangs");
  return future.get();
}

}  // namespace tutti::test
