// Counts what ranks ask of a store.
//
// Ownership: borrows the store below and the counters, which may lie in memory that processes share. Thread rule: that
// of the store below; the counters are read when the ranks are done.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "bootstrap/forwarding_store.h"

namespace tutti::test {

// relaxed throughout: read when the ranks have been joined.
struct StoreCosts {
  std::atomic<std::size_t> keys_written{0}, keys_read{0}, bytes_written{0}, bytes_read{0};

  void wrote(std::size_t bytes) {
    keys_written.fetch_add(1, std::memory_order_relaxed);
    bytes_written.fetch_add(bytes, std::memory_order_relaxed);
  }
  void read(std::size_t bytes) {
    keys_read.fetch_add(1, std::memory_order_relaxed);
    bytes_read.fetch_add(bytes, std::memory_order_relaxed);
  }
};

class CountingStore final : public ForwardingStore {
 public:
  CountingStore(Store& below, StoreCosts& costs) : ForwardingStore(below), costs_(costs) {}

  void set(std::string_view key, std::string_view value) override {
    costs_.wrote(value.size());
    below_.set(key, value);
  }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    std::string value = below_.get(key, timeout);
    costs_.read(value.size());
    return value;
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    // A look at a counter is one of those that are repeated for as long as something takes.
    if (amount != 0) costs_.wrote(sizeof amount);
    return below_.add(key, amount);
  }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    auto values = below_.multi_get(keys, timeout);
    for (const std::string& value : values) costs_.read(value.size());
    return values;
  }

 private:
  StoreCosts& costs_;
};

}  // namespace tutti::test
