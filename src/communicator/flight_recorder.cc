#include "communicator/flight_recorder.h"

#include <time.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "base/json_writer.h"
#include "communicator/json_parts.h"

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

using Words = std::array<std::uint64_t, kPlace + 1>;

CallRecord record_of(const Words& words) {
  CallRecord record;
  std::memcpy(static_cast<void*>(&record), words.data(), sizeof(record));
  return record;
}

bool is_message(const CallRecord& record) { return record.call == kCallSend || record.call == kCallRecv; }

bool is_in(const Words& words, FlightRecorder::State state) {
  return words[kState] == static_cast<std::uint64_t>(state);
}

// How far the calls have come.
struct Progress {
  std::uint64_t messages = 0, enqueued = 0, started = 0, completed = 0;

  void count(const CallRecord& record, const Words& words) {
    if (is_message(record)) {
      ++messages;
      return;
    }
    enqueued = record.sequence;
    if (words[kStarted] != 0) started = record.sequence;
    if (is_in(words, FlightRecorder::State::kCompleted)) completed = record.sequence;
  }
};

std::string profiling_name(const CallRecord& r, int rank, std::int64_t peer) {
  // The analyser accepts the names of PyTorch's own backends only; gloo is the one of this kind.
  if (r.call == kCallSend) return "gloo:send " + std::to_string(rank) + "->" + std::to_string(peer);
  if (r.call == kCallRecv) return "gloo:recv " + std::to_string(rank) + "<-" + std::to_string(peer);
  if (r.call == kCallAddRmsNorm || r.call == kCallQuantized) return "gloo:all_reduce";
  const auto collective = static_cast<Collective>(r.call);
  return "gloo:" + std::string(collective == Collective::kBarrier ? "all_reduce_barrier" : to_string(collective));
}

void write_call(JsonWriter& out, const CallRecord& record, int rank, int size, std::int64_t peer) {
  const auto [in, given] = elements(record, static_cast<std::uint64_t>(size));
  const auto shape = [&](const char* name, std::uint64_t count) {
    out.key(name).begin_array().begin_array().value(count).end_array().end_array();
  };
  const auto dtype = [&](const char* name) {
    out.key(name).begin_array().value(torch_dtype(record.dtype)).end_array();
  };
  out.member("pg_id", 0).member("collective_seq_id", record.sequence).member("is_p2p", is_message(record));
  out.member("profiling_name", profiling_name(record, rank, peer)).member("call", describe(record));
  shape("input_sizes", in);
  shape("output_sizes", given);
  dtype("input_dtypes");
  dtype("output_dtypes");
  out.key("frames").begin_array().end_array();
}

// What became of it, and when.
void write_course(JsonWriter& out, const Words& words) {
  out.member("state", state_name(words[kState]));
  out.member("retired", is_in(words, FlightRecorder::State::kCompleted));
  out.member("failed", is_in(words, FlightRecorder::State::kFailed));
  out.member("timeout_ms", words[kTimeout]).member("time_created_ns", words[kCreated]);
  if (words[kStarted] != 0) out.member("time_discovered_started_ns", words[kStarted]);
  if (words[kCompleted] == 0) return;
  out.member("time_discovered_completed_ns", words[kCompleted]);
  const std::uint64_t ns = words[kCompleted] - std::min(words[kStarted], words[kCompleted]);
  constexpr std::uint64_t kNsPerMs = 1'000'000;
  out.key("duration_ms").json(std::to_string(ns / kNsPerMs) + '.' + std::to_string(kNsPerMs + ns % kNsPerMs).substr(1));
}

// Records of several communicators as one: names of groups get `suffix`, all else stays as it stands.
class MergedRecords {
 public:
  explicit MergedRecords(const std::string& suffix) : suffix_(suffix) {
    configs_.begin_object();
    states_.begin_object();
  }

  // The text stays until text().
  void add(std::string_view record) {
    for (const auto& [part, value] : members_of(record)) {
      if (part == "pg_config") {
        for (const auto& [group, config] : members_of(value)) add_config(renamed(group), config);
      } else if (part == "pg_status") {
        for (const auto& [group, state] : members_of(value)) states_.json_key(renamed(group)).json(state);
      } else if (part == "entries") {
        for (const std::string_view entry : elements_of(value)) entries_.push_back({created_ns(entry), entry});
      }
    }
  }
  std::string text() && {
    std::ranges::stable_sort(entries_, {}, &Entry::created_ns);
    JsonWriter out;
    out.begin_object().member("version", kSchema);
    out.key("pg_config").json(std::move(configs_.end_object()).take());
    out.key("pg_status").json(std::move(states_.end_object()).take());
    out.key("entries").begin_array();
    for (const Entry& entry : entries_) write_entry(out, entry.text);
    out.end_array().end_object();
    return std::move(out).take();
  }

 private:
  struct Entry {
    std::uint64_t created_ns;
    std::string_view text;
  };

