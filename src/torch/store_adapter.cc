#include "torch/store_adapter.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "base/interruption.h"
#include "bootstrap/look.h"
#include "tutti/error.h"

namespace tutti::face {
namespace {

constexpr std::chrono::milliseconds kRoundTrip{1000};

std::string to_string(const std::vector<uint8_t>& bytes) { return std::string(bytes.begin(), bytes.end()); }

// c10d stores tell a timeout from a lost connection by their text only.
[[noreturn]] void throw_store_error(const std::string& what, std::chrono::milliseconds timeout,
                                    const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) throw;  // not the store's
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  const bool late = text.find("imeout") != std::string::npos || text.find("imed out") != std::string::npos;
  throw Error(late ? ErrorKind::kTimeout : ErrorKind::kPeerLost,
              "the store did not give " + what + " within " + std::to_string(timeout.count()) + " ms: " + text);
}

}  // namespace

StoreAdapter::StoreAdapter(const c10::intrusive_ptr<c10d::Store>& store) : store_(store) {}

// True as well where the store cannot tell: get() says why.
bool StoreAdapter::is_there(const std::vector<std::string>& keys) {
  try {
    return store_->check(keys);
  } catch (const std::exception&) {
    return true;
  }
}

// Whether the keys are there before the time is up. True as well where the store cannot tell: get() says why.
bool StoreAdapter::await(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  const auto there = [&] { return is_there(keys); };
  const auto ask = [&] { throw_if_interrupted("waiting for the store to give '" + keys.front() + "'"); };
  // A check names all keys: the more there are, the less often, or all ranks' together keep the store busy.
  return look_for(there, ask, timeout, std::max(kLongestPause, std::chrono::milliseconds(keys.size() / 2)));
}

template <typename Operation>
auto StoreAdapter::waiting(const std::string& what, const std::vector<std::string>& keys,
                           std::chrono::milliseconds timeout, Operation operation) {
  const auto start = std::chrono::steady_clock::now();
  if (!await(keys, timeout)) {
    throw Error(ErrorKind::kTimeout,
                "the store did not give " + what + " within " + std::to_string(timeout.count()) + " ms");
  }
  const auto spent = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  const auto left = std::max(timeout - spent, kRoundTrip);  // they are there
  try {
    const c10d::StoreTimeoutGuard guard(*store_, left);
    return operation();
  } catch (const std::exception& error) {
    throw_store_error(what, timeout, error);
  }
}

void StoreAdapter::set(std::string_view key, std::string_view value) {
  try {
    store_->set(std::string(key), std::vector<uint8_t>(value.begin(), value.end()));
  } catch (const std::exception& error) {
    throw_store_error("a place to '" + std::string(key) + "'", store_->getTimeout(), error);
  }
}

std::string StoreAdapter::get(std::string_view key, std::chrono::milliseconds timeout) {
  const std::string name(key);
  return waiting("'" + name + "'", {name}, timeout, [&] { return to_string(store_->get(name)); });
}

std::int64_t StoreAdapter::add(std::string_view key, std::int64_t amount) {
  try {
    return store_->add(std::string(key), amount);
  } catch (const std::exception& error) {
    throw_store_error("the counter '" + std::string(key) + "'", store_->getTimeout(), error);
  }
}

std::vector<std::string> StoreAdapter::multi_get(const std::vector<std::string>& keys,
                                                 std::chrono::milliseconds timeout) {
  if (keys.empty()) return {};
  if (!store_->hasExtendedApi()) return Store::multi_get(keys, timeout);
  const std::string what = std::to_string(keys.size()) + " keys from '" + keys.front() + "' on";
  return waiting(what, keys, timeout, [&] {
    std::vector<std::string> values;
    values.reserve(keys.size());
    for (const auto& value : store_->multiGet(keys)) values.push_back(to_string(value));
    return values;
  });
}

void StoreAdapter::erase(std::string_view key) noexcept {
  try {
    store_->deleteKey(std::string(key));
  } catch (const std::exception&) {
    // A store that cannot forget keeps a few bytes.
  }
}

}  // namespace tutti::face
