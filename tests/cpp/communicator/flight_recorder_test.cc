// The flight recorder: which calls it keeps, what it says of them, and that a dump may be taken at any time.
#include "communicator/flight_recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/sanitized.h"
#include "tutti/error.h"
#include "tutti/types.h"

namespace tutti::test {
namespace {

using State = FlightRecorder::State;
using nlohmann::json;

CallRecord record(Collective collective, std::uint64_t sequence, std::uint64_t count = 8) {
  CallRecord r;
  r.call = static_cast<std::uint8_t>(collective);
  r.dtype = static_cast<std::uint8_t>(DataType::kFloat32);
  r.sequence = sequence;
  r.count = count;
  return r;
}

json dump_of(const FlightRecorder& recorder, int rank = 0, int size = 4) {
  return json::parse(recorder.dump("group", rank, size));
}

TEST(FlightRecorder, SaysHowFarEachCallCame) {
  FlightRecorder recorder(8);
  recorder.add(record(Collective::kBarrier, 1), -1, State::kScheduled, 100);
  const auto started = recorder.add(record(Collective::kBarrier, 2), -1, State::kScheduled, 100);
  recorder.update(started, State::kStarted);
  const auto completed = recorder.add(record(Collective::kBarrier, 3), -1, State::kStarted, 100);
  recorder.update(completed, State::kCompleted);
  const auto failed = recorder.add(record(Collective::kBarrier, 4), -1, State::kStarted, 100);
  recorder.update(failed, State::kFailed);

  const json entries = dump_of(recorder)["entries"];
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[0]["state"], "scheduled");
  EXPECT_FALSE(entries[0].contains("time_discovered_started_ns"));
  EXPECT_EQ(entries[1]["state"], "started");
  EXPECT_TRUE(entries[1].contains("time_discovered_started_ns"));
  EXPECT_FALSE(entries[1].contains("time_discovered_completed_ns"));
  EXPECT_EQ(entries[2]["state"], "completed");
  EXPECT_GE(entries[2]["time_discovered_completed_ns"], entries[2]["time_discovered_started_ns"]);
  EXPECT_GE(entries[2]["duration_ms"], 0.0);
  EXPECT_EQ(entries[3]["state"], "started") << "the analyser knows no failed calls";
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i]["retired"], i == 2) << i;
    EXPECT_EQ(entries[i]["failed"], i == 3) << i;
    EXPECT_EQ(entries[i]["timeout_ms"], 100);
  }
  const json status = dump_of(recorder)["pg_status"]["group"];
  EXPECT_EQ(status["last_enqueued_collective"], 4);
  EXPECT_EQ(status["last_started_collective"], 4);
  EXPECT_EQ(status["last_completed_collective"], 3);
}

TEST(FlightRecorder, KeepsTheLastCallsInOrder) {
  FlightRecorder recorder(3);
  std::uint64_t first = 0;
  for (std::uint64_t sequence = 1; sequence <= 7; ++sequence) {
    const auto id = recorder.add(record(Collective::kAllReduce, sequence), -1, State::kStarted, 0);
    if (sequence == 1) first = id;
  }
  recorder.update(first, State::kCompleted);  // of a call whose place another one has taken
  const json entries = dump_of(recorder)["entries"];
  ASSERT_EQ(entries.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(entries[i]["collective_seq_id"], 5 + i);
    EXPECT_EQ(entries[i]["record_id"], 4 + i);
    EXPECT_EQ(entries[i]["state"], "started");
  }
}

TEST(FlightRecorder, WithoutEntriesRecordsNothing) {
  FlightRecorder recorder(0);
  recorder.update(recorder.add(record(Collective::kAllReduce, 1), -1, State::kStarted, 0), State::kCompleted);
  EXPECT_TRUE(dump_of(recorder)["entries"].empty());
}

TEST(FlightRecorder, SizesAreWhatARankGivesAndGets) {
  const struct {
    Collective collective;
    int in;
    int out;
  } cases[] = {{Collective::kAllReduce, 8, 8},      {Collective::kReduce, 8, 8},    {Collective::kBroadcast, 8, 8},
               {Collective::kAllGather, 8, 32},     {Collective::kGather, 8, 32},   {Collective::kScatter, 32, 8},
               {Collective::kReduceScatter, 32, 8}, {Collective::kAllToAll, 32, 32}};
  FlightRecorder recorder(16);
  for (const auto& c : cases) recorder.add(record(c.collective, 1), -1, State::kStarted, 0);
  const json entries = dump_of(recorder)["entries"];
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string name(to_string(cases[i].collective));
    EXPECT_EQ(entries[i]["profiling_name"], "gloo:" + name);
    EXPECT_EQ(entries[i]["input_sizes"], json({{cases[i].in}})) << name;
    EXPECT_EQ(entries[i]["output_sizes"], json({{cases[i].out}})) << name;
    EXPECT_EQ(entries[i]["input_dtypes"], json({"Float"})) << name;
  }
}