  // A name as it stands between its quotes, with them.
  std::string renamed(std::string_view name) const { return '"' + std::string(name) + suffix_ + '"'; }

  void add_config(const std::string& name, std::string_view config) {
    configs_.json_key(name).begin_object();
    for (const auto& [key, value] : members_of(config)) {
      const bool names = key == "name" || key == "desc";
      configs_.key(key).json(names ? std::string_view(name) : value);
    }
    configs_.end_object();
  }
  static std::uint64_t created_ns(std::string_view entry) {
    std::uint64_t ns = 0;
    for (const auto& [key, value] : members_of(entry)) {
      if (key == "time_created_ns") std::from_chars(value.data(), value.data() + value.size(), ns);
    }
    return ns;
  }
  void write_entry(JsonWriter& out, std::string_view entry) const {
    out.begin_object();
    for (const auto& [key, value] : members_of(entry)) {
      out.key(key);
      if (key != "process_group") {
        out.json(value);
        continue;
      }
      const std::string name = renamed(unquoted(elements_of(value).at(0)));
      out.begin_array().json(name).json(name).end_array();
    }
    out.end_object();
  }

  const std::string& suffix_;
  JsonWriter configs_, states_;
  std::vector<Entry> entries_;
};

}  // namespace

FlightRecorder::FlightRecorder(int entries, Of device)
    : device_(device),
      capacity_(entries > 0 ? static_cast<std::size_t>(entries) : 0),
      mask_(std::bit_ceil(capacity_) - 1),
      entries_(capacity_ != 0 ? std::make_unique<Entry[]>(mask_ + 1) : nullptr) {}

std::uint64_t FlightRecorder::add(const CallRecord& record, int peer, State state, std::int64_t timeout_ms,
                                  Place place) noexcept {
  // relaxed: only makes ids unique between threads.
  const std::uint64_t id = next_.fetch_add(1, std::memory_order_relaxed);
  if (capacity_ == 0) return id;
  Entry& entry = entry_of(id);
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
  Entry& entry = entry_of(id);
  // relaxed: this thread or the one that handed it the call wrote the entry.
  if (entry.words[kId].load(std::memory_order_relaxed) != id) return;  // overwritten by a later call
  const std::uint64_t now = coarse_ns();
  if (state == State::kStarted) write(entry, kStarted, now);
  if (state == State::kCompleted) write(entry, kCompleted, now);
  // release: the time above is visible to who reads the state.
  entry.words[kState].store(static_cast<std::uint64_t>(state), std::memory_order_release);
}

std::string FlightRecorder::dump(const std::string& group, int rank, int size) const {
  JsonWriter out;
  out.begin_object().member("version", kSchema).key("entries").begin_array();
  // relaxed: calls made while dumping may be missing.
  const std::uint64_t end = next_.load(std::memory_order_relaxed);
  Progress progress;
  for (std::uint64_t id = end > capacity_ ? end - capacity_ : 0; id < end; ++id) {
    const Entry& entry = entry_of(id);
    Words words;
    // acquire: pairs with the release in add(). Written again meanwhile: that call is newer than this dump.
    if (entry.version.load(std::memory_order_acquire) != 2 * id + 2) continue;
    for (std::size_t i = 0; i < kWords; ++i) words[i] = entry.words[i].load(std::memory_order_acquire);
    if (entry.version.load(std::memory_order_relaxed) != 2 * id + 2) continue;
    const CallRecord record = record_of(words);
    progress.count(record, words);
    out.begin_object().member("record_id", id).member("op_id", id).key("process_group");
    out.begin_array().value(group).value(group).end_array();
    out.member("p2p_seq_id", progress.messages);
    write_call(out, record, rank, size, static_cast<std::int64_t>(words[kPeer]));
    write_course(out, words);
    out.member("device", device_ == Of::kCuda ? "cuda" : "cpu");
    if (device_ == Of::kCuda) {
      out.member("stream", words[kPlace] & ~kCaptured).member("captured", (words[kPlace] & kCaptured) != 0);
    }
    out.end_object();
  }
  out.end_array();
  std::string ranks = "[";
  for (int r = 0; r < size; ++r) ranks += (r > 0 ? ", " : "") + std::to_string(r);
  out.key("pg_config").begin_object().key(group).begin_object();
  out.member("name", group).member("desc", group).member("ranks", ranks + "]").end_object().end_object();
  out.key("pg_status").begin_object().key(group).begin_object();
  out.member("last_enqueued_collective", progress.enqueued).member("last_started_collective", progress.started);
  out.member("last_completed_collective", progress.completed).end_object().end_object();
  out.end_object();
  return std::move(out).take();
}

std::string merge_records(const std::vector<std::string>& dumps, const std::string& suffix) {
  MergedRecords all(suffix);
  for (const std::string& dump : dumps) all.add(dump);
  return std::move(all).text();
}

}  // namespace tutti
