#include "communicator/flight_recorder.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace tutti {
namespace {

// Words of an entry; the call record fills the first eight.
enum Word : std::size_t { kRecord = 0, kId = 8, kState, kPeer, kTimeout, kCreated, kStarted, kCompleted, kPlace };
// Of kPlace: no address of a stream has this bit.
constexpr std::uint64_t kCaptured = std::uint64_t{1} << 63;
constexpr const char* kSchema = "2.10";
constexpr std::size_t kRecordWords = sizeof(CallRecord) / sizeof(std::uint64_t);

// Wall-clock time as the kernel last updated it (1 to 4 ms old): a tenth of the cost of the exact time.
std::uint64_t coarse_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

const char* state_name(std::uint64_t state) {
  switch (static_cast<FlightRecorder::State>(state)) {
    case FlightRecorder::State::kScheduled:
      return "scheduled";
    case FlightRecorder::State::kCompleted:
      return "completed";
    default:
      return "started";  // also what failed: it never completed
  }
}

// The analyser knows the names that PyTorch itself gives to dtypes.
const char* torch_dtype(std::uint8_t dtype) {
  constexpr const char* kNames[kDataTypeCount] = {
      "Bool",     "Byte", "Char",          "UInt16",      "Short",           "UInt32",          "Int",
      "UInt64",   "Long", "Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz", "Float8_e8m0fnu",
      "BFloat16", "Half", "Float",         "Double",      "ComplexHalf",     "ComplexFloat",    "ComplexDouble",
      "Byte"};
  return dtype < kDataTypeCount ? kNames[dtype] : "Undefined";
}

// Elements that a rank gives and gets, as the analyser compares them between ranks.
std::pair<std::uint64_t, std::uint64_t> elements(const CallRecord& r, std::uint64_t size) {
  if (r.call >= kCollectiveCount) return {r.count, r.count};
  switch (static_cast<Collective>(r.call)) {
    case Collective::kAllGather:
    case Collective::kGather:
      return {r.count, r.count * size};
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return {r.count * size, r.count};
    case Collective::kAllToAll:
      return {r.count * size, r.count * size};
    default:
      return {r.count, r.count};
  }
}

std::string profiling_name(const CallRecord& r, int rank, std::int64_t peer) {
  // The analyser accepts the names of PyTorch's own backends only; gloo is the one of this kind.
  if (r.call == kCallSend) return "gloo:send " + std::to_string(rank) + "->" + std::to_string(peer);
  if (r.call == kCallRecv) return "gloo:recv " + std::to_string(rank) + "<-" + std::to_string(peer);
  if (r.call == kCallAddRmsNorm || r.call == kCallQuantized) return "gloo:all_reduce";
  const auto collective = static_cast<Collective>(r.call);
  return "gloo:" + std::string(collective == Collective::kBarrier ? "all_reduce_barrier" : to_string(collective));
}

}  // namespace

FlightRecorder::FlightRecorder(int entries, Of device)
    : device_(device),
      capacity_(entries > 0 ? static_cast<std::size_t>(entries) : 0),
      entries_(capacity_ != 0 ? std::make_unique<Entry[]>(capacity_) : nullptr) {}

std::uint64_t FlightRecorder::add(const CallRecord& record, int peer, State state, std::int64_t timeout_ms,
                                  Place place) noexcept {
  // relaxed: only makes ids unique between threads.
  const std::uint64_t id = next_.fetch_add(1, std::memory_order_relaxed);
  if (capacity_ == 0) return id;
  Entry& entry = entries_[id % capacity_];
  const std::uint64_t now = coarse_ns();
  // Odd: being written. A reader that finds it odd, or changed after it has read the words, passes the entry over.
  // relaxed: each word's release orders it.
  entry.version.store(2 * id + 1, std::memory_order_relaxed);
  std::uint64_t words[kRecordWords];
  std::memcpy(words, &record, sizeof(record));
  for (std::size_t i = 0; i < kRecordWords; ++i) write(entry, kRecord + i, words[i]);
  write(entry, kId, id);
  write(entry, kState, static_cast<std::uint64_t>(state));
  write(entry, kPeer, static_cast<std::uint64_t>(static_cast<std::int64_t>(peer)));
  write(entry, kTimeout, static_cast<std::uint64_t>(timeout_ms));
  write(entry, kCreated, now);
  write(entry, kStarted, state == State::kScheduled ? 0 : now);
  write(entry, kCompleted, state == State::kCompleted ? now : 0);
  write(entry, kPlace, place.stream | (place.captured ? kCaptured : 0));
  // release: publishes the words; pairs with the acquire in dump().
  entry.version.store(2 * id + 2, std::memory_order_release);
  return id;
}

void FlightRecorder::update(std::uint64_t id, State state) noexcept {
  if (capacity_ == 0) return;
  Entry& entry = entries_[id % capacity_];
  // relaxed: this thread or the one that handed it the call wrote the entry.
  if (entry.words[kId].load(std::memory_order_relaxed) != id) return;  // overwritten by a later call
  const std::uint64_t now = coarse_ns();
  if (state == State::kStarted) write(entry, kStarted, now);
  if (state == State::kCompleted) write(entry, kCompleted, now);
  // release: the time above is visible to who reads the state.
  entry.words[kState].store(static_cast<std::uint64_t>(state), std::memory_order_release);
}

