// Topologies from JSON.
#include "plan/simulator/topology.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "plan/json_document.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

using Array = Json::Array;

constexpr std::size_t kMaxNodes = 1 << 17;
constexpr std::size_t kMaxLinks = 1 << 20;
constexpr std::size_t kMaxValues = 1 << 23;   // of that many links
constexpr double kBytesPerPicosecond = 1e-3;  // of one GB/s
constexpr double kMaxLatencyUs = 1e9;
constexpr double kLeastGbs = 1e-200;  // with less, a share of it may be no number

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw_error(ErrorKind::kInvalidArgument, "topology: " + path + ": " + what);
}

constexpr std::size_t kMaxPoints = 1024;

class Reader {
 public:
  explicit Reader(const Json& root) : root_(root) {}

  Topology read() {
    allow_only(root_, "",
               {"name", "nodes", "ranks", "links", "routes", "local", "efficiency", "dispatch_us", "packet_dispatch_us",
                "call_us", "agree_us", "multicast", "groups", "packet_efficiency", "unread_efficiency"});
    Topology out;
    const Json* const name = root_.find("name");
    out.name = name != nullptr ? text(*name, "/name") : "unnamed";
    read_nodes(out);
    read_links(out);
    read_local(out);
    out.efficiency = efficiency(root_, "", "efficiency").value_or(Efficiency{});
    out.packet_efficiency = efficiency(root_, "", "packet_efficiency");
    out.unread_efficiency = efficiency(root_, "", "unread_efficiency");
    if (root_.find("dispatch_us") != nullptr) out.dispatch = latency(root_, "", "dispatch_us");
    if (root_.find("packet_dispatch_us") != nullptr) out.packet_dispatch = latency(root_, "", "packet_dispatch_us");
    if (root_.find("call_us") != nullptr) out.call = latency(root_, "", "call_us");
    if (root_.find("agree_us") != nullptr) out.agree = latency(root_, "", "agree_us");
    read_routes(out);
    const Array& groups = list("groups", kMaxNodes);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      out.groups.push_back(node_list(groups[i], "/groups/" + std::to_string(i)));
    }
    if (const Json* const multicast = root_.find("multicast")) out.multicast = truth(*multicast, "/multicast");
    return out;
  }

 private:
  void read_nodes(Topology& out) {
    const Array& nodes = list("nodes", kMaxNodes);
    if (nodes.empty()) fail("/nodes", "must name at least one node");
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const std::string path = "/nodes/" + std::to_string(i);
      out.nodes.push_back(text(nodes[i], path));
      if (!ids_.emplace(out.nodes.back(), static_cast<std::int32_t>(i)).second) fail(path, "is there twice");
    }
    out.ranks = node_list(member(root_, "ranks", ""), "/ranks");
  }

  void read_links(Topology& out) {
    const Array& links = list("links", kMaxLinks);
    for (std::size_t i = 0; i < links.size(); ++i) {
      const std::string path = "/links/" + std::to_string(i);
      const Json& entry = links[i];
      allow_only(entry, path, {"from", "to", "latency_us", "bandwidth_gbs", "both"});
      Link link;
      link.from = node(member(entry, "from", path), path + "/from");
      link.to = node(member(entry, "to", path), path + "/to");
      if (link.from == link.to) fail(path, "joins a node with itself");
      link.latency = latency(entry, path);
      const double gbs = number(member(entry, "bandwidth_gbs", path), path + "/bandwidth_gbs");
      if (gbs < kLeastGbs) fail(path + "/bandwidth_gbs", "must be above 0");
      link.bandwidth = gbs * kBytesPerPicosecond;
      const Json* const given = entry.find("both");
      const bool both = given == nullptr || truth(*given, path + "/both");
      add(out, link);
      if (!both) continue;
      std::swap(link.from, link.to);
      add(out, std::move(link));
    }
  }

  void add(Topology& out, Link link) {
    link.name = out.nodes[link.from] + "->" + out.nodes[link.to];
    between_.emplace(pair_key(link.from, link.to), static_cast<std::int32_t>(out.links.size()));
    out.links.push_back(std::move(link));
  }

  void read_local(Topology& out) const {
    const Json* const local = root_.find("local");
    if (local == nullptr) return;
    allow_only(*local, "/local",
               {"latency_us", "bandwidth_gbs", "efficiency", "reduce_efficiency", "packet_efficiency",
                "packet_reduce_efficiency", "block_gbs", "in_turn"});
    out.local_latency = latency(*local, "/local");
    out.local_efficiency = efficiency(*local, "/local", "efficiency").value_or(Efficiency{});
    out.reduce_efficiency = efficiency(*local, "/local", "reduce_efficiency");
    out.local_packet_efficiency = efficiency(*local, "/local", "packet_efficiency");
    out.packet_reduce_efficiency = efficiency(*local, "/local", "packet_reduce_efficiency");
    out.local_bandwidth = limit(*local, "bandwidth_gbs");
    if (const Json* const value = local->find("in_turn")) out.in_turn = truth(*value, "/local/in_turn");
    out.block_bandwidth = limit(*local, "block_gbs");
    if (out.block_bandwidth > 0 && out.local_bandwidth == 0) fail("/local/block_gbs", "needs a bandwidth_gbs of all");
  }

  // Of `local`, bytes a picosecond; 0: there is none.
  static double limit(const Json& local, const std::string& name) {
    const Json* const value = local.find(name.c_str());
    if (value == nullptr) return 0;
    const std::string path = "/local/" + name;
    const double gbs = number(*value, path);
    if (gbs < kLeastGbs) fail(path, "must be above 0; leave it out for no limit");
    return gbs * kBytesPerPicosecond;
  }

  void read_routes(Topology& out) const {
    const Array& routes = list("routes", kMaxLinks);
    for (std::size_t i = 0; i < routes.size(); ++i) {
      const std::string path = "/routes/" + std::to_string(i);
      allow_only(routes[i], path, {"nodes"});
      const std::vector<std::int32_t> along = node_list(member(routes[i], "nodes", path), path + "/nodes");
      if (along.size() < 2) fail(path + "/nodes", "must name at least two nodes");
      GivenRoute route{along.front(), along.back(), {}};
      for (std::size_t k = 0; k + 1 < along.size(); ++k) {
        const auto found = between_.find(pair_key(along[k], along[k + 1]));
        if (found == between_.end()) {
          fail(path + "/nodes/" + std::to_string(k + 1), "no link leads here from \"" + out.nodes[along[k]] + "\"");
        }
        route.links.push_back(found->second);
      }
      out.routes.push_back(std::move(route));
    }
  }

  const Array& list(const char* name, std::size_t most) const {
    static const Array kNone;
    const Json* const value = root_.find(name);
    if (value == nullptr) return kNone;
    const Array& elements = array(*value, std::string("/") + name);
    if (elements.size() > most) fail(std::string("/") + name, "is longer than " + std::to_string(most));
    return elements;
  }

  // A misspelt key would leave its member out, and the figures would be of another machine.
  static void allow_only(const Json& entry, const std::string& path, std::initializer_list<std::string_view> known) {
    const auto* const members = entry.as<Json::Object>();
    if (members == nullptr) fail(path.empty() ? "/" : path, "must be an object");
    for (const auto& [key, value] : *members) {
      if (std::find(known.begin(), known.end(), key) == known.end()) fail(path + "/" + escape(key), "unknown key");
    }
  }

  static const Json& member(const Json& entry, const char* name, const std::string& path) {
    if (entry.as<Json::Object>() == nullptr) fail(path, "must be an object");
    const Json* const found = entry.find(name);
    if (found == nullptr) fail(path + "/" + name, "is missing");
    return *found;
  }

  static const Array& array(const Json& value, const std::string& path) {
    const auto* const elements = value.as<Array>();
    if (elements == nullptr) fail(path, "must be a list");
    return *elements;
  }

  static bool truth(const Json& value, const std::string& path) {
    const auto* const given = value.as<bool>();
    if (given == nullptr) fail(path, "must be true or false");
    return *given;
  }

  static const std::string& text(const Json& value, const std::string& path) {
    const auto* const given = value.as<std::string>();
    if (given == nullptr) fail(path, "must be a text");
    return *given;
  }

  static double number(const Json& value, const std::string& path) {
    double out = 0;
    if (const auto* const real = value.as<double>()) {
      out = *real;
    } else if (const auto* const natural = value.as<std::uint64_t>()) {
      out = static_cast<double>(*natural);
    } else if (const auto* const negative = value.as<std::int64_t>()) {
      out = static_cast<double>(*negative);
    } else {
      fail(path, "must be a number");
    }
    if (!std::isfinite(out) || out < 0) fail(path, "must be finite and not negative");
    return out;
  }

  static Picoseconds latency(const Json& entry, const std::string& path, const char* name = "latency_us") {
    const std::string at = path + "/" + name;
    const double us = number(member(entry, name, path), at);
    if (us > kMaxLatencyUs) fail(at, "is more than a thousand seconds");
    return std::llround(us * kPicosecondsPerUs);
  }

  static std::optional<Efficiency> efficiency(const Json& entry, const std::string& path, const char* name) {
    const Json* const given = entry.find(name);
    if (given == nullptr) return std::nullopt;
    Efficiency out;
    const std::string at = path + "/" + name;
    const Array& points = array(*given, at);
    if (points.size() > kMaxPoints) fail(at, "must be a list of at most 1024 points");
    for (std::size_t i = 0; i < points.size(); ++i) {
      const std::string here = at + "/" + std::to_string(i);
      const auto* const point = points[i].as<Array>();
      if (point == nullptr || point->size() != 2) fail(here, "must be [bytes, part]");
      const double bytes = number(point->at(0), here + "/0");
      const double part = number(point->at(1), here + "/1");
      if (bytes < 1 || (i > 0 && bytes <= out.points.back().first)) fail(here + "/0", "must be 1 or more, and rise");
      if (part <= 0 || part > 1) fail(here + "/1", "must be above 0 and at most 1");
      out.points.emplace_back(bytes, part);
    }
    return out;
  }

  std::int32_t node(const Json& value, const std::string& path) const {
    const auto found = ids_.find(text(value, path));
    if (found == ids_.end()) fail(path, "there is no node \"" + text(value, path) + "\"");
    return found->second;
  }

  std::vector<std::int32_t> node_list(const Json& value, const std::string& path) const {
    const Array& nodes = array(value, path);
    std::vector<std::int32_t> out;
    for (std::size_t i = 0; i < nodes.size(); ++i) out.push_back(node(nodes[i], path + "/" + std::to_string(i)));
    return out;
  }

  const Json& root_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::unordered_map<std::uint64_t, std::int32_t> between_;  // the first link from a node to another
};

}  // namespace

void throw_too_long() {
  throw_error(ErrorKind::kUnsupported,
              "simulation: a time beyond 26 days; take a smaller size, more bandwidth or less latency");
}

double Efficiency::of(double bytes) const {
  if (points.empty()) return 1;
  const auto after =
      std::find_if(points.begin(), points.end(), [bytes](const auto& point) { return point.first > bytes; });
  if (after == points.begin()) return points.front().second;
  if (after == points.end()) return points.back().second;
  const auto& [low, low_part] = *std::prev(after);
  const auto& [high, high_part] = *after;
  return low_part + (high_part - low_part) * std::log(bytes / low) / std::log(high / low);
}

Topology read_topology(std::string_view text) {
  const Json root = naming("topology: ", [&] { return read_document(text, {}, kMaxValues); });
  return Reader(root).read();
}

}  // namespace tutti::plan
