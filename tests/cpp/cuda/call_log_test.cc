// What the host knows of calls on GPUs: the flight recorder, timeouts of single calls, and errors that name both calls
// of a mismatch. The kernels' bodies run on the host, so nothing here needs a GPU.
#include "communicator/cuda/call_log.h"

#include <future>
#include <nlohmann/json.hpp>

#include "communicator/call_records.h"
#include "communicator/cuda/device_failure.h"
#include "cuda/collective_case.h"
#include "cuda/host_ranks.h"

namespace tutti::cuda::test {
namespace {

using std::chrono::milliseconds;

// Ranks with what a communicator keeps beside its kernels.
class LoggedRanks {
 public:
  explicit LoggedRanks(int size, int entries = 100) : ranks(size) {
    tables_.resize(static_cast<std::size_t>(size), std::vector<std::uint64_t>(CallBoard::kBytes / 8));
    std::vector<std::byte*> tables;
    for (auto& table : tables_) tables.push_back(reinterpret_cast<std::byte*>(table.data()));
    for (int r = 0; r < size; ++r) {
      boards.push_back(std::make_unique<CallBoard>(r, tables));
      logs.push_back(std::make_unique<CallLog>(r, size, entries, 0, ranks.host(r), [this, r](RankState& state) {
        state = *ranks.world(r).state;
        return true;
      }));
    }
  }

  // As the communicator does, for one block; `captured` calls have no ticket. `headers_only`: no data is waited for,
  // which on the host would come before the headers.
  struct Made {
    TwoShotArgs args;
    std::vector<float> data;
  };
  std::unique_ptr<Made> issue(int r, std::size_t count, milliseconds timeout = {}, bool captured = false,
                              bool headers_only = false) {
    auto made = std::make_unique<Made>();
    made->data.assign(count, 1.0F);
    Call call;
    call.collective = Collective::kAllReduce;
    call.dtype = DataType::kFloat32;
    call.count = count;
    call.input = call.output = Blocks::single(made->data.data(), 4 * count);
    CallRecord record;
    record.sequence = ++sequence;
    record.dtype = static_cast<std::uint8_t>(call.dtype);
    record.count = count;
    record.algorithm = 77;
    record.hash = fingerprint(record);
    boards[index(r)]->post(record);
    record.algorithm = 0;
    Choice choice;
    choice.two_shot = true;
    made->args = make_two_shot(call, ranks.size(), choice, record.hash);
    if (headers_only) made->args.bytes = 0;
    Launched how{Lane::kCollectives, 0, 1, captured, 0x7f00};
    if (!captured) how.ticket = made->args.ticket = logs[index(r)]->open(timeout);
    logs[index(r)]->issued({record, -1, block_bytes(call, r), "ll_two_shot", timeout}, how);
    return made;
  }
  void run(int r, const Made& made) { ll_two_shot<SumF32>(SerialTeam{}, ranks.world(r), made.args); }
  nlohmann::json entries(int r) { return nlohmann::json::parse(logs[index(r)]->flight_record("group"))["entries"]; }
  std::optional<Error> failure(int r) { return failure_of(ranks.host(r), r, "group", "", *boards[index(r)]); }

  static std::size_t index(int r) { return static_cast<std::size_t>(r); }
  HostRanks ranks;
  std::vector<std::unique_ptr<CallBoard>> boards;
  std::vector<std::unique_ptr<CallLog>> logs;
  std::uint64_t sequence = 0;