TEST(FlightRecorder, NamesBothEndsOfAMessage) {
  FlightRecorder recorder(4);
  CallRecord message = record(Collective::kAllReduce, 0);
  message.call = kCallSend;
  recorder.add(message, 3, State::kStarted, 0);
  message.call = kCallRecv;
  recorder.add(message, 3, State::kStarted, 0);
  const json entries = dump_of(recorder, 1)["entries"];
  EXPECT_EQ(entries[0]["profiling_name"], "gloo:send 1->3");
  EXPECT_EQ(entries[1]["profiling_name"], "gloo:recv 1<-3");
  EXPECT_EQ(entries[0]["p2p_seq_id"], 1);
  EXPECT_EQ(entries[1]["p2p_seq_id"], 2);
  for (const json& entry : entries) EXPECT_TRUE(entry["is_p2p"]);
}

TEST(FlightRecorder, MergesInOrderOfTimeUnderOtherNames) {
  FlightRecorder host(4), device(4, FlightRecorder::Of::kCuda);
  device.add(record(Collective::kAllReduce, 1), -1, State::kScheduled, 0, {0x7f00, true});
  host.add(record(Collective::kBarrier, 1), -1, State::kCompleted, 0);
  const std::string name = "a \"group\", [one} \\";
  const std::string inner = merge_records({device.dump(name, 0, 2)}, "/cuda");
  const json merged = json::parse(merge_records({host.dump(name, 0, 2), inner}));
  EXPECT_EQ(merged["version"], "2.10");
  for (const std::string& group : {name, name + "/cuda"}) {
    EXPECT_EQ(merged["pg_config"][group], json({{"name", group}, {"desc", group}, {"ranks", "[0, 1]"}})) << group;
    EXPECT_EQ(merged["pg_status"][group]["last_enqueued_collective"], 1) << group;
  }
  const json& entries = merged["entries"];
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_LE(entries[0]["time_created_ns"], entries[1]["time_created_ns"]);
  for (const json& entry : entries) {
    const bool cuda = entry["device"] == "cuda";
    const std::string group = cuda ? name + "/cuda" : name;
    EXPECT_EQ(entry["process_group"], json({group, group}));
    EXPECT_EQ(entry.contains("stream"), cuda);
    EXPECT_EQ(entry["call"], json::parse((cuda ? device : host).dump("x", 0, 2))["entries"][0]["call"]);
  }
}

TEST(FlightRecorder, MergesWhatAPlugInHasSpacedOut) {
  const std::string text = R"( { "version" : "2.10", "pg_config" : { "g" : { "name" : "g", "ranks" : "[0]" } } ,
    "pg_status" : { } , "entries" : [ { "time_created_ns" : 7 , "process_group" : [ "g" , "g" ] , "x" : [ ] } ] } )";
  const json merged = json::parse(merge_records({text, text}, "/d"));
  EXPECT_EQ(merged["pg_config"]["g/d"], json({{"name", "g/d"}, {"ranks", "[0]"}}));
  ASSERT_EQ(merged["entries"].size(), 2U);
  EXPECT_EQ(merged["entries"][1], json::parse(R"({"time_created_ns": 7, "process_group": ["g/d", "g/d"], "x": []})"));
  for (const char* bad : {"", "{", "{\"entries\":[}", "{\"entries\":[1]}", "[]", "{\"a\" 1}", "{\"a\":\"b}", "{} x"}) {
    EXPECT_THROW(merge_records({bad}), Error) << bad;
  }
}

// The ring is small, so that entries are overwritten while they are read. Sequence and count change together: an entry
// of which one is of another call than the other was torn.
TEST(FlightRecorder, DumpsWholeEntriesWhileCallsGoOn) {
  FlightRecorder recorder(16);
  std::atomic<bool> stop{false};
  std::thread calls([&] {
    // relaxed: when it stops does not matter.
    for (std::uint64_t n = 1; !stop.load(std::memory_order_relaxed); ++n) {
      recorder.update(recorder.add(record(Collective::kAllReduce, n, 3 * n), -1, State::kStarted, 0),
                      State::kCompleted);
    }
  });
  std::size_t seen = 0;
  for (int i = 0; i < (kSanitized ? 200 : 2000) || (seen == 0 && i < 50'000); ++i) {
    std::uint64_t last = 0;
    const json entries = dump_of(recorder)["entries"];
    for (const json& entry : entries) {
      const auto sequence = entry["collective_seq_id"].get<std::uint64_t>();
      EXPECT_EQ(entry["input_sizes"][0][0].get<std::uint64_t>(), 3 * sequence);
      EXPECT_EQ(entry["record_id"].get<std::uint64_t>() + 1, sequence);
      EXPECT_GT(sequence, last);
      last = sequence;
      ++seen;
    }
  }
  stop.store(true, std::memory_order_relaxed);
  calls.join();
  EXPECT_GT(seen, 0U);
}

}  // namespace
}  // namespace tutti::test
