// A c10d store as the Store that communicators are created over.
//
// Ownership: shares the c10d store, as PyTorch's own backends do. Rejected: a clone, which opens a connection and looks
// up names for each group. Thread rule: a waiting get holds the store's lock, so rank threads need a store each.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tutti/store.h"

namespace tutti::face {

class StoreAdapter final : public Store {
 public:
  explicit StoreAdapter(const c10::intrusive_ptr<c10d::Store>& store);

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  void erase(std::string_view key) noexcept override;

 private:
  // Runs `operation` once the keys are there, with what is left of the time as the store's own limit. The keys are
  // looked for, since c10d's own wait hears of no signal of the program's, and its client says of each wait that times
  // out, as those of a late rank's peers do twice a second, that something may be wrong.
  template <typename Operation>
  auto waiting(const std::string& what, const std::vector<std::string>& keys, std::chrono::milliseconds timeout,
               Operation operation);
  bool is_there(const std::vector<std::string>& keys);
  bool await(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace tutti::face
