// Refuses memory: in a program with refused_memory.cc, operator new throws where a test says so.
//
// Thread rule: any thread; one Refusal at a time.
#pragma once

namespace tutti::test {

// Whose allocations are counted, and which of them are refused.
enum class Of {
  kThisThread,       // of threads that call count_me()
  kLibrarysThreads,  // of all but those that call spare_me()
};
enum class Which { kOne, kAllFromThere };

void count_me() noexcept;
void spare_me() noexcept;

// From here to its end the n-th allocation, counted from 1, is refused, or all from there on.
class Refusal {
 public:
  Refusal(Of of, Which which, long n) noexcept;
  ~Refusal();
  Refusal(const Refusal&) = delete;
  Refusal& operator=(const Refusal&) = delete;

  // How many have been refused so far.
  static long refused() noexcept;
  // How many have been asked for.
  static long counted() noexcept;
};

}  // namespace tutti::test
