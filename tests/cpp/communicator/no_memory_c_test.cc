// Want of memory behind the C face: a code and its text, and never an exception through C.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "communicator/kept_endpoint.h"
#include "communicator/refused_memory.h"
#include "tutti/tutti.h"

namespace tutti::test {
namespace {

struct Buffers {
  std::vector<int> sent = std::vector<int>(1000), got = std::vector<int>(1000);
};

struct End {
  tutti_result result = TUTTI_SUCCESS;
  std::array<char, 512> text{};
  bool right = true;
};

// What this rank does, up to the first call that fails.
class Program {
 public:
  Program(const tutti_id& id, int rank, Buffers& buffers) : rank_(rank), buffers_(buffers) {
    tutti_options options{};
    options.size = sizeof options;
    options.timeout_ms = 20'000;
    options.name = "test";
    good([&] { return tutti_group_create(&id, rank, 2, &options, &group_); });
  }
  ~Program() { tutti_group_destroy(group_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void run() {
    auto& [sent, got] = buffers_;
    const std::size_t count = sent.size();
    std::iota(sent.begin(), sent.end(), rank_);
    if (!good([&] { return tutti_all_reduce(group_, sent.data(), got.data(), count, TUTTI_INT32, TUTTI_SUM); })) return;
    for (std::size_t i = 0; i < count; ++i) end_.right &= got[i] == 2 * static_cast<int>(i) + 1;
    const auto send = [&] { return tutti_send(group_, sent.data(), count, TUTTI_INT32, 1 - rank_, 7); };
    const auto receive = [&] { return tutti_recv(group_, got.data(), count, TUTTI_INT32, 1 - rank_, 7, nullptr); };
    if (!(rank_ == 0 ? good(send) && good(receive) : good(receive) && good(send))) return;
    for (std::size_t i = 0; i < count; ++i) end_.right &= got[i] == static_cast<int>(i) + 1 - rank_;
  }
  const End& end() const { return end_; }

 private:
  // A call that was refused, and has sent nothing, is made once more: the other rank waits for it.
  template <class Call>
  bool good(const Call& call) {
    if (end_.result != TUTTI_SUCCESS) return false;
    tutti_result result = call();
    if (result == TUTTI_EXHAUSTED && std::strstr(tutti_last_error(), "Nothing has been sent") != nullptr) {
      result = call();
    }
    end_.result = result;
    if (result != TUTTI_SUCCESS) std::snprintf(end_.text.data(), end_.text.size(), "%s", tutti_last_error());
    return result == TUTTI_SUCCESS;
  }

  const int rank_;
  Buffers& buffers_;
  tutti_group* group_ = nullptr;
  End end_;
};

struct Counts {
  long counted = 0, refused = 0;
};

Counts run(Of of, int victim, long n) {
  tutti_id id;
  EXPECT_EQ(tutti_make_id("localhost", &id), TUTTI_SUCCESS) << tutti_last_error();
  std::barrier<> both(2);
  End ends[2];
  Buffers buffers[2];
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      r == victim&& of == Of::kThisThread ? count_me() : spare_me();
      std::optional<Refusal> refusal;
      if (r == victim) refusal.emplace(of, Which::kOne, n);
      both.arrive_and_wait();
      {
        Program program(id, r, buffers[r]);
        program.run();
        ends[r] = program.end();
        if (ends[r].result == TUTTI_SUCCESS) both.arrive_and_wait();
      }
      if (ends[r].result != TUTTI_SUCCESS) both.arrive_and_wait();  // it has left: the other may wait for it
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int r = 0; r < 2; ++r) {
    const std::string text = ends[r].text.data();
    EXPECT_TRUE(ends[r].right) << "on rank " << r;
    const tutti_result result = ends[r].result;
    EXPECT_TRUE(result == TUTTI_SUCCESS || result == TUTTI_EXHAUSTED || result == TUTTI_PEER_LOST)
        << "rank " << r << ": " << tutti_result_name(result) << ": " << text;
    EXPECT_EQ(result == TUTTI_SUCCESS, text.empty()) << "rank " << r << ": " << text;
  }
  return {Refusal::counted(), Refusal::refused()};
}

class NoMemoryC : public RefusedMemory<> {};

TEST_F(NoMemoryC, IsACodeAndAText) {
  spare_me();
  const auto endpoint = keep_endpoint();
  for (const Of of : {Of::kThisThread, Of::kLibrarysThreads}) {
    for (int victim = 0; victim < (of == Of::kThisThread ? 2 : 1); ++victim) {
      run(of, victim, -1);
      constexpr long kMost = 30;
      const long stride = std::max(1L, run(of, victim, -1).counted / kMost);
      for (long n = 1; !HasFailure(); n += stride) {
        SCOPED_TRACE("allocation " + std::to_string(n) + " of rank " + std::to_string(victim));
        if (run(of, victim, n).refused == 0) break;
      }
    }
  }
}

TEST_F(NoMemoryC, OfAnId) {
  count_me();
  for (long n = 1;; ++n) {
    tutti_id id;
    tutti_result result = TUTTI_SUCCESS;
    bool refused = false;
    {
      const Refusal refusal(Of::kThisThread, Which::kOne, n);
      result = tutti_make_id("localhost", &id);
      refused = Refusal::refused() != 0;
    }
    if (!refused) break;
    EXPECT_TRUE(result == TUTTI_SUCCESS || result == TUTTI_EXHAUSTED) << tutti_last_error();
    ASSERT_LT(n, 10'000);
  }
  spare_me();
}

}  // namespace
}  // namespace tutti::test