 private:
  std::vector<std::vector<std::uint64_t>> tables_;
};

// Runs one call of both ranks to its end.
void run_pair(LoggedRanks& world, const LoggedRanks::Made& a, const LoggedRanks::Made& b) {
  auto other = std::async(std::launch::async, [&] { world.run(1, b); });
  world.run(0, a);
  other.get();
}

std::vector<std::string> states(const nlohmann::json& entries) {
  std::vector<std::string> result;
  for (const auto& e : entries) {
    result.push_back(e["failed"] == true ? "failed" : e["state"].get<std::string>());
  }
  return result;
}

TEST(CallLog, ShowsHowFarTheGpuHasCome) {
  LoggedRanks world(2);
  std::vector<std::unique_ptr<LoggedRanks::Made>> mine, theirs;
  for (int i = 0; i < 3; ++i) {
    mine.push_back(world.issue(0, 10));
    theirs.push_back(world.issue(1, 10));
  }
  EXPECT_EQ(states(world.entries(0)), std::vector<std::string>(3, "scheduled"));
  run_pair(world, *mine[0], *theirs[0]);
  run_pair(world, *mine[1], *theirs[1]);
  const nlohmann::json seen = world.entries(0);
  EXPECT_EQ(states(seen), (std::vector<std::string>{"completed", "completed", "scheduled"}));
  EXPECT_EQ(seen[0]["device"], "cuda");
  EXPECT_EQ(seen[0]["stream"], 0x7f00);
  EXPECT_EQ(seen[0]["captured"], false);
  EXPECT_TRUE(seen[0].contains("time_discovered_completed_ns"));
  run_pair(world, *mine[2], *theirs[2]);
  EXPECT_EQ(states(world.entries(0)), std::vector<std::string>(3, "completed"));
}

// Replays of a graph between eager calls move the GPU's counts, but not what is known of the eager calls.
TEST(CallLog, ReplaysAreCountedByTheGpuOnly) {
  LoggedRanks world(2);
  const auto graph = world.issue(0, 5, {}, /*captured=*/true), graph_there = world.issue(1, 5, {}, true);
  const auto eager = world.issue(0, 6), eager_there = world.issue(1, 6);
  for (int i = 0; i < 4; ++i) run_pair(world, *graph, *graph_there);
  EXPECT_EQ(states(world.entries(0)), (std::vector<std::string>{"scheduled", "scheduled"}));
  run_pair(world, *eager, *eager_there);
  run_pair(world, *graph, *graph_there);
  const nlohmann::json seen = world.entries(0);
  EXPECT_EQ(states(seen), (std::vector<std::string>{"scheduled", "completed"}));
  EXPECT_EQ(seen[0]["captured"], true);
  const Metrics metrics = world.logs[0]->metrics();
  EXPECT_EQ(metrics.device_calls, 6u);
  ASSERT_EQ(metrics.rows.size(), 1u);
  EXPECT_EQ(metrics.rows[0].device, "cuda");
  EXPECT_EQ(metrics.rows[0].collective, "all_reduce");
  EXPECT_EQ(metrics.rows[0].algorithm, "ll_two_shot");
  EXPECT_EQ(metrics.rows[0].calls, 2u);
  EXPECT_EQ(metrics.rows[0].bytes, 44u);
  EXPECT_EQ(metrics.rows[0].timed_calls, 0u);
}

// The group may wait a minute, this call may not; the call is shown as the one that failed, and nothing after it ran.
TEST(CallLog, ACallHasItsOwnTimeout) {
  LoggedRanks world(2);
  const auto good = world.issue(0, 10), good_there = world.issue(1, 10);
  run_pair(world, *good, *good_there);
  const auto late = world.issue(0, 20, milliseconds(30)), next = world.issue(0, 30);
  const auto started = std::chrono::steady_clock::now();
  world.run(0, *late);
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(50))
      << "it waited for the group's timeout";
  world.run(0, *next);
  EXPECT_EQ(states(world.entries(0)), (std::vector<std::string>{"completed", "failed", "scheduled"}));
  EXPECT_EQ(world.entries(0)[1]["timeout_ms"], 30);
  const auto failure = world.failure(0);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind(), ErrorKind::kTimeout);
  EXPECT_NE(std::string(failure->what()).find("rank 1 did not come to all_reduce f32[20] sum"), std::string::npos)
      << failure->what();
}

// A table entry of an earlier call with a short timeout must not end a later call that took its place.
TEST(CallLog, TimeoutsOfOtherCallsDoNotCount) {
  device::HostControl host;
  host.timeout_ns = 1;
  CallLog log(0, 1, 10, 0, host, [](RankState&) { return false; });
  const std::uint32_t timed = log.open(milliseconds(5));
  EXPECT_EQ(device::timeout_ns(host, timed), 5'000'000u);
  EXPECT_EQ(device::timeout_ns(host, timed + device::kTimedCalls), 1u);
  EXPECT_EQ(device::timeout_ns(host, 0), 1u);
}

