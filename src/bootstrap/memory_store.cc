#include "bootstrap/memory_store.h"

#include <algorithm>

#include "base/parse.h"
#include "tutti/error.h"

namespace tutti {

void MemoryStore::set(std::string_view key, std::string_view value) {
  {
    const std::lock_guard lock(mutex_);
    values_.insert_or_assign(std::string(key), std::string(value));
  }
  changed_.notify_all();
}

std::string MemoryStore::get(std::string_view key, std::chrono::milliseconds timeout) {
  // A day is "never" here, and cannot overflow the clock.
  const auto end =
      std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24));
  std::unique_lock lock(mutex_);
  auto found = values_.end();
  changed_.wait_until(lock, end, [&] { return (found = values_.find(key)) != values_.end(); });
  if (found == values_.end()) {
    throw_error(ErrorKind::kTimeout, "no rank has set the store's key \"" + std::string(key) + "\" within " +
                                         std::to_string(timeout.count()) + " ms");
  }
  return found->second;
}

std::int64_t MemoryStore::add(std::string_view key, std::int64_t amount) {
  std::int64_t sum = amount;
  {
    const std::lock_guard lock(mutex_);
    std::string& value = values_.try_emplace(std::string(key)).first->second;
    std::int64_t old = 0;
    if (!value.empty() && !parse_number(value, old)) {
      throw_error(ErrorKind::kInvalidArgument, "the store's key \"" + std::string(key) + "\" holds no number");
    }
    sum += old;
    value = std::to_string(sum);
  }
  changed_.notify_all();
  return sum;
}

void MemoryStore::erase(std::string_view key) noexcept {
  const std::lock_guard lock(mutex_);
  if (const auto found = values_.find(key); found != values_.end()) values_.erase(found);
}

std::size_t MemoryStore::keys() const {
  const std::lock_guard lock(mutex_);
  return values_.size();
}

}  // namespace tutti
