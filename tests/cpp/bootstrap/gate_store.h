// A store that holds its rank back, or counts what it asks: for tests that need an order, or a price.
//
// Ownership: borrows the store below. Thread rule: one rank; the counters are read when it is done.
#pragma once

#include <functional>
#include <utility>

#include "tutti/store.h"

namespace tutti::test {

class GateStore final : public Store {
 public:
  explicit GateStore(Store& below) : below_(below) {}

  // Runs once the first multi_get has its values, before the rank sees them.
  std::function<void()> after_exchange;

  int sets = 0;
  int waits = 0;  // round trips: get, multi_get, add

  void set(std::string_view key, std::string_view value) override {
    ++sets;
    below_.set(key, value);
  }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    ++waits;
    return below_.get(key, timeout);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    ++waits;
    return below_.add(key, amount);
  }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    ++waits;
    auto values = below_.multi_get(keys, timeout);
    if (after_exchange) std::exchange(after_exchange, nullptr)();
    return values;
  }
  void erase(std::string_view key) noexcept override { below_.erase(key); }

 private:
  Store& below_;
};

}  // namespace tutti::test
