// Refuses memory: in a program with refused_memory.cc, operator new throws where a test says so. Where compilers link a
// C++ runtime each into program and library, the library has an operator new of its own, and nothing can be refused to
// it: the tests are skipped there.
//
// Thread rule: any thread; one Refusal at a time.
#pragma once

#include <gtest/gtest.h>

#include "communicator/group_bootstrap.h"

namespace tutti::test {

// Whose allocations are counted, and which of them are refused.
enum class Of {
  kThisThread,       // of threads that call count_me()
  kLibrarysThreads,  // of all but those that call spare_me()
};
enum class Which { kOne, kAllFromThere };

void count_me() noexcept;
void spare_me() noexcept;
void forget_me() noexcept;  // it is one of the library's again

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

// How many allocations of this thread are counted in `act()`.
template <class Act>
long counted_in(const Act& act) {
  count_me();
  {
    const Refusal none(Of::kThisThread, Which::kOne, 0);
    act();
  }
  forget_me();
  return Refusal::counted();
}

inline constexpr const char* kHasItsOwn = "the library has an operator new of its own, which refuses nothing";
inline bool counts_the_librarys() {
  return counted_in([] { all_ranks(100); }) > 0;
}

// Of tests that refuse memory.
template <class Test = ::testing::Test>
class RefusedMemory : public Test {
 protected:
  void SetUp() override {
    if (!counts_the_librarys()) GTEST_SKIP() << kHasItsOwn;
  }
};

}  // namespace tutti::test
