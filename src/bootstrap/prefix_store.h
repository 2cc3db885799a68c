// A part of another store, for one user of it: every key is preceded by a prefix and its length, so that the keys of
// two prefixes cannot meet.
//
// Ownership: shares the store below. Thread rule: that store's.
#pragma once

#include <memory>
#include <string>

#include "tutti/store.h"

namespace tutti {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::string_view prefix, std::shared_ptr<Store> store);

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  void erase(std::string_view key) noexcept override;

 private:
  std::string full(std::string_view key) const;

  std::string prefix_;  // with its length and the delimiter
  std::shared_ptr<Store> store_;
};

}  // namespace tutti
