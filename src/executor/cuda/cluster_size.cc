#include "executor/cuda/cluster_size.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace tutti::executor {
namespace {

// Of an H200 (docs/performance.md): a multiprocessor copies 45 GB/s, to a peer or to its own memory, and loads two to
// three times as much. What it costs to begin together and to join is estimated from what clusters cost small plans.
constexpr std::uint64_t kBytesPerNs = 45;
constexpr std::uint64_t kBeginNs = 800;
constexpr std::uint64_t kJoinNs = 350, kJoinAloneNs = 50;
// Blocks of the GPU for a plan that asks for no more itself: plans of several communicators run beside each other.
constexpr int kMostTogether = 32;
constexpr std::uint64_t kFullBytes =
    DevicePlan::kMostThreads * std::uint64_t{16};  // of an operation: an item for each lane of a block

struct Work {
  std::uint64_t bytes = 0;  // loaded ones are counted by what they cost beside stored ones
  std::uint64_t joins = 1;  // the last one
  std::uint64_t longest = 0;
};

void add(Work& work, const DeviceOp& op) {
  work.joins += op.joins != 0 ? 1 : 0;
  std::uint64_t loads = op.sources, stores = op.targets;
  switch (op.code) {
    case DeviceCode::kSignal:
    case DeviceCode::kWait:
      return;
    case DeviceCode::kCopy:
    case DeviceCode::kReduce:
    case DeviceCode::kAverage:
      break;
    case DeviceCode::kPack:
    case DeviceCode::kPad:
      stores *= 2;
      break;
    case DeviceCode::kForward:
    case DeviceCode::kCopyPackets:
      stores *= 2;
      [[fallthrough]];
    case DeviceCode::kUnpack:
    case DeviceCode::kAwait:
      loads *= 2;
      break;
    case DeviceCode::kFold:
      loads = 2 * loads - (op.plain != kNoPlain ? 1 : 0);
      stores = 2 * stores - 1;
      break;
  }
  work.bytes += stores * op.bytes + loads * op.bytes * 2 / 5;
  work.longest = std::max(work.longest, op.bytes);
}

std::uint64_t expected_ns(const Work& work, int cluster) {
  const auto size = static_cast<std::uint64_t>(cluster);
  return work.bytes / size / kBytesPerNs + (cluster == 1 ? work.joins * kJoinAloneNs : kBeginNs + work.joins * kJoinNs);
}

}  // namespace

int cluster_of(const DeviceRecords& records, int most) {
  std::vector<Work> works;
  std::uint64_t longest = 0;
  for (const DeviceBlock& block : records.blocks) {
    Work work;
    for (const DeviceOp& op : std::span(records.ops).subspan(block.first, block.count)) add(work, op);
    longest = std::max(longest, work.longest);
    works.push_back(work);
  }
  const auto slowest = [&](int cluster) {
    std::uint64_t ns = 0;
    for (const Work& work : works) ns = std::max(ns, expected_ns(work, cluster));
    return ns;
  };
  const int blocks = static_cast<int>(works.size());
  most = std::min(most, kMostCluster);
  int best = 1;
  for (int size = 2; size <= most && size * blocks <= kMostTogether; size *= 2) {
    if (static_cast<std::uint64_t>(size) * kFullBytes > longest) break;
    if (slowest(size) < slowest(best)) best = size;
  }
  return best;
}

}  // namespace tutti::executor
