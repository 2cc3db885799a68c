// A rank that was stopped in the middle of a call and goes on after the others have given up.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <map>
#include <span>
#include <sstream>
#include <thread>

#include "channel/call_record.h"
#include "communicator/formed_group.h"
#include "communicator/plan_calls.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

constexpr std::size_t kCount = std::size_t{1} << 20;
constexpr std::size_t kBytes = kCount * sizeof(float);

Call all_reduce(float* x) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kFloat32;
  call.count = kCount;
  call.input = call.output = Blocks::single(x, kBytes);
  return call;
}

CallRecord record_of(float* x) {
  CallRecord record;
  record.sequence = 1;
  record.call = static_cast<std::uint8_t>(Collective::kAllReduce);
  record.dtype = static_cast<std::uint8_t>(DataType::kFloat32);
  record.op = static_cast<std::uint8_t>(ReduceOp::kSum);
  record.count = kCount;
  record.mapped_input = record.mapped_output = process_arena()->offset_of(x, kBytes);
  record.hash = fingerprint(record);
  return record;
}

CommunicatorOptions options() {
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(20'000);
  options.config.log_level = "error";
  return options;
}

TEST(ResumedPeer, ChangesNothingOfASurvivors) {
  MemoryStore store;
  Floats x(kCount, true);
  Floats theirs(kCount, true);
  std::fill_n(x.data(), kCount, 1.0F);
  std::atomic<bool> given_up{false};
  std::atomic<bool> resumed{false};
  std::thread peer([&] {
    const FormedGroup group = form_group(store, "test", 1, 2, options());
    HostChannel& host = *group.host;
    Deadline enough = Deadline::after(options().timeout);
    ASSERT_TRUE(host.begin_and_announce(record_of(theirs.data()), enough).ok());
    ASSERT_TRUE(host.await_records(enough).ok());
    std::byte* to = host.in_arena(0, host.peer_record(0).mapped_output, kBytes);
    ASSERT_NE(to, nullptr);
    while (!given_up.load(std::memory_order_acquire)) std::this_thread::yield();
    std::memset(to, 77, kBytes);
    resumed.store(true, std::memory_order_release);  // release: pairs with the acquire of rank 0
  });
  const auto c = Communicator::create(store, "test", 0, 2, options());
  const Error error = error_of([&] { c->run(all_reduce(x.data()), std::chrono::milliseconds(300)); });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
  std::fill_n(x.data(), kCount, 42.0F);
  given_up.store(true, std::memory_order_release);  // release: pairs with the acquire of the peer
  while (!resumed.load(std::memory_order_acquire)) std::this_thread::yield();
  peer.join();
  EXPECT_EQ(std::count(x.data(), x.data() + kCount, 42.0F), static_cast<std::ptrdiff_t>(kCount));
  EXPECT_EQ(process_arena()->offset_of(x.data(), kBytes), kNotMapped);
}

// The memory of a rank that has given up may be nobody's any more.
TEST(ResumedPeer, DoesNotCompleteACallThatAnotherHasGivenUp) {
  MemoryStore store;
  Floats x(kCount, true);
  Floats theirs(kCount, true);
  std::thread peer([&] {
    const FormedGroup group = form_group(store, "test", 1, 2, options());
    HostChannel& host = *group.host;
    Deadline enough = Deadline::after(options().timeout);
    ASSERT_TRUE(host.begin_and_announce(record_of(theirs.data()), enough).ok());
    ASSERT_TRUE(host.await_records(enough).ok());
    host.report({Status::kTimeout, 0}, 1);
    host.publish(StepLane::kDrained, host.step_base() + 1);
    EXPECT_FALSE(host.await_step(0, StepLane::kDrained, host.step_base() + 2, enough).ok()) << "it fails, too";
  });
  const auto c = Communicator::create(store, "test", 0, 2, options());
  const Error error = error_of([&] { c->run(all_reduce(x.data())); });
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
  EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
  peer.join();
}

// The segments of groups that this process maps, by inode; each rank of it has a mapping of its own.
std::map<std::string, std::vector<std::span<std::byte>>> mapped_segments() {
  std::map<std::string, std::vector<std::span<std::byte>>> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string skipped, inode, name;
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    fields >> std::hex >> begin >> dash >> end >> skipped >> skipped >> skipped >> inode >> name;
    if (name == "/memfd:tutti") found[inode].emplace_back(reinterpret_cast<std::byte*>(begin), end - begin);
  }
  return found;
}

// It may keep the segment of its group as long as it likes, and write anywhere in it.
TEST(ResumedPeer, HasTheSegmentOfNoLaterGroup) {
  MemoryStore store;
  const auto before = mapped_segments();
  std::promise<void> formed, end;
  std::thread peer([&, ended = end.get_future()] {
    const FormedGroup group = form_group(store, "first", 1, 2, options());
    formed.set_value();
    ended.wait();
  });
  auto first = Communicator::create(store, "first", 0, 2, options());
  Floats x(kCount, true);
  const Error error = error_of([&] { first->run(all_reduce(x.data()), std::chrono::milliseconds(100)); });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
  first.reset();
  formed.get_future().wait();  // from here on the peer itself touches nothing there
  auto kept = mapped_segments();
  for (const auto& [inode, of_earlier_tests] : before) kept.erase(inode);
  ASSERT_EQ(kept.size(), 1U) << "the peer's own";
  const auto& [inode, mappings] = *kept.begin();
  ASSERT_EQ(mappings.size(), 1U);
  // Where waits end, where pipelines and slots are: whatever lies there.
  std::atomic<bool> enough{false};
  std::thread resumed([&, all = mappings.front()] {
    while (!enough.load(std::memory_order_relaxed)) std::memset(all.data(), 77, all.size());
  });
  for (int group = 0; group < 3; ++group) {
    run_ranks({}, [&, &used = inode](Communicator& c) {
      for (int call = 0; call < 5; ++call) run_once(c, Collective::kAllReduce, 20'000, {}, call);
      EXPECT_EQ(mapped_segments().at(used).size(), 1U) << "the later group has it";
    });
  }
  enough.store(true, std::memory_order_relaxed);
  resumed.join();
  std::memset(mappings.front().data(), 0, mappings.front().size());  // so that the peer's end makes sense
  end.set_value();
  peer.join();
}

}  // namespace
}  // namespace tutti::test
