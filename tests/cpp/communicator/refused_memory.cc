#include "communicator/refused_memory.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace tutti::test {
namespace {

enum class Thread { kLibrarys, kCounted, kSpared };
thread_local Thread this_thread = Thread::kLibrarys;

// seq_cst throughout: a test, and the order of its steps is easier to follow.
std::atomic<bool> on{false};
std::atomic<long> so_far{0}, refusals{0};
// These change while it is off; a thread that is late may look at the next ones.
std::atomic<Of> whose{Of::kThisThread};
std::atomic<Which> which_ones{Which::kOne};
std::atomic<long> first{0};

bool refuses() noexcept {
  if (!on.load()) return false;
  if (this_thread != (whose.load() == Of::kThisThread ? Thread::kCounted : Thread::kLibrarys)) return false;
  const long n = so_far.fetch_add(1) + 1;
  if (which_ones.load() == Which::kOne ? n != first.load() : n < first.load()) return false;
  refusals.fetch_add(1);
  return true;
}

void* allocate(std::size_t bytes) noexcept { return refuses() ? nullptr : std::malloc(bytes != 0 ? bytes : 1); }

void* allocate(std::size_t bytes, std::align_val_t alignment) noexcept {
  const auto align = static_cast<std::size_t>(alignment);
  return refuses() ? nullptr : std::aligned_alloc(align, (bytes + align - 1) / align * align);
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void count_me() noexcept { this_thread = Thread::kCounted; }
void spare_me() noexcept { this_thread = Thread::kSpared; }
void forget_me() noexcept { this_thread = Thread::kLibrarys; }

Refusal::Refusal(Of of, Which which, long n) noexcept {
  whose.store(of);
  which_ones.store(which);
  first.store(n);
  so_far.store(0);
  refusals.store(0);
  on.store(true);
}

Refusal::~Refusal() { on.store(false); }

long Refusal::refused() noexcept { return refusals.load(); }

long Refusal::counted() noexcept { return so_far.load(); }

}  // namespace tutti::test

using tutti::test::allocate;
using tutti::test::or_throw;

void* operator new(std::size_t bytes) { return or_throw(allocate(bytes)); }
void* operator new[](std::size_t bytes) { return or_throw(allocate(bytes)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t align) { return or_throw(allocate(bytes, align)); }
void* operator new[](std::size_t bytes, std::align_val_t align) { return or_throw(allocate(bytes, align)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