// The table keeps the deadlines of the last 256 calls that have their own. Calls between them that have none take no
// place; a call whose place was taken follows the group's, never another call's.
TEST(CallLog, TheTableHoldsThe256LastTimeouts) {
  static_assert(device::kTimedCalls == 256, "docs/gpu.md names the number");
  device::HostControl host;
  host.timeout_ns = 7;
  CallLog log(0, 1, 10, 0, host, [](RankState&) { return false; });
  std::vector<std::uint32_t> tickets;
  for (std::uint32_t i = 0; i < device::kTimedCalls; ++i) tickets.push_back(log.open(milliseconds(1000 + i)));
  for (std::uint32_t i = 0; i < device::kTimedCalls; ++i) {
    EXPECT_EQ(device::timeout_ns(host, tickets[i]), (1000 + std::uint64_t{i}) * 1'000'000) << i;
  }
  for (std::uint32_t i = 0; i < device::kTimedCalls; ++i) EXPECT_EQ(device::timeout_ns(host, log.open({})), 7u);
  EXPECT_EQ(device::timeout_ns(host, tickets[0]), 1'000'000'000u);
  const std::uint32_t last = log.open(milliseconds(5));
  EXPECT_EQ(device::timeout_ns(host, tickets[0]), 7u);
  EXPECT_EQ(device::timeout_ns(host, tickets[1]), 1'001'000'000u);
  EXPECT_EQ(device::timeout_ns(host, last), 5'000'000u);
  // The group's is that of now.
  host.timeout_ns = 8;
  EXPECT_EQ(device::timeout_ns(host, tickets[0]), 8u);
}

// A call of more kernels than the table has places keeps its deadline to the last of them, and takes nobody else's. Its
// last kernel's ticket is its own: with it the call has ended.
TEST(CallLog, ACallOfManyKernelsTakesTwoPlaces) {
  device::HostControl host;
  host.timeout_ns = 7;
  CallLog log(0, 1, 10, 0, host, [](RankState&) { return false; });
  const std::uint32_t before = log.open(milliseconds(9));
  CallTickets tickets(log, milliseconds(5));
  std::vector<std::uint32_t> kernels;
  for (std::uint32_t i = 1; i <= 3 * device::kTimedCalls; ++i) {
    kernels.push_back(tickets.next(i == 3 * device::kTimedCalls));
  }
  for (const std::uint32_t ticket : kernels) ASSERT_EQ(device::timeout_ns(host, ticket), 5'000'000u);
  EXPECT_EQ(device::timeout_ns(host, before), 9'000'000u);
  EXPECT_EQ(kernels.front(), before + 1);
  EXPECT_EQ(kernels[kernels.size() - 2], kernels.front());
  EXPECT_EQ(kernels.back(), before + 2);
  EXPECT_EQ(CallTickets(log, {}).next(true), before + 3);
}

// It is shown as completed when its last kernel has ended, not before.
TEST(CallLog, ACallOfManyKernelsEndsWithTheLast) {
  device::HostControl host;
  RankState state;
  CallLog log(0, 1, 10, 0, host, [&](RankState& read) {
    read = state;
    return true;
  });
  CallTickets tickets(log, {});
  const std::uint32_t shared = tickets.next(false);
  ASSERT_EQ(tickets.next(false), shared);
  const std::uint32_t last = tickets.next(true);
  CallRecord record;
  record.sequence = 1;
  log.issued({record, -1, 4, "plan:ring", {}}, {Lane::kCollectives, last, 1, false, 0});
  const auto shown = [&](std::uint32_t started, std::uint32_t ended) {
    state.blocks[0].progress = std::uint64_t{started} << 32 | ended;
    return nlohmann::json::parse(log.flight_record("g"))["entries"][0]["state"].get<std::string>();
  };
  EXPECT_EQ(shown(shared, shared - 1), "scheduled");
  EXPECT_EQ(shown(shared, shared), "scheduled");
  EXPECT_EQ(shown(last, last - 1), "started");
  EXPECT_EQ(shown(last, last), "completed");
}

// What is captured has no ticket: its deadline is the group's, and so is the one that the record shows.
TEST(CallLog, CapturedCallsFollowTheGroupsTimeout) {
  LoggedRanks world(2);
  const auto eager = world.issue(0, 5, milliseconds(30)), captured = world.issue(0, 6, milliseconds(30), true);
  EXPECT_EQ(captured->args.ticket, 0u);
  EXPECT_EQ(device::timeout_ns(world.ranks.host(0), captured->args.ticket), world.ranks.host(0).timeout_ns);
  const nlohmann::json seen = world.entries(0);
  EXPECT_EQ(seen[0]["timeout_ms"], 30);
  EXPECT_EQ(seen[1]["timeout_ms"], world.ranks.host(0).timeout_ns / 1'000'000);
}

// Reading from the GPU may take as long as a kernel hangs: calls are issued and counted meanwhile.
TEST(CallLog, IsNotLockedWhileTheGpuIsRead) {
  device::HostControl host;
  CallLog* log = nullptr;
  int reads = 0;
  const auto issue = [&] {
    Launched how{Lane::kMessages, log->open({}), 1, false, 0};
    log->issued({}, how);
  };
  CallLog made(0, 1, 10, 0, host, [&](RankState&) {
    ++reads;
    std::thread other([&] {
      issue();
      log->count_error();
    });
    other.join();
    return true;
  });
  log = &made;
  issue();
  const auto record = nlohmann::json::parse(made.flight_record("group"));
  EXPECT_EQ(record["entries"].size(), 2u);
  EXPECT_EQ(made.metrics().errors, 1u);
  EXPECT_EQ(reads, 2);
}

TEST(CallLog, RemembersABoundedNumberOfCalls) {
  LoggedRanks world(2, 4);
  std::vector<std::unique_ptr<LoggedRanks::Made>> kept;
  for (int i = 0; i < 6; ++i) kept.push_back(world.issue(0, 1));
  EXPECT_EQ(world.entries(0).size(), 4u);
}

std::string text_of(LoggedRanks& world, int r) {
  const auto failure = world.failure(r);
  if (!failure.has_value()) return "no failure";
  EXPECT_EQ(failure->kind(), ErrorKind::kMismatch) << failure->what();
  return failure->what();
}

// Each rank names both calls: those that find it, those that hear of it, and the one that comes late.
TEST(Mismatch, EveryRankNamesBothCalls) {
  for (const bool late : {false, true}) {
    LoggedRanks world(3);
    const auto zero = world.issue(0, 10, {}, false, true), one = world.issue(1, 11, {}, false, true),
               two = world.issue(2, 11, {}, false, true);
    std::vector<std::future<void>> others;
    others.push_back(std::async(std::launch::async, [&] { world.run(1, *one); }));
    others.push_back(std::async(std::launch::async, [&] { world.run(2, *two); }));
    if (late) {
      // Rank 0 comes when the others, who have its header already, have given up.
      auto* const header = reinterpret_cast<std::uint64_t*>(world.ranks.world(1).scratch[1] +
                                                            world.ranks.world(1).layout.header(0, 0, 0));
      device::store_relaxed(header, zero->args.fingerprint);
      others[0].get();
      others[1].get();
      world.run(0, *zero);
    } else {
      world.run(0, *zero);
      others[0].get();
      others[1].get();
    }
    for (const int r : {0, 1, 2}) {
      const std::string text = text_of(world, r);
      EXPECT_NE(text.find("all_reduce f32[10] sum"), std::string::npos) << "rank " << r << ": " << text;
      // A rank that only hears of two others knows its own call, which is the other one here.
      EXPECT_NE(text.find("all_reduce f32[11] sum"), std::string::npos) << "rank " << r << ": " << text;
    }
  }
}

TEST(Mismatch, OtherAlgorithmsAreSaid) {
  LoggedRanks world(2);
  const auto zero = world.issue(0, 10);
  device::HostControl& host = world.ranks.host(0);
  // The same call in words, run otherwise.
  CallRecord record;
  record.dtype = static_cast<std::uint8_t>(DataType::kFloat32);
  record.count = 10;
  record.algorithm = 78;
  record.hash = fingerprint(record);
  world.boards[1]->post(record);
  host.peer = 1;
  host.mine = zero->args.fingerprint;
  host.theirs = record.hash;
  host.code = static_cast<std::uint64_t>(device::FailureCode::kMismatch);
  EXPECT_NE(text_of(world, 0).find("by another algorithm"), std::string::npos) << text_of(world, 0);
}

// A call whose place was taken by a later one of its rank, and a message, which has none.
TEST(Mismatch, CallsThatAreNotOnTheBoardAreAnother) {
  LoggedRanks world(2);
  const auto zero = world.issue(0, 10), one = world.issue(1, 11);
  device::HostControl& host = world.ranks.host(0);
  host.peer = 1;
  host.mine = zero->args.fingerprint;
  host.theirs = one->args.fingerprint;
  host.code = static_cast<std::uint64_t>(device::FailureCode::kMismatch);
  const std::string named = "this rank all_reduce f32[10] sum, rank 1 all_reduce f32[11] sum;";
  EXPECT_NE(text_of(world, 0).find(named), std::string::npos) << text_of(world, 0);
  CallRecord later;
  do {
    ++later.count;
    later.hash = fingerprint(later);
  } while (later.hash % CallBoard::kEntries != one->args.fingerprint % CallBoard::kEntries ||
           later.hash == one->args.fingerprint);
  world.boards[1]->post(later);
  const std::string taken = "this rank all_reduce f32[10] sum, rank 1 another call;";
  EXPECT_NE(text_of(world, 0).find(taken), std::string::npos) << text_of(world, 0);
  const auto again = world.issue(1, 11);  // it takes its place again when it is called again
  EXPECT_NE(text_of(world, 0).find(named), std::string::npos) << text_of(world, 0);
  host.mine = fingerprint(record_of_message(true, 100, DataType::kByte, 0));
  host.theirs = fingerprint(record_of_message(false, 200, DataType::kByte, 0));
  const std::string messages = "this rank another call, rank 1 another call;";  // and nothing of algorithms
  EXPECT_NE(text_of(world, 0).find(messages), std::string::npos) << text_of(world, 0);
}

// 1,024 calls of different places are all there; one more takes the place of one of them, and of that one alone.
TEST(CallBoard, Has1024Places) {
  static_assert(CallBoard::kEntries == 1024, "docs/gpu.md names the number");
  CallBoard board(0, {});
  std::vector<CallRecord> posted(CallBoard::kEntries);
  std::size_t filled = 0;
  CallRecord record;
  while (filled < CallBoard::kEntries) {
    ++record.count;
    record.hash = fingerprint(record);
    CallRecord& place = posted[record.hash % CallBoard::kEntries];
    if (place.hash != 0) continue;
    place = record;
    board.post(record);
    ++filled;
  }
  for (const CallRecord& there : posted) {
    ASSERT_TRUE(board.find(0, there.hash).has_value()) << there.count;
    EXPECT_EQ(board.find(0, there.hash)->count, there.count);
  }
  ++record.count;
  record.hash = fingerprint(record);
  board.post(record);
  for (const CallRecord& there : posted) {
    const bool taken = there.hash % CallBoard::kEntries == record.hash % CallBoard::kEntries;
    EXPECT_EQ(board.find(0, there.hash).has_value(), !taken) << there.count;
  }
  EXPECT_EQ(board.find(0, record.hash)->count, record.count);
}

TEST(CallBoard, GivesWhatWasPostedAndNothingElse) {
  std::vector<std::uint64_t> shared(CallBoard::kBytes / 8);
  auto* const table = reinterpret_cast<std::byte*>(shared.data());
  CallBoard writer(0, {table, nullptr});
  const CallBoard reader(1, {table, nullptr});
  CallRecord record;
  record.count = 5;
  record.hash = fingerprint(record);
  EXPECT_FALSE(reader.find(0, record.hash).has_value());
  writer.post(record);
  ASSERT_TRUE(reader.find(0, record.hash).has_value());
  EXPECT_EQ(reader.find(0, record.hash)->count, 5u);
  EXPECT_FALSE(reader.find(1, record.hash).has_value());  // its own, of which it has posted none
  EXPECT_FALSE(reader.find(7, record.hash).has_value());
  EXPECT_FALSE(reader.find(0, record.hash + 1).has_value());
  // Half written: the fingerprint tells.
  std::uint64_t& count = shared[record.hash % CallBoard::kEntries * (sizeof(CallRecord) / 8) + 1];
  count ^= 1;
  EXPECT_FALSE(reader.find(0, record.hash).has_value());
  count ^= 1;
  // More calls than there are places: the last one is there.
  for (record.count = 0; record.count < 3 * CallBoard::kEntries; ++record.count) {
    record.hash = fingerprint(record);
    writer.post(record);
    ASSERT_TRUE(reader.find(0, record.hash).has_value()) << record.count;
  }
}

}  // namespace
}  // namespace tutti::cuda::test
