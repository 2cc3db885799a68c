// A store whose waits look twice a second, and end by what that throws: for those who know more than the store does.
//
// Ownership: none of the store below. Thread rule: that store's; `look` is called on the thread that waits.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bootstrap/look.h"
#include "tutti/store.h"

namespace tutti {

class WatchedStore final : public Store {
 public:
  WatchedStore(Store& below, std::function<void()> look) : below_(below), look_(std::move(look)) {}

  void set(std::string_view key, std::string_view value) override { below_.set(key, value); }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    look_now_and_then();
    return watched(look_, timeout, [&](std::chrono::milliseconds time) { return below_.get(key, time); });
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override { return below_.add(key, amount); }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    look_now_and_then();
    return watched(look_, timeout, [&](std::chrono::milliseconds time) { return below_.multi_get(keys, time); });
  }
  void erase(std::string_view key) noexcept override { below_.erase(key); }

 private:
  // Whoever waits here may do so in short waits, none of which gets to a look.
  void look_now_and_then() {
    constexpr std::int64_t kEveryNs = 500'000'000;
    if (now_ns() < look_at_ns_) return;
    look_();
    look_at_ns_ = now_ns() + kEveryNs;
  }

  Store& below_;
  const std::function<void()> look_;
  std::int64_t look_at_ns_ = now_ns();
};

}  // namespace tutti
