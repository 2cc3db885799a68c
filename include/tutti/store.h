// A key-value store that all ranks of a job reach: how they find each other.
//
// Thread rule: an implementation may be called from one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

class Store {
 public:
  virtual ~Store() = default;

  // Makes `value` visible to all ranks under `key`.
  virtual void set(std::string_view key, std::string_view value) = 0;

  // Makes it visible to rank `reader` at least, where no other asks for it; whether others see it, too.
  virtual bool set_for(int reader, std::string_view key, std::string_view value);

  // The value of `key`; waits for it. Throws Error(kTimeout) naming the key.
  virtual std::string get(std::string_view key, std::chrono::milliseconds timeout) = 0;

  // Adds to a counter (0 when absent) and returns the sum.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;

  // The values of many keys, in order; waits for all. One round trip where the store can do it.
  virtual std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);

  // Forgets the key where the store can; never an error.
  virtual void erase(std::string_view key) noexcept = 0;
};

}  // namespace tutti
