// PREMUL_SUM, whose input is multiplied in memory that the library takes for it: blocks of any sizes, and no memory.
//
// The program's operator new is this file's, so that a test can refuse memory to one thread, that is to one rank.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "communicator/thread_ranks.h"

namespace {

// What this thread may ask for at once.
thread_local std::size_t most_bytes = SIZE_MAX;
// What the first thread that asks for exactly this does not get.
std::atomic<std::size_t> refused_once{0};

void* allocate(std::size_t bytes) {
  // relaxed: a flag between threads that the test orders by a barrier
  if (std::size_t wanted = bytes;
      bytes != 0 && refused_once.compare_exchange_strong(wanted, 0, std::memory_order_relaxed)) {
    throw std::bad_alloc();
  }
  void* const memory = bytes <= most_bytes ? std::malloc(bytes != 0 ? bytes : 1) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes != 0 ? bytes : 1); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes != 0 ? bytes : 1); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace tutti::test {
namespace {

// Block `to` of rank `from`: never the same number of elements twice, and one block without any.
std::size_t count_of(int to, std::size_t unit) { return unit * static_cast<std::size_t>(to); }
float value(int from, int to, std::size_t i) { return static_cast<float>(static_cast<int>(i % 11) + from * 3 + to); }

void reduce_scatter_uneven(Communicator& c, std::size_t unit) {
  std::vector<std::vector<float>> blocks;
  std::vector<void*> pointers;
  std::vector<std::size_t> bytes;
  for (int to = 0; to < c.size(); ++to) {
    blocks.emplace_back();
    for (std::size_t i = 0; i < count_of(to, unit); ++i) blocks.back().push_back(value(c.rank(), to, i));
    bytes.push_back(blocks.back().size() * sizeof(float));
  }
  for (auto& block : blocks) pointers.push_back(block.data());
  const std::vector<std::vector<float>> before = blocks;
  std::vector<float> got(count_of(c.rank(), unit), -1);
  Call call;
  call.collective = Collective::kReduceScatter;
  call.dtype = DataType::kFloat32;
  call.op = ReduceOp::kPremulSum;
  call.factor = 2.0 + c.rank();
  call.uneven = true;
  call.count = got.size();
  call.input = Blocks::list(pointers.data(), bytes.data());
  call.output = Blocks::single(got.data(), got.size() * sizeof(float));
  c.run(call);
  for (std::size_t i = 0; i < got.size(); ++i) {
    float want = 0;
    for (int from = 0; from < c.size(); ++from) want += (2.0F + static_cast<float>(from)) * value(from, c.rank(), i);
    ASSERT_EQ(got[i], want) << "element " << i << " unit " << unit << " rank " << c.rank();
  }
  EXPECT_EQ(blocks, before) << "the input was written";
}

// Of float32, in place, times two.
Call all_reduce_of(std::vector<float>& x) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kFloat32;
  call.op = ReduceOp::kPremulSum;
  call.factor = 2;
  call.count = x.size();
  call.input = call.output = Blocks::single(x.data(), x.size() * sizeof(float));
  return call;
}

TEST(Premultiplied, BlocksOfAReduceScatterMayHaveAnySizes) {
  for (const int hosts : {1, 3}) {
    World world;
    world.size = 3;
    if (hosts > 1) world.host_of = [](int r) { return "host" + std::to_string(r); };
    run_ranks(world, [](Communicator& c) {
      for (const std::size_t unit : {1UL, 100UL, 70'001UL}) reduce_scatter_uneven(c, unit);
    });
  }
}

TEST(Premultiplied, ARankWithoutMemoryIsRefusedAndAllGoOn) {
  World world;
  world.size = 3;
  run_ranks(world, [](Communicator& c) {
    constexpr std::size_t kCount = 1 << 20;
    std::vector<float> x(kCount, static_cast<float>(c.rank()));
    const Call call = all_reduce_of(x);
    if (c.rank() == 1) {
      most_bytes = kCount;
      const Error error = error_of([&] { c.run(call); });
      most_bytes = SIZE_MAX;
      EXPECT_EQ(error.kind(), ErrorKind::kExhausted) << error.what();
      EXPECT_NE(std::string(error.what()).find("no memory for the 4194304 bytes"), std::string::npos) << error.what();
      EXPECT_EQ(c.sequence(), 0U);
    }
    c.run(call);
    EXPECT_EQ(x, std::vector<float>(kCount, 6));
    reduce_scatter_uneven(c, 10);
  });
}

// Else the second call would take the first one's number, and the peers the one's data for the other's.
TEST(Premultiplied, AQueuedCallThatFindsNoMemoryEndsTheGroup) {
  World world;
  world.size = 3;
  std::atomic<int> exhausted{0};
  run_ranks(world, [&](Communicator& c) {
    constexpr std::size_t kCount = 1 << 20;
    std::vector<float> first(kCount, static_cast<float>(c.rank())), second(kCount, 100);
    Call barrier;
    barrier.collective = Collective::kBarrier;
    c.run(barrier);  // all have their own memory
    if (c.rank() == 0) refused_once.store(kCount * sizeof(float), std::memory_order_relaxed);
    c.run(barrier);
    std::array<WorkPtr, 2> works;
    const Error late = error_of([&] {
      works[0] = c.submit(all_reduce_of(first));
      works[1] = c.submit(all_reduce_of(second));  // where the first has failed already
    });
    for (const WorkPtr& work : works) {
      const Error error = work == nullptr ? late : error_of([&] { work->wait(); });
      EXPECT_NE(std::string(error.what()).find("no memory"), std::string::npos) << error.what();
      if (error.kind() == ErrorKind::kExhausted) {
        ++exhausted;
      } else {
        EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
      }
    }
  });
  EXPECT_EQ(exhausted.load(), 2);  // of one rank
}

}  // namespace
}  // namespace tutti::test
