// Topologies from JSON.
#include "plan/simulator/topology.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "plan/simulator/routes.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

TEST(Topology, IsReadFromJson) {
  const Topology read = read_topology(R"({"name": "two", "nodes": ["a", "b", "s"], "ranks": ["a", "b"],
    "links": [{"from": "a", "to": "s", "latency_us": 1.5, "bandwidth_gbs": 4},
              {"from": "b", "to": "s", "latency_us": 1.5, "bandwidth_gbs": 4},
              {"from": "a", "to": "b", "latency_us": 1, "bandwidth_gbs": 1, "both": false}],
    "routes": [{"nodes": ["a", "s", "b"]}], "dispatch_us": 0.125, "packet_dispatch_us": 0.0625, "call_us": 1.5, "agree_us": 0.75, "efficiency": [[10, 0.5], [1000, 1]],
    "packet_efficiency": [[1, 0.75]], "unread_efficiency": [[1, 0.25]],
    "local": {"latency_us": 0.25, "bandwidth_gbs": 100, "block_gbs": 25, "efficiency": [[1, 0.125]],
              "packet_efficiency": [[1, 0.5]], "reduce_efficiency": [[1, 0.375]],
              "packet_reduce_efficiency": [[1, 0.625]], "in_turn": true}})");
  EXPECT_EQ(read.links.size(), 5u);
  EXPECT_EQ(read.local_latency, 250'000);
  EXPECT_EQ(read.dispatch, 125'000);
  EXPECT_EQ(read.packet_dispatch, 62'500);
  EXPECT_DOUBLE_EQ(read.block_bandwidth * 4, read.local_bandwidth);
  EXPECT_EQ(read.call, 1'500'000);
  EXPECT_EQ(read.agree, 750'000);
  EXPECT_DOUBLE_EQ(read.efficiency.of(1), 0.5);
  EXPECT_DOUBLE_EQ(read.efficiency.of(100), 0.75);
  EXPECT_DOUBLE_EQ(read.efficiency.of(1e9), 1);
  EXPECT_DOUBLE_EQ(read.local_efficiency.of(5), 0.125);
  EXPECT_DOUBLE_EQ(read.packet_efficiency.value().of(5), 0.75);
  EXPECT_DOUBLE_EQ(read.unread_efficiency.value().of(5), 0.25);
  EXPECT_DOUBLE_EQ(read.local_packet_efficiency.value().of(5), 0.5);
  EXPECT_TRUE(read.in_turn);
  EXPECT_DOUBLE_EQ(read.reduce_efficiency.value().of(5), 0.375);
  EXPECT_DOUBLE_EQ(read.packet_reduce_efficiency.value().of(5), 0.625);
  Routes routes(read);
  EXPECT_EQ(routes.between(0, 1).latency, 3'000'000);  // as given, though the direct link is nearer
  EXPECT_EQ(routes.between(1, 0).latency, 3'000'000);
  EXPECT_EQ(routes.latencies_from(0)[1], 1'000'000);
}

TEST(Topology, ErrorsNameTheirPlace) {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"{", "topology: /: not JSON at byte"},
      {R"({"nodes": []})", "topology: /nodes: "},
      {R"({"nodes": ["a", "a"]})", "topology: /nodes/1: is there twice"},
      {R"({"nodes": ["a"], "ranks": ["b"]})", "topology: /ranks/0: there is no node \"b\""},
      {R"({"nodes": ["a", "b"], "ranks": [], "links": [{"from": "a", "to": "b", "latency_us": -1, "bandwidth_gbs": 1}]})",
       "topology: /links/0/latency_us: "},
      {R"({"nodes": ["a", "b"], "ranks": [], "links": [{"from": "a", "to": "b", "latency_us": 1, "bandwidth_gbs": 0}]})",
       "topology: /links/0/bandwidth_gbs: must be above 0"},
      {R"({"nodes": ["a", "b"], "ranks": [], "routes": [{"nodes": ["a", "b"]}]})",
       "topology: /routes/0/nodes/1: no link"},
      {R"({"nodes": ["a"], "ranks": [], "efficiency": [[8, 0.5], [8, 1]]})", "topology: /efficiency/1/0: "},
      {R"({"nodes": ["a"], "ranks": [], "efficiency": [[8, 1.5]]})", "topology: /efficiency/0/1: "},
      {R"({"nodes": ["a"], "ranks": [], "local": {"latency_us": 0, "efficiency": [8]}})",
       "topology: /local/efficiency/0: must be [bytes, part]"},
      {R"({"nodes": ["a"], "ranks": [], "local": {"latency_us": 0, "block_gbs": 0}})",
       "topology: /local/block_gbs: must be above 0"},
      {R"({"nodes": ["a"], "ranks": [], "local": {"latency_us": 0, "block_gbs": 1}})",
       "topology: /local/block_gbs: needs a bandwidth_gbs"},
      {R"({"nodes": ["a"], "ranks": [], "dispatch_us": "x"})", "topology: /dispatch_us: "},
      {R"({"nodes": ["a"], "ranks": [], "packet_dispatch_us": -1})", "topology: /packet_dispatch_us: "},
      {R"({"nodes": ["a"], "ranks": [], "call_us": -1})", "topology: /call_us: "},
      {R"({"nodes": ["a"], "ranks": [], "agree_us": []})", "topology: /agree_us: "},
      {R"({"nodes": ["a"], "ranks": [], "agre_us": 1})", "topology: /agre_us: unknown key"},
      {R"({"nodes": ["a"], "ranks": [], "local": {"latency_us": 0, "bandwidth": 1}})",
       "topology: /local/bandwidth: unknown key"},
      {R"({"nodes": ["a", "b"], "ranks": [], "links": [{"from": "a", "to": "b", "latency_us": 1, "bandwidth_gbs": 1,
       "efficiency": []}]})",
       "topology: /links/0/efficiency: unknown key"},
      {R"({"nodes": ["a", "b"], "ranks": [], "routes": [{"nodes": ["a", "b"], "both": true}]})",
       "topology: /routes/0/both: unknown key"},
      {R"({"nodes": ["a"], "ranks": [], "local": 1})", "topology: /local: must be an object"}};
  for (const auto& [text, says] : wrong) {
    try {
      read_topology(text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tutti::plan
