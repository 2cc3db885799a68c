#include "tutti/store.h"

#include <algorithm>

#include "base/clock.h"

namespace tutti {

bool Store::set_for(int /*reader*/, std::string_view key, std::string_view value) {
  set(key, value);
  return true;
}

std::vector<std::string> Store::multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  Deadline deadline = Deadline::after(timeout);
  std::vector<std::string> values;
  values.reserve(keys.size());
  for (const std::string& key : keys) {
    // At least 1 ms: a key that is there is returned even when another one has used up the time.
    const std::int64_t left_ms = std::max<std::int64_t>(1, deadline.remaining_ns() / 1'000'000);
    values.push_back(get(key, std::chrono::milliseconds(left_ms)));
  }
  return values;
}

}  // namespace tutti
