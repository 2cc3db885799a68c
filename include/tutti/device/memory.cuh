// Loads and stores of memory that several GPUs share, with their memory order in the name.
//
// Everything here also compiles for the host, where it becomes atomics of 64 bits: the protocols above are tested
// there, under ThreadSanitizer, without a GPU. System scope everywhere: a peer may be another GPU or the host.
//
// Rule: memory that a peer writes is never read through `const __restrict__` or __ldg, which may take it from a cache
// that nobody invalidates.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define TUTTI_DEVICE __host__ __device__ __forceinline__
#define TUTTI_DEVICE_CALL __host__ __device__ __noinline__ inline  // for what is long and rare
#define TUTTI_UNROLL _Pragma("unroll")
#define TUTTI_ROLLED _Pragma("unroll 1")
#else
#define TUTTI_DEVICE inline
#define TUTTI_DEVICE_CALL inline
#define TUTTI_UNROLL
#define TUTTI_ROLLED
#endif
#if !defined(__CUDA_ARCH__)
#include <atomic>
#include <chrono>
#endif

#if defined(TUTTI_RANDOM_DELAYS) && !defined(__CUDA_ARCH__)
#include <random>
#include <thread>
#endif

namespace tutti::device {

// A step of a protocol: where a test's build (TUTTI_RANDOM_DELAYS) now and then lets others pass. `number` decides on a
// GPU: threads that must stay together give the same one.
TUTTI_DEVICE void protocol_step([[maybe_unused]] std::uint64_t number) {
#if defined(TUTTI_RANDOM_DELAYS) && defined(__CUDA_ARCH__)
  std::uint64_t mixed = (number ^ 0x74757474692e3031ULL) * 0x9e3779b97f4a7c15ULL;
  mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ULL;
  if (mixed >> 62 == 0) __nanosleep(static_cast<unsigned>(mixed >> 32 & 0xfff));
#elif defined(TUTTI_RANDOM_DELAYS)
  thread_local std::minstd_rand random(std::random_device{}());
  if (random() % 8 == 0) {
    for (auto n = random() % 20; n > 0; --n) std::this_thread::yield();
  }
#endif
}
// Of one thread.
TUTTI_DEVICE void protocol_step() {
#if defined(TUTTI_RANDOM_DELAYS) && defined(__CUDA_ARCH__)
  protocol_step(static_cast<std::uint64_t>(clock64()));
#else
  protocol_step(0);
#endif
}

inline constexpr int kMaxRanks = 8;

struct alignas(16) Pair64 {
  std::uint64_t lo, hi;
};

// Adds 1; returns what was there. Of one device's threads.
TUTTI_DEVICE std::uint64_t fetch_add_relaxed(std::uint64_t* p) {
#if defined(__CUDA_ARCH__)
  return atomicAdd(reinterpret_cast<unsigned long long*>(p), 1ULL);
#else
  return std::atomic_ref<std::uint64_t>(*p).fetch_add(1, std::memory_order_relaxed);
#endif
}

// Relaxed: the two halves of 8 bytes are atomic each, nothing is said about both together.
TUTTI_DEVICE Pair64 load_relaxed(const Pair64* p) {
#if defined(__CUDA_ARCH__)
  std::uint32_t a, b, c, d;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "l"(p)
               : "memory");
  return {a | static_cast<std::uint64_t>(b) << 32, c | static_cast<std::uint64_t>(d) << 32};
#else
  auto* q = const_cast<Pair64*>(p);
  return {std::atomic_ref<std::uint64_t>(q->lo).load(std::memory_order_relaxed),
          std::atomic_ref<std::uint64_t>(q->hi).load(std::memory_order_relaxed)};
#endif
}

TUTTI_DEVICE void store_relaxed(Pair64* p, Pair64 v) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(static_cast<std::uint32_t>(v.lo)),
               "r"(static_cast<std::uint32_t>(v.lo >> 32)), "r"(static_cast<std::uint32_t>(v.hi)),
               "r"(static_cast<std::uint32_t>(v.hi >> 32))
               : "memory");
#else
  std::atomic_ref<std::uint64_t>(p->lo).store(v.lo, std::memory_order_relaxed);
  std::atomic_ref<std::uint64_t>(p->hi).store(v.hi, std::memory_order_relaxed);
#endif
}

TUTTI_DEVICE std::uint64_t load_relaxed(const std::uint64_t* p) {
#if defined(__CUDA_ARCH__)
  std::uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
#else
  return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(p)).load(std::memory_order_relaxed);
#endif
}

TUTTI_DEVICE void store_relaxed(std::uint64_t* p, std::uint64_t v) {
  protocol_step();
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#else
  std::atomic_ref<std::uint64_t>(*p).store(v, std::memory_order_relaxed);
#endif
}

// Acquire and release at system scope. With a barrier of the block on the inner side they speak for the whole block:
// write, sync, one thread releases; one thread acquires, sync, all read.
TUTTI_DEVICE std::uint64_t load_acquire(const std::uint64_t* p) {
  protocol_step();
#if defined(__CUDA_ARCH__)
  std::uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
#else
  return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(p)).load(std::memory_order_acquire);
#endif
}

TUTTI_DEVICE void store_release(std::uint64_t* p, std::uint64_t v) {
  protocol_step();
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#else
  std::atomic_ref<std::uint64_t>(*p).store(v, std::memory_order_release);
#endif
}

// Sets a word that is `from` to `to`; returns what it was. System scope, relaxed.
TUTTI_DEVICE std::uint64_t compare_exchange(std::uint64_t* p, std::uint64_t from, std::uint64_t to) {
#if defined(__CUDA_ARCH__)
  return atomicCAS_system(reinterpret_cast<unsigned long long*>(p), from, to);
#else
  std::atomic_ref<std::uint64_t>(*p).compare_exchange_strong(from, to, std::memory_order_relaxed);
  return from;
#endif
}

// Nanoseconds of a clock that all blocks of one GPU share. Coarse: it may tick in steps of a microsecond.
TUTTI_DEVICE std::uint64_t clock_ns() {
#if defined(__CUDA_ARCH__)
  std::uint64_t v;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
  return v;
#else
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
#endif
}

}  // namespace tutti::device
