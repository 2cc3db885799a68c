// A store inside one process, for ranks that are threads.
//
// Thread rule: unlike other stores, one MemoryStore may be called from any number of threads at once.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>

#include "tutti/store.h"

namespace tutti {

class MemoryStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  void erase(std::string_view key) noexcept override;

  std::size_t keys() const;

 private:
  mutable std::mutex mutex_;  // guards values_; taken alone
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace tutti
