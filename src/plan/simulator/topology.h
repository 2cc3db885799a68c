// What a plan is simulated on: nodes, directed links with latency and bandwidth, and which node each rank is.
//
// Thread rule: values, const after reading.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::plan {

// Simulated time. Whole picoseconds, so that what happens together compares equal on every machine.
using Picoseconds = std::int64_t;
inline constexpr double kPicosecondsPerUs = 1e6;
// No moment of a simulation lies further on, 26 days: sums of a few times stay within 64 bits.
inline constexpr Picoseconds kLongest = Picoseconds{1} << 61;
[[noreturn]] void throw_too_long();

struct Link {
  std::string name;  // "gpu0->switch0"
  std::int32_t from = 0;
  std::int32_t to = 0;
  Picoseconds latency = 0;
  double bandwidth = 0;  // bytes a picosecond
};

// A pair of nodes, in this order.
constexpr std::uint64_t pair_key(std::int32_t from, std::int32_t to) {
  return static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to);
}

struct GivenRoute {
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::vector<std::int32_t> links;
};

// What part of a bandwidth a transfer gets by its size: (bytes, part) in ascending order, linear in the logarithm of
// the size between two points, level outside of them. All of it if there are no points.
struct Efficiency {
  std::vector<std::pair<double, double>> points;

  double of(double bytes) const;
};

struct Topology {
  std::string name;
  std::vector<std::string> nodes;
  std::vector<std::int32_t> ranks;  // the node of each rank
  std::vector<Link> links;
  std::vector<GivenRoute> routes;                      // all other pairs take a shortest path
  std::vector<std::vector<std::int32_t>> groups;       // sets of nodes whose boundary may bound the bandwidth
  Picoseconds local_latency = 0;                       // of an operation within a rank
  double local_bandwidth = 0;                          // bytes a picosecond that a rank copies or reduces; 0: no limit
  double block_bandwidth = 0;                          // likewise, of what one thread block of it does but with packets
  Efficiency efficiency;                               // of transfers over links
  std::optional<Efficiency> packet_efficiency;         // of those of packets, if that differs
  std::optional<Efficiency> unread_efficiency;         // of those into outputs that nobody reads in the call
  Efficiency local_efficiency;                         // of what a rank copies
  std::optional<Efficiency> reduce_efficiency;         // of what it reduces, if that differs
  std::optional<Efficiency> local_packet_efficiency;   // of what it packs into packets or unpacks
  std::optional<Efficiency> packet_reduce_efficiency;  // of packets that it reduces
  bool in_turn = false;      // a reduction sends when it has reduced, as one core does; else meanwhile
  Picoseconds dispatch = 0;  // before each operation
  std::optional<Picoseconds> packet_dispatch;  // before one that moves packets, if that differs
  Picoseconds call = 0;                        // of a call, beside its operations
  Picoseconds agree = 0;                       // of a call that reaches into other ranks' inputs or outputs, too
  bool multicast = false;                      // switches copy and reduce, so a group's data cross a link once
};

// From JSON (docs/simulator.md). Throws InvalidArgument that begins with the JSON path of the fault.
Topology read_topology(std::string_view text);

}  // namespace tutti::plan
