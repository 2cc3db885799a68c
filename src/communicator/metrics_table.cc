#include "communicator/metrics_table.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "channel/call_record.h"

namespace tutti {
namespace {

constexpr std::array<std::size_t, MetricsTable::kSizeClasses - 1> kClassLimits = {64,        1024,    8192,    65536,
                                                                                  512 << 10, 4 << 20, 64 << 20};
constexpr std::array<const char*, MetricsTable::kSizeClasses> kClassNames = {"<=64B",   "<=1KB", "<=8KB",  "<=64KB",
                                                                             "<=512KB", "<=4MB", "<=64MB", ">64MB"};
constexpr double kBucketGrowth = 1.2;

int bucket_of(std::int64_t ns) noexcept {
  if (ns <= 1) return 0;
  const int bucket = static_cast<int>(std::log(static_cast<double>(ns)) / std::log(kBucketGrowth));
  return std::min(bucket, MetricsTable::kBuckets - 1);
}

}  // namespace

int size_class(std::size_t bytes) noexcept {
  int result = 0;
  while (result < static_cast<int>(kClassLimits.size()) && bytes > kClassLimits[static_cast<std::size_t>(result)])
    ++result;
  return result;
}

std::string_view call_name(int call) noexcept {
  if (call == kCallSend) return "send";
  if (call == kCallRecv) return "recv";
  if (call == kCallAddRmsNorm) return "all_reduce_add_rms_norm";
  if (call == kCallQuantized) return "all_reduce_quantized";
  return to_string(static_cast<Collective>(call));
}

MetricsTable::Row* MetricsTable::row(int call, int size_class, std::string_view algorithm) noexcept {
  std::atomic<Row*>& head = rows_[static_cast<std::size_t>(call * kSizeClasses + size_class)];
  // relaxed: the writer of this list reads its own stores.
  for (Row* row = head.load(std::memory_order_relaxed); row != nullptr; row = row->next) {
    const std::string_view name = row->algorithm;
    // Mostly the very same literal, so its letters need not be compared.
    if (name.size() == algorithm.size() && (name.data() == algorithm.data() || name == algorithm)) return row;
  }
  const std::lock_guard lock(owned_mutex_);
  try {
    owned_.push_back(std::make_unique<Row>());
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  Row* row = owned_.back().get();
  row->algorithm = algorithm;
  row->next = head.load(std::memory_order_relaxed);
  // release: publishes the row to snapshot(), which acquires.
  head.store(row, std::memory_order_release);
  return row;
}

void MetricsTable::record(int call, std::size_t bytes, std::string_view algorithm, std::int64_t total_ns,
                          std::int64_t wait_ns) noexcept {
  Row* r = row(call, size_class(bytes), algorithm);
  if (r == nullptr) return;  // no memory: the call has been made all the same
  bump(r->counters[0], 1);
  bump(r->counters[1], bytes);
  if (total_ns < 0) return;
  bump(r->counters[2], 1);
  bump(r->counters[3], static_cast<std::uint64_t>(total_ns));
  bump(r->counters[4], static_cast<std::uint64_t>(std::min(wait_ns, total_ns)));
  auto& bucket = r->buckets[static_cast<std::size_t>(bucket_of(total_ns))];
  bucket.store(bucket.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // relaxed: see bump()
}

Metrics MetricsTable::snapshot() const {
  Metrics metrics;
  for (int call = 0; call < kCalls; ++call) {
    for (int c = 0; c < kSizeClasses; ++c) {
      // acquire: pairs with the release in row().
      const Row* r = rows_[static_cast<std::size_t>(call * kSizeClasses + c)].load(std::memory_order_acquire);
      for (; r != nullptr; r = r->next) {
        MetricsRow out;
        out.collective = call_name(call);
        out.size_class = kClassNames[static_cast<std::size_t>(c)];
        out.algorithm = r->algorithm;
        const auto value = [r](std::size_t i) { return r->counters[i].load(std::memory_order_relaxed); };  // see bump()
        out.calls = value(0);
        out.bytes = value(1);
        out.timed_calls = value(2);
        out.total_ns = value(3);
        out.wait_ns = value(4);
        std::uint64_t below = 0;
        for (std::size_t b = 0; b < kBuckets && out.timed_calls != 0; ++b) {
          below += r->buckets[b].load(std::memory_order_relaxed);
          if (2 * below < out.timed_calls) continue;
          out.p50_ns = static_cast<std::uint64_t>(std::pow(kBucketGrowth, static_cast<double>(b) + 0.5));
          break;
        }
        if (out.calls != 0) metrics.rows.push_back(std::move(out));
      }
    }
  }
  metrics.mapped_calls = mapped_.load(std::memory_order_relaxed);
  metrics.errors = errors_.load(std::memory_order_relaxed);
  return metrics;
}

void MetricsTable::reset() noexcept {
  // relaxed throughout: a call that is being recorded meanwhile is counted before or after.
  for (auto& head : rows_) {
    for (Row* r = head.load(std::memory_order_acquire); r != nullptr; r = r->next) {
      for (auto& counter : r->counters) counter.store(0, std::memory_order_relaxed);
      for (auto& bucket : r->buckets) bucket.store(0, std::memory_order_relaxed);
    }
  }
  mapped_.store(0, std::memory_order_relaxed);
  errors_.store(0, std::memory_order_relaxed);
}

void add_counts(Metrics& all, const Metrics& some) {
  all.errors += some.errors;
  all.device_calls += some.device_calls;
  for (const MetricsRow& row : some.rows) {
    const auto same = std::find_if(all.rows.begin(), all.rows.end(), [&](const MetricsRow& other) {
      return other.device == row.device && other.collective == row.collective && other.size_class == row.size_class &&
             other.algorithm == row.algorithm;
    });
    if (same == all.rows.end()) {
      all.rows.push_back(row);
    } else {
      same->calls += row.calls;
      same->bytes += row.bytes;
    }
  }
}

}  // namespace tutti
