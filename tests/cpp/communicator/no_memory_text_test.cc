// Want of memory while text is read and written: flight records, plans, their folders, topologies. Each allocation is
// refused in turn, once and from there on: the caller gets std::bad_alloc, or what it asked for, and what had been made
// is taken apart without memory.
#include <gtest/gtest.h>

#include <new>
#include <string>

#include "algorithm/plan/plan_files.h"
#include "communicator/flight_recorder.h"
#include "communicator/plan_calls.h"
#include "communicator/refused_memory.h"
#include "executor/host_plans.h"
#include "plan/reader.h"
#include "plan/simulator/topology.h"
#include "plan/writer.h"
#include "tutti/types.h"

namespace tutti::test {
namespace {

template <class Act>
void sweep(const Act& act) {
  const auto wanted = act();
  for (const Which which : {Which::kOne, Which::kAllFromThere}) {
    for (long n = 1;; ++n) {
      bool right = false;
      long refused = 0;
      count_me();
      try {
        const Refusal refusal(Of::kThisThread, which, n);
        const auto got = act();
        refused = Refusal::refused();
        spare_me();
        right = got == wanted;
      } catch (const std::bad_alloc&) {
        spare_me();
        refused = Refusal::refused();
        right = refused != 0;
      }
      ASSERT_TRUE(right) << "allocation " << n;
      if (refused == 0) break;
    }
  }
}

void fill(FlightRecorder& recorder) {
  for (std::uint64_t n = 1; n <= 3; ++n) {
    CallRecord record;
    record.call = n == 2 ? kCallSend : static_cast<std::uint8_t>(Collective::kAllReduce);
    record.dtype = static_cast<std::uint8_t>(DataType::kFloat32);
    record.sequence = n;
    recorder.update(recorder.add(record, 1, FlightRecorder::State::kStarted, 100), FlightRecorder::State::kCompleted);
  }
}

class NoMemoryText : public RefusedMemory<> {};

TEST_F(NoMemoryText, OfAFlightRecord) {
  FlightRecorder recorder(4);
  fill(recorder);
  sweep([&] { return recorder.dump("group", 0, 4); });
}

TEST_F(NoMemoryText, OfMergedRecords) {
  FlightRecorder host(4), device(4, FlightRecorder::Of::kCuda);
  fill(host);
  fill(device);
  const std::vector<std::string> records{host.dump("group", 0, 4), device.dump("group", 0, 4)};
  sweep([&] { return merge_records(records, "/cuda"); });
}

TEST_F(NoMemoryText, OfAPlan) {
  const plan::Plan made = plan::hosts_ring_all_reduce({2, 1});
  const std::string text = plan::write_plan(made);
  sweep([&] { return plan::write_plan(made); });
  sweep([&] { return plan::read_plan(text); });
}

// The plan itself is in the process's cache by then: what is left is the way to its folder.
TEST_F(NoMemoryText, OfAFolderOfPlans) {
  PlanFolder folder;
  const std::string path = folder.add("ring", plan::hosts_ring_all_reduce({2, 1}));
  sweep([&] { return load_plans(path, 3, "").identity; });
}

TEST_F(NoMemoryText, OfATopology) {
  const std::string text = R"({"nodes": ["a", "b"], "ranks": ["a", "b"], "routes": [{"nodes": ["a", "b"]}],
    "links": [{"from": "a", "to": "b", "latency_us": 1.5, "bandwidth_gbs": 4}], "efficiency": [[10, 0.5], [1000, 1]]})";
  sweep([&] { return plan::read_topology(text).links.size(); });
}

}  // namespace
}  // namespace tutti::test
