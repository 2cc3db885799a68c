// Topologies for tests of the simulator.
#pragma once

#include <cstdint>
#include <string>

#include "plan/simulator/topology.h"

namespace tutti::plan {

inline constexpr double kLatencyUs = 2;
inline constexpr double kGbs = 10;

inline void connect(Topology& topology, std::int32_t from, std::int32_t to, double latency_us, double gbs) {
  const auto latency = static_cast<Picoseconds>(latency_us * kPicosecondsPerUs);
  topology.links.push_back({std::to_string(from) + "->" + std::to_string(to), from, to, latency, gbs * 1e-3});
}

inline Topology nodes(std::int32_t count) {
  Topology out;
  out.name = "test";
  for (std::int32_t i = 0; i < count; ++i) {
    out.nodes.push_back(std::to_string(i));
    out.ranks.push_back(i);
  }
  return out;
}

inline Topology ring(std::int32_t count, double latency_us = kLatencyUs, double gbs = kGbs) {
  Topology out = nodes(count);
  for (std::int32_t i = 0; i < count; ++i) {
    connect(out, i, (i + 1) % count, latency_us, gbs);
    if (count > 2) connect(out, (i + 1) % count, i, latency_us, gbs);
  }
  return out;
}

// Every rank has one link each way to a switch; half of the latency on each.
inline Topology star(std::int32_t count, double latency_us = kLatencyUs, double gbs = kGbs) {
  Topology out = nodes(count);
  out.nodes.push_back("switch");
  for (std::int32_t i = 0; i < count; ++i) {
    connect(out, i, count, latency_us / 2, gbs);
    connect(out, count, i, latency_us / 2, gbs);
  }
  return out;
}

// Switches of `leaf` ranks each, and one above them whose links are slower.
inline Topology leaves(std::int32_t count, std::int32_t leaf) {
  Topology out = nodes(count);
  const std::int32_t switches = (count + leaf - 1) / leaf;
  for (std::int32_t i = 0; i <= switches; ++i) out.nodes.push_back("switch " + std::to_string(i));
  const auto both = [&out](std::int32_t a, std::int32_t b, double latency_us, double gbs) {
    connect(out, a, b, latency_us, gbs);
    connect(out, b, a, latency_us, gbs);
  };
  for (std::int32_t i = 0; i < count; ++i) both(i, count + i / leaf, kLatencyUs / 2, kGbs);
  for (std::int32_t i = 0; i < switches; ++i) both(count + i, count + switches, kLatencyUs, kGbs / 3);
  return out;
}

}  // namespace tutti::plan
