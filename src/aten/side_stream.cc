#include "aten/side_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/registry.h"

namespace tutti::face {
namespace {

// One a process; never destroyed, since groups may be at exit.
struct Uses {
  std::mutex mutex;  // guards the counts; a leaf
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, int> counts;
};
Uses& uses() {
  static Uses* const instance = new Uses;
  return *instance;
}

int& uses_of(const c10::Stream& stream) { return uses().counts[{stream.device_index(), stream.id()}]; }

c10::Stream least_used(c10::Device device) {
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  std::vector<c10::Stream> dealt;
  while (dealt.size() < 2 * SideStream::kOfPool) {  // once more: others may be dealt some meanwhile
    // Not under the lock: the first use of the pool makes streams.
    dealt.push_back(cuda.getStreamFromGlobalPool(device, /*isHighPriority=*/true));
    const std::lock_guard<std::mutex> lock(uses().mutex);
    if (int& used = uses_of(dealt.back()); used == 0) {
      ++used;
      return dealt.back();
    }
  }
  const std::lock_guard<std::mutex> lock(uses().mutex);
  const auto least = std::ranges::min_element(dealt, {}, [](const c10::Stream& one) { return uses_of(one); });
  ++uses_of(*least);
  return *least;
}

}  // namespace

SideStream::SideStream(c10::Device device) : stream_(least_used(device)) {}

SideStream::~SideStream() {
  if (forked_child()) return;  // where a thread of the parent's may have had the lock
  const std::lock_guard<std::mutex> lock(uses().mutex);
  --uses_of(stream_);
}

}  // namespace tutti::face
