// One benchmark loop for Tutti and its peers: same buffers, same sizes, same checks, JSON lines out.
//
// Each program implements Implementation and calls bench_main(). Rank 0 prints a line for every collective and size
// with the minimum, median and 99th percentile of its time a call, and the algorithm and bus bandwidth as nccl-tests
// defines them. Results are checked before the timed loop of every size; a wrong result ends the program with status 1.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

inline constexpr std::string_view kCollectives[] = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "barrier"};

class Implementation {
 public:
  virtual ~Implementation() = default;
  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool supports(std::string_view collective) const = 0;
  virtual float* allocate(std::size_t count) {
    return static_cast<float*>(std::aligned_alloc(4096, (count * 4 + 8191) / 4096 * 4096));
  }
  // `count` floats a rank's block; input and output have n blocks where the collective says so. Root is rank 0.
  virtual void run(std::string_view collective, const float* in, float* out, std::size_t count) = 0;
  virtual void barrier() = 0;
};

struct Options {
  std::vector<std::string> collectives;
  std::size_t min_bytes = 8, max_bytes = 64 << 20;
  double seconds = 0.3;  // of timed calls a size
};

inline double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline float pattern(int rank, std::size_t i) {
  return static_cast<float>((i + static_cast<std::size_t>(rank) * 3) % 11);
}

// What rank `me` must find at element i of its output; < 0: not defined for this rank.
inline float expected(std::string_view c, int me, int n, std::size_t count, std::size_t i) {
  const auto mine = static_cast<std::size_t>(me) * count;
  const auto sum = [&](std::size_t at) {
    float s = 0;
    for (int r = 0; r < n; ++r) s += pattern(r, at);
    return s;
  };
  const int block = count == 0 ? 0 : static_cast<int>(i / count);
  if (c == "all_reduce") return sum(i);
  if (c == "reduce") return me == 0 ? sum(i) : -1;
  if (c == "all_gather") return pattern(block, i % count);
  if (c == "gather") return me == 0 ? pattern(block, i % count) : -1;
  if (c == "reduce_scatter") return sum(mine + i);
  if (c == "all_to_all") return pattern(block, mine + i % count);
  if (c == "broadcast") return pattern(0, i);
  if (c == "scatter") return pattern(0, mine + i);
  return -1;
}

inline bool many_in(std::string_view c) { return c == "reduce_scatter" || c == "all_to_all" || c == "scatter"; }
inline bool many_out(std::string_view c) { return c == "all_gather" || c == "all_to_all" || c == "gather"; }

// Bus bandwidth over algorithm bandwidth, of the total size, as in nccl-tests.
inline double bus_factor(std::string_view c, int n) {
  if (c == "all_reduce") return 2.0 * (n - 1) / n;
  if (c == "all_gather" || c == "reduce_scatter" || c == "all_to_all") return static_cast<double>(n - 1) / n;
  return 1;
}

inline void check(Implementation& impl, std::string_view c, float* in, float* out, std::size_t count) {
  const int n = impl.size();
  const std::size_t outs = count * (many_out(c) ? static_cast<std::size_t>(n) : 1);
  std::fill(out, out + outs, -2.0F);
  if (c == "broadcast") std::memcpy(out, in, count * sizeof(float));
  impl.run(c, in, out, count);
  for (std::size_t i = 0; i < outs; ++i) {
    const float want = expected(c, impl.rank(), n, count, i);
    if (want >= 0 && out[i] != want) {
      std::fprintf(stderr, "%s %s: rank %d element %zu is %g, not %g\n", std::string(impl.name()).c_str(),
                   std::string(c).c_str(), impl.rank(), i, static_cast<double>(out[i]), static_cast<double>(want));
      std::exit(1);
    }
  }
}

