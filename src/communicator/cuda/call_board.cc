#include "communicator/cuda/call_board.h"

#include <atomic>
#include <cstring>

namespace tutti::cuda {
namespace {

constexpr std::size_t kWords = sizeof(CallRecord) / sizeof(std::uint64_t);

// relaxed everywhere: whether an entry is whole is told by its fingerprint, not by an order.
CallRecord load(const std::byte* from) noexcept {
  std::uint64_t words[kWords];
  auto* shared = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from));
  for (std::size_t i = 0; i < kWords; ++i) words[i] = std::atomic_ref(shared[i]).load(std::memory_order_relaxed);
  CallRecord record;
  std::memcpy(&record, words, sizeof(record));
  return record;
}

void store(std::byte* to, const CallRecord& record) noexcept {
  std::uint64_t words[kWords];
  std::memcpy(words, &record, sizeof(record));
  auto* shared = reinterpret_cast<std::uint64_t*>(to);
  for (std::size_t i = 0; i < kWords; ++i) std::atomic_ref(shared[i]).store(words[i], std::memory_order_relaxed);
}

}  // namespace

CallBoard::CallBoard(int rank, std::vector<std::byte*> tables) : rank_(rank), tables_(std::move(tables)) {
  if (tables_.size() <= static_cast<std::size_t>(rank)) tables_.resize(static_cast<std::size_t>(rank) + 1, nullptr);
  std::byte*& mine = tables_[static_cast<std::size_t>(rank)];
  if (mine != nullptr) return;
  own_.resize(kBytes / sizeof(std::uint64_t));
  mine = reinterpret_cast<std::byte*>(own_.data());
}

void CallBoard::post(const CallRecord& record) noexcept {
  std::byte* place = entry(tables_[static_cast<std::size_t>(rank_)], record.hash);
  if (load(place).hash != record.hash) store(place, record);
}

std::optional<CallRecord> CallBoard::find(int rank, std::uint32_t wanted) const noexcept {
  if (rank < 0 || static_cast<std::size_t>(rank) >= tables_.size()) return std::nullopt;
  std::byte* table = tables_[static_cast<std::size_t>(rank)];
  if (table == nullptr || wanted == 0) return std::nullopt;
  const CallRecord record = load(entry(table, wanted));
  if (record.hash != wanted || fingerprint(record) != wanted) return std::nullopt;
  return record;
}

}  // namespace tutti::cuda
