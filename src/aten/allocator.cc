#include "aten/allocator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <string>

#include "device/cpu/arena.h"
#include "tutti/config.h"
#include "tutti/error.h"

namespace tutti::face {
namespace {

// The arena this process uses, made at the first call; null where it cannot be made.
Arena* arena() noexcept {
  static Arena* const made = []() -> Arena* {
    try {
      return process_arena(config_from_environment().arena_bytes);
    } catch (const Error&) {
      return nullptr;
    }
  }();
  return made;
}

// What frees memory that is not ours; fixed when the first of our allocators is made.
c10::Allocator& previous_allocator() {
  static c10::Allocator* const previous = c10::GetCPUAllocator();
  return *previous;
}

void release(void* data) {
  Arena* const shared = arena();
  if (shared == nullptr || !shared->contains(data)) {
    previous_allocator().raw_deleter()(data);
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(data);
  // A forked child leaves its copy of the arena alone; it ends with the process.
  if (!forked_child()) shared->deallocate(data);
}

void* try_arena(std::size_t bytes) noexcept {
  if (forked_child()) return nullptr;
  Arena* const shared = arena();
  return shared == nullptr ? nullptr : shared->allocate(bytes);
}

c10::DataPtr owned(void* data, std::size_t bytes) {
  c10::profiledCPUMemoryReporter().New(data, bytes);
  return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
}

// Memory of the previous allocator under our deleter: an allocator must give out one deleter only.
c10::DataPtr from_previous(std::size_t bytes) {
  c10::DataPtr data = previous_allocator().allocate(bytes);
  (void)data.compare_exchange_deleter(previous_allocator().raw_deleter(), &release);
  return data;
}

class ArenaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return from_previous(0);
    void* const data = try_arena(bytes);
    if (data == nullptr) {
      throw_error(ErrorKind::kExhausted, "no room for " + std::to_string(bytes) +
                                             " bytes in the arena of mapped tensors (TUTTI_ARENA_BYTES is its size)");
    }
    return owned(data, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, std::size_t count) const override {
    default_copy_data(target, source, count);
  }
};

class SharedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    // relaxed: an independent limit, nothing is published with it
    if (bytes >= threshold_.load(std::memory_order_relaxed)) {
      if (void* const data = try_arena(bytes)) return owned(data, bytes);
    }
    return from_previous(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, std::size_t count) const override {
    default_copy_data(target, source, count);
  }
  void set_threshold(std::size_t threshold) noexcept { threshold_.store(threshold, std::memory_order_relaxed); }

 private:
  std::atomic<std::size_t> threshold_{0};
};

SharedAllocator& shared_allocator() {
  static auto* const allocator = new SharedAllocator;  // never freed: see the header
  return *allocator;
}

}  // namespace

c10::Allocator& arena_allocator() {
  previous_allocator();
  static auto* const allocator = new ArenaAllocator;  // never freed: see the header
  return *allocator;
}

at::Tensor empty_in_arena(at::IntArrayRef sizes, at::ScalarType dtype) {
  constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
  try {
    return at::Tensor(at::detail::empty_generic(sizes, &arena_allocator(), kCpu, dtype, std::nullopt));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kExhausted) throw;
    return at::empty(sizes, dtype);
  }
}

void use_shared_allocator(bool enabled, std::size_t threshold) {
  c10::Allocator& previous = previous_allocator();
  if (!enabled) {
    if (shared_allocator_enabled()) c10::SetCPUAllocator(&previous, /*priority=*/100);
    return;
  }
  if (arena() == nullptr) {
    throw_error(ErrorKind::kExhausted, "the arena of mapped tensors could not be made; `tutti doctor` says why");
  }
  if (previous.raw_deleter() == nullptr) {
    throw_error(ErrorKind::kUnsupported, "the CPU allocator in use cannot be delegated to (it has no raw deleter)");
  }
  shared_allocator().set_threshold(threshold);
  c10::SetCPUAllocator(&shared_allocator(), /*priority=*/100);
}

bool shared_allocator_enabled() noexcept { return c10::GetCPUAllocator() == &shared_allocator(); }

ArenaStats arena_stats() noexcept {
  const Arena* const shared = arena();
  if (shared == nullptr) return {};
  return {shared->bytes(), shared->bytes_in_use(), shared->bytes_cached(), shared->bytes_quarantined()};
}

bool is_mapped(const void* data, std::size_t bytes) noexcept {
  const Arena* const shared = arena();
  return shared != nullptr && shared->offset_of(data, bytes) != kNotMapped;
}

}  // namespace tutti::face
