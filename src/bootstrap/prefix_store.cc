#include "bootstrap/prefix_store.h"

#include <utility>

namespace tutti {

PrefixStore::PrefixStore(std::string_view prefix, std::shared_ptr<Store> store)
    : prefix_(std::to_string(prefix.size()) + ":" + std::string(prefix) + "/"), store_(std::move(store)) {}

std::string PrefixStore::full(std::string_view key) const {
  std::string whole = prefix_;
  whole += key;
  return whole;
}

void PrefixStore::set(std::string_view key, std::string_view value) { store_->set(full(key), value); }

std::string PrefixStore::get(std::string_view key, std::chrono::milliseconds timeout) {
  return store_->get(full(key), timeout);
}

std::int64_t PrefixStore::add(std::string_view key, std::int64_t amount) { return store_->add(full(key), amount); }

std::vector<std::string> PrefixStore::multi_get(const std::vector<std::string>& keys,
                                                std::chrono::milliseconds timeout) {
  std::vector<std::string> whole;
  whole.reserve(keys.size());
  for (const std::string& key : keys) whole.push_back(full(key));
  return store_->multi_get(whole, timeout);
}

void PrefixStore::erase(std::string_view key) noexcept {
  try {
    store_->erase(full(key));
  } catch (const std::bad_alloc&) {
    // Not erased: the key stays, which is never an error.
  }
}

}  // namespace tutti