std::string FlightRecorder::dump(const std::string& group, int rank, int size) const {
  nlohmann::json entries = nlohmann::json::array();
  // relaxed: calls made while dumping may be missing.
  const std::uint64_t end = next_.load(std::memory_order_relaxed);
  std::uint64_t p2p = 0;
  std::uint64_t last_enqueued = 0, last_started = 0, last_completed = 0;
  for (std::uint64_t id = end > capacity_ ? end - capacity_ : 0; id < end; ++id) {
    const Entry& entry = entries_[id % capacity_];
    std::uint64_t words[kWords];
    // acquire: pairs with the release in add(). Written again meanwhile: that call is newer than this dump.
    if (entry.version.load(std::memory_order_acquire) != 2 * id + 2) continue;
    for (std::size_t i = 0; i < kWords; ++i) words[i] = entry.words[i].load(std::memory_order_acquire);
    if (entry.version.load(std::memory_order_relaxed) != 2 * id + 2) continue;
    CallRecord r;
    std::memcpy(&r, words, sizeof(r));
    const bool is_p2p = r.call == kCallSend || r.call == kCallRecv;
    const auto [in, out] = elements(r, static_cast<std::uint64_t>(size));
    const bool completed = words[kState] == static_cast<std::uint64_t>(State::kCompleted);
    nlohmann::json e = {{"record_id", id},
                        {"pg_id", 0},
                        {"process_group", {group, group}},
                        {"collective_seq_id", r.sequence},
                        {"p2p_seq_id", is_p2p ? ++p2p : p2p},
                        {"op_id", id},
                        {"profiling_name", profiling_name(r, rank, static_cast<std::int64_t>(words[kPeer]))},
                        {"time_created_ns", words[kCreated]},
                        {"timeout_ms", words[kTimeout]},
                        {"is_p2p", is_p2p},
                        {"input_sizes", {{in}}},
                        {"input_dtypes", {torch_dtype(r.dtype)}},
                        {"output_sizes", {{out}}},
                        {"output_dtypes", {torch_dtype(r.dtype)}},
                        {"state", state_name(words[kState])},
                        {"retired", completed},
                        {"frames", nlohmann::json::array()},
                        {"failed", words[kState] == static_cast<std::uint64_t>(State::kFailed)},
                        {"call", describe(r)},
                        {"device", device_ == Of::kCuda ? "cuda" : "cpu"}};
    if (device_ == Of::kCuda) {
      e["stream"] = words[kPlace] & ~kCaptured;
      e["captured"] = (words[kPlace] & kCaptured) != 0;
    }
    if (words[kStarted] != 0) e["time_discovered_started_ns"] = words[kStarted];
    if (words[kCompleted] != 0) {
      e["time_discovered_completed_ns"] = words[kCompleted];
      e["duration_ms"] = static_cast<double>(words[kCompleted] - std::min(words[kStarted], words[kCompleted])) / 1e6;
    }
    if (!is_p2p) {
      last_enqueued = r.sequence;
      if (words[kStarted] != 0) last_started = r.sequence;
      if (completed) last_completed = r.sequence;
    }
    entries.push_back(std::move(e));
  }
  std::string ranks = "[";
  for (int r = 0; r < size; ++r) ranks += (r > 0 ? ", " : "") + std::to_string(r);
  const nlohmann::json dump = {{"version", kSchema},
                               {"pg_config", {{group, {{"name", group}, {"desc", group}, {"ranks", ranks + "]"}}}}},
                               {"pg_status",
                                {{group,
                                  {{"last_enqueued_collective", last_enqueued},
                                   {"last_started_collective", last_started},
                                   {"last_completed_collective", last_completed}}}}},
                               {"entries", std::move(entries)}};
  return dump.dump();
}

std::string merge_records(const std::vector<std::string>& dumps, const std::string& suffix) {
  using Json = nlohmann::ordered_json;  // the groups stay in their order
  Json all = {
      {"version", kSchema}, {"pg_config", Json::object()}, {"pg_status", Json::object()}, {"entries", Json::array()}};
  for (const std::string& text : dumps) {
    Json dump = Json::parse(text);
    for (auto& [name, config] : dump["pg_config"].items()) {
      const std::string renamed = name + suffix;
      config["name"] = config["desc"] = renamed;
      all["pg_config"][renamed] = config;
      all["pg_status"][renamed] = dump["pg_status"][name];
    }
    for (Json& entry : dump["entries"]) {
      const std::string renamed = entry["process_group"][0].get<std::string>() + suffix;
      entry["process_group"] = {renamed, renamed};
      all["entries"].push_back(std::move(entry));
    }
  }
  auto& entries = all["entries"].get_ref<Json::array_t&>();
  std::ranges::stable_sort(entries, {},
                           [](const Json& entry) { return entry["time_created_ns"].get<std::uint64_t>(); });
  return all.dump();
}

}  // namespace tutti
