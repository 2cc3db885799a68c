// A store that passes everything on to another, for tests that see to a part of it. `begin()` is called before,
// and `done()` behind each operation that is not an erasure.
//
// Ownership: the store below outlives it. Thread rule: that of the store below.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/store.h"

namespace tutti::test {

class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(Store& below) : below_(below) {}

  void set(std::string_view key, std::string_view value) override {
    begin();
    below_.set(key, value);
    done();
  }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    begin();
    std::string value = below_.get(key, timeout);
    done();
    return value;
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    begin();
    const std::int64_t sum = below_.add(key, amount);
    done();
    return sum;
  }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    begin();
    auto values = below_.multi_get(keys, timeout);
    done();
    return values;
  }
  void erase(std::string_view key) noexcept override { below_.erase(key); }

 protected:
  virtual void begin() {}
  virtual void done() {}
  Store& below_;
};

}  // namespace tutti::test
