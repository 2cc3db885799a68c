// Registration between ranks of one process and of several, over a driver made of files.
#include "channel/cuda/registered_memory.h"

#include <gtest/gtest.h>

#include <barrier>

#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"
#include "cuda/fake_driver.h"

namespace tutti::cuda::test {
namespace {

using Regions = std::vector<std::shared_ptr<RegisteredMemory>>;
using tutti::test::run_threads;

RegisterRequest request_of(int rank, const std::string& process, std::vector<CudaRange> ranges) {
  RegisterRequest request;
  request.name = "memory";
  request.secret = "secret";
  request.process = process;
  request.device = rank;
  request.timeout = std::chrono::seconds(60);
  request.ranges = std::move(ranges);
  return request;
}

// Each rank a process of its own with `pages` allocations, of which it registers a part that starts and ends within
// one; all then read what the others have written through their own pointers.
void share_and_read(int size, std::size_t pages, ShareKind kind) {
  const auto store = std::make_shared<MemoryStore>();
  std::barrier<> written(size);
  const auto errors = run_threads(size, [&](int rank) {
    FakeDriver driver;
    const std::size_t begin = 100 * static_cast<std::size_t>(rank + 1);  // differs by rank
    const std::size_t bytes = (pages - 1) * kPage + 1000;
    std::byte* data = driver.allocate(pages, kind) + begin;
    for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + i / kPage + begin);
    const Regions regions =
        register_ranges(*store_bootstrap(store, "group", rank, size),
                        request_of(rank, "process" + std::to_string(rank), {{data, bytes}}), driver);
    ASSERT_EQ(regions.size(), 1u);
    EXPECT_EQ(regions[0]->data(rank), data);
    EXPECT_EQ(regions[0]->bytes(), bytes);
    EXPECT_EQ(driver.opened, size - 1);
    for (int peer = 0; peer < size; ++peer) {
      const std::size_t theirs = 100 * static_cast<std::size_t>(peer + 1);
      for (std::size_t i = 0; i < bytes; ++i) {
        ASSERT_EQ(regions[0]->data(peer)[i], static_cast<std::byte>(i * 7 + i / kPage + theirs))
            << "byte " << i << " of rank " << peer << " seen by rank " << rank;
      }
    }
    written.arrive_and_wait();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(RegisteredMemory, OneAllocationByHandle) { share_and_read(3, 1, ShareKind::kIpc); }
TEST(RegisteredMemory, OneAllocationByDescriptor) { share_and_read(3, 1, ShareKind::kDescriptor); }
TEST(RegisteredMemory, ManyAllocationsLieInOrder) {
  share_and_read(3, 5, ShareKind::kDescriptor);
  share_and_read(2, 5, ShareKind::kFabric);
}
// More descriptors than one message, or than the kernel passes at once.
TEST(RegisteredMemory, HundredsOfAllocations) { share_and_read(2, 300, ShareKind::kDescriptor); }

TEST(RegisteredMemory, SeveralRangesOfSeveralKinds) {
  const auto store = std::make_shared<MemoryStore>();
  std::barrier<> done(2);
  const auto errors = run_threads(2, [&](int rank) {
    FakeDriver driver;
    std::vector<CudaRange> ranges;
    // The ranks' kinds differ: one has descriptors to give, the other one has none for the first range.
    for (std::size_t i = 0; i < 3; ++i) {
      const bool by_handle = i == 1 || (i == 0 && rank == 0);
      std::byte* data = driver.allocate(1, by_handle ? ShareKind::kIpc : ShareKind::kDescriptor);
      std::memset(data, static_cast<int>(10 * i) + rank, kPage);
      ranges.push_back({data, 100 + i});
    }
    const Regions regions = register_ranges(*store_bootstrap(store, "group", rank, 2),
                                            request_of(rank, "process" + std::to_string(rank), ranges), driver);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(*regions[i]->data(1 - rank), static_cast<std::byte>(10 * static_cast<int>(i) + 1 - rank)) << i;
    }
    done.arrive_and_wait();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Ranks of one process use each other's pointers; only those on other devices need access.
TEST(RegisteredMemory, OneProcessMapsNothing) {
  const auto store = std::make_shared<MemoryStore>();
  FakeDriver driver;
  std::byte* data[3];
  for (auto& d : data) d = driver.allocate(4, ShareKind::kDescriptor);
  const auto errors = run_threads(3, [&](int rank) {
    RegisterRequest request = request_of(rank, "one", {{data[rank], 4 * kPage}});
    request.device = rank == 2 ? 1 : 0;
    const Regions regions = register_ranges(*store_bootstrap(store, "group", rank, 3), request, driver);
    for (int peer = 0; peer < 3; ++peer) EXPECT_EQ(regions[0]->data(peer), data[peer]);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(driver.opened, 0);
  EXPECT_EQ(driver.allowed, 4 * 4);  // rank 2 on both others, both on rank 2: four pages each
}

// Runs two ranks as processes; what each of them throws.
std::vector<std::string> refusals(
    const std::function<std::vector<CudaRange>(int, FakeDriver&, RegisterRequest&)>& make) {
  const auto store = std::make_shared<MemoryStore>();
  return run_threads(2, [&](int rank) {
    FakeDriver driver;
    RegisterRequest request = request_of(rank, "process" + std::to_string(rank), {});
    request.ranges = make(rank, driver, request);
    register_ranges(*store_bootstrap(store, "group", rank, 2), request, driver);
    EXPECT_EQ(driver.opened, driver.closed);
  });
}

void expect_both(const std::vector<std::string>& errors, const std::string& text) {
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("memory is not registered"), std::string::npos) << error;
    EXPECT_NE(error.find(text), std::string::npos) << error;
  }
}

TEST(RegisteredMemory, OneRankThatCannotShareIsEverybodysError) {
  expect_both(refusals([](int rank, FakeDriver& driver, RegisterRequest&) -> std::vector<CudaRange> {
                if (rank == 1) driver.refuses_to_share = "no handles";
                return {{driver.allocate(2, ShareKind::kDescriptor), 2 * kPage}};
              }),
              "rank 1 cannot share its memory: no handles; allocate it by tutti.empty");
}

TEST(RegisteredMemory, OneRankThatCannotMapIsEverybodysError) {
  for (const ShareKind kind : {ShareKind::kDescriptor, ShareKind::kFabric}) {
    expect_both(refusals([&](int rank, FakeDriver& driver, RegisterRequest&) -> std::vector<CudaRange> {
                  if (rank == 0) driver.refuses_to_open = "no room";
                  return {{driver.allocate(80, kind), 80 * kPage}};
                }),
                "rank 0 cannot map the others' memory: no room");
  }
}

TEST(RegisteredMemory, WhatDiffersIsNamed) {
  expect_both(refusals([](int rank, FakeDriver& driver, RegisterRequest&) -> std::vector<CudaRange> {
                std::byte* data = driver.allocate(1, ShareKind::kDescriptor);
                return {{data, 64}, {data + 64, rank == 0 ? 100u : 200u}};
              }),
              "range 1 has 200 bytes on rank 1 and 100 on rank 0");
  expect_both(refusals([](int rank, FakeDriver& driver, RegisterRequest&) {
                const CudaRange range{driver.allocate(1, ShareKind::kIpc), 64};
                return rank == 0 ? std::vector<CudaRange>{range} : std::vector<CudaRange>{};
              }),
              "rank 1 registers 0 ranges, rank 0 registers 1");
}

TEST(RegisteredMemory, RefusesWhatIsNoWholeRange) {
  expect_both(refusals([](int rank, FakeDriver& driver, RegisterRequest&) -> std::vector<CudaRange> {
                std::byte* data = driver.allocate(3, ShareKind::kDescriptor);
                if (rank == 1) driver.forget(data + kPage);
                return {{data, 3 * kPage}};
              }),
              "rank 1 cannot share its memory: no device memory");
  expect_both(refusals([](int /*rank*/, FakeDriver& driver, RegisterRequest&) -> std::vector<CudaRange> {
                return {{driver.allocate(2, ShareKind::kIpc), 2 * kPage}};
              }),
              "rank 0 registers a range that spans several allocations");
  expect_both(refusals([](int rank, FakeDriver& driver, RegisterRequest& request) -> std::vector<CudaRange> {
                if (rank == 1) request.problem = "has a reason";
                return {{driver.allocate(1, ShareKind::kIpc), kPage}};
              }),
              "rank 1 has a reason");
}

// Two ranks; rank 1 is another process, whose memory rank 0 registers again and again.
class Imports : public testing::Test {
 protected:
  // What rank 0 sees.
  std::shared_ptr<RegisteredMemory> share() {
    std::shared_ptr<RegisteredMemory> result;
    const auto errors = run_threads(2, [&](int rank) {
      FakeDriver& driver = rank == 0 ? mine_ : theirs_;
      const std::vector<CudaRange> ranges{{rank == 0 ? my_data_ : their_data_, kPage}};
      RegisterRequest request = request_of(rank, name_ + std::to_string(rank), ranges);
      request.name += std::to_string(rounds_);
      Regions regions = register_ranges(*store_bootstrap(store_, "group", rank, 2), request, driver);
      if (rank == 0) result = regions[0];
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    ++rounds_;
    return result;
  }

  const std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>();
  FakeDriver mine_, theirs_;
  std::byte* my_data_ = mine_.allocate(1, ShareKind::kDescriptor);
  std::byte* their_data_ = theirs_.allocate(1, ShareKind::kDescriptor);
  const std::string name_ = testing::UnitTest::GetInstance()->current_test_info()->name();
  int rounds_ = 0;
};

TEST_F(Imports, AreMadeOnceAndCounted) {
  auto first = share();
  auto second = share();
  EXPECT_EQ(mine_.opened, 1);
  EXPECT_EQ(first->data(1), second->data(1));
  first.reset();
  EXPECT_EQ(mine_.closed, 0);
  second.reset();
  EXPECT_EQ(mine_.closed, 1);
  share();
  EXPECT_EQ(mine_.opened, 2);
  EXPECT_EQ(mine_.closed, 2);
}

// The owner has freed its memory and got other memory at the same address.
TEST_F(Imports, AreNotMistakenForWhatLayThereBefore) {
  const auto before = share();
  theirs_.replace(their_data_, ShareKind::kDescriptor);
  *their_data_ = std::byte{42};
  const auto after = share();
  EXPECT_EQ(mine_.opened, 2);
  EXPECT_EQ(*after->data(1), std::byte{42});
}

TEST_F(Imports, WithoutNumbersAreNotShared) {
  theirs_.numbered = false;
  const auto first = share();
  const auto second = share();
  EXPECT_EQ(mine_.opened, 2);
  EXPECT_NE(first->data(1), second->data(1));
}

}  // namespace
}  // namespace tutti::cuda::test
