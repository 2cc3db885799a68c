// What a device need not have.
#include "tutti/stream_communicator.h"

#include "tutti/error.h"

namespace tutti {

void StreamCommunicator::set_algorithms(AlgorithmSet set) {
  if (set.empty()) return;
  throw_error(ErrorKind::kUnsupported, "group '" + name() + "': this kind of device runs no algorithms of a program's");
}

void StreamCommunicator::prepare(const UserAlgorithmPtr& algorithm) { set_algorithms({{algorithm}, nullptr}); }

std::vector<std::shared_ptr<DeviceRegion>> StreamCommunicator::register_memory(const std::vector<DeviceRange>&) {
  throw_error(ErrorKind::kUnsupported, "memory is not registered: ranks on this kind of device map no others' memory");
}

void StreamCommunicator::unregister_memory(std::vector<std::shared_ptr<DeviceRegion>> regions) {
  if (regions.empty()) return;
  throw_error(ErrorKind::kInvalidArgument,
              "rank " + std::to_string(rank()) + " unregisters memory that is not registered");
}

bool StreamCommunicator::is_registered(const void*, std::size_t) const { return false; }

}  // namespace tutti