// Both ranks must do the same number of calls, so it follows from the size alone.
inline std::size_t calls_for(std::size_t bytes, double seconds) {
  const double guess_us = 0.3 + static_cast<double>(bytes) / 3000.0;  // a slow peer's time
  return std::clamp<std::size_t>(static_cast<std::size_t>(seconds * 1e6 / guess_us), 8, 200'000);
}

inline void measure(Implementation& impl, std::string_view c, std::size_t bytes, double seconds) {
  const auto n = static_cast<std::size_t>(impl.size());
  // `bytes` is the size that users speak of: of the whole tensor that is gathered, scattered or exchanged.
  const bool blocks = many_in(c) || many_out(c);
  const std::size_t count = c == "barrier" ? 0 : std::max<std::size_t>(1, bytes / 4 / (blocks ? n : 1));
  float* in = impl.allocate(count * n + 16);
  float* out = impl.allocate(count * n + 16);
  for (std::size_t i = 0; i < count * (many_in(c) ? n : 1); ++i) in[i] = pattern(impl.rank(), i);
  std::fill(out, out + count * n, 0.0F);
  if (c != "barrier") check(impl, c, in, out, count);
  const std::size_t calls = calls_for(bytes, seconds);
  const std::size_t batch = std::max<std::size_t>(1, calls / 200);
  std::vector<double> times;
  for (std::size_t i = 0; i < calls / 10 + 2; ++i) impl.run(c, in, out, count);
  impl.barrier();
  for (std::size_t done = 0; done < calls; done += batch) {
    const double start = now_us();
    for (std::size_t i = 0; i < batch; ++i) impl.run(c, in, out, count);
    times.push_back((now_us() - start) / static_cast<double>(batch));
  }
  impl.barrier();
  if (impl.rank() != 0) return;
  std::sort(times.begin(), times.end());
  const double p50 = times[times.size() / 2];
  const double total = static_cast<double>(count * 4 * (blocks ? n : 1));
  std::printf(
      "{\"implementation\":\"%s\",\"collective\":\"%s\",\"bytes\":%zu,\"ranks\":%zu,\"min_us\":%.3f,\"p50_us\":%.3f,"
      "\"p99_us\":%.3f,\"algbw_gbs\":%.3f,\"busbw_gbs\":%.3f}\n",
      std::string(impl.name()).c_str(), std::string(c).c_str(), bytes, n, times.front(), p50,
      times[times.size() * 99 / 100], total / p50 / 1e3, total / p50 / 1e3 * bus_factor(c, static_cast<int>(n)));
  std::fflush(stdout);
}

inline Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i];
    const std::string value = argv[i + 1];
    if (key == "--collectives") {
      for (std::size_t at = 0; at <= value.size();) {
        const std::size_t comma = std::min(value.find(',', at), value.size());
        o.collectives.push_back(value.substr(at, comma - at));
        at = comma + 1;
      }
    } else if (key == "--min") {
      o.min_bytes = std::strtoull(value.c_str(), nullptr, 10);
    } else if (key == "--max") {
      o.max_bytes = std::strtoull(value.c_str(), nullptr, 10);
    } else if (key == "--seconds") {
      o.seconds = std::strtod(value.c_str(), nullptr);
    }
  }
  if (o.collectives.empty()) o.collectives.assign(std::begin(kCollectives), std::end(kCollectives));
  return o;
}

inline void bench_main(Implementation& impl, const Options& options) {
  for (const std::string& c : options.collectives) {
    if (!impl.supports(c)) continue;
    if (c == "barrier") {
      measure(impl, c, 0, options.seconds);
      continue;
    }
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{64}, std::size_t{1} << 10, std::size_t{8} << 10,
                                    std::size_t{32} << 10, std::size_t{64} << 10, std::size_t{512} << 10,
                                    std::size_t{4} << 20, std::size_t{16} << 20, std::size_t{64} << 20}) {
      if (bytes >= options.min_bytes && bytes <= options.max_bytes) measure(impl, c, bytes, options.seconds);
    }
  }
}

}  // namespace bench
