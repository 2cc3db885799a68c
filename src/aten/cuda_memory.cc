// CUDA tensors that all ranks of a group have registered: their storages are held, and calls on them run without
// copies.
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "aten/cuda_side.h"
#include "aten/errors.h"

namespace tutti::face {
namespace {

// The storages of the tensors, each once, in order of appearance; all on one device.
std::vector<c10::Storage> storages_of(const std::vector<at::Tensor>& tensors, const char* call) {
  if (tensors.empty()) refuse(std::string(call) + " takes at least one tensor");
  std::vector<c10::Storage> storages;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.is_cuda() || tensor.layout() != at::kStrided) {
      refuse(std::string(call) +
             " takes dense CUDA tensors; CPU tensors that need no copy come from tutti.empty or "
             "tutti.use_shared_allocator");
    }
    if (tensor.device() != tensors.front().device()) {
      refuse(std::string(call) + ": all tensors must be on one device, got " + tensor.device().str() + " and " +
             tensors.front().device().str());
    }
    const bool known = std::any_of(storages.begin(), storages.end(),
                                   [&](const c10::Storage& storage) { return storage.is_alias_of(tensor.storage()); });
    if (!known) storages.push_back(tensor.storage());
  }
  return storages;
}

}  // namespace

std::string CudaSide::register_storages(std::vector<c10::Storage> storages) {
  const CudaLane& lane = group(storages.front().device());
  std::vector<DeviceRange> ranges;
  std::list<Registered> held;  // made first: once peers map a storage, nothing may fail that holds it
  for (c10::Storage& storage : storages) {
    ranges.push_back({storage.mutable_data(), storage.nbytes()});
    held.push_back({std::move(storage), {}});
  }
  std::vector<std::shared_ptr<DeviceRegion>> regions;
  try {
    regions = lane.communicator->register_memory(ranges);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    return error.what();
  }
  auto region = regions.cbegin();
  for (Registered& one : held) one.region = *region++;
  const std::lock_guard<std::mutex> lock(mutex_);
  registered_.splice(registered_.end(), held);
  return {};
}

const CudaSide::Registered* CudaSide::find_registered(const c10::Storage& storage) const {
  const auto found = std::find_if(registered_.begin(), registered_.end(),
                                  [&](const Registered& entry) { return entry.storage.is_alias_of(storage); });
  return found != registered_.end() ? &*found : nullptr;
}

std::string CudaSide::register_tensors(const std::vector<at::Tensor>& tensors) {
  return translated([&] { return register_storages(storages_of(tensors, "register_tensors")); });
}

void CudaSide::unregister_tensors(const std::vector<at::Tensor>& tensors) {
  const std::vector<c10::Storage> storages = storages_of(tensors, "unregister_tensors");
  translated([&] { unregister_storages(storages); });
}

void CudaSide::unregister_storages(const std::vector<c10::Storage>& storages) {
  const CudaLane& lane = group(storages.front().device());
  std::vector<std::shared_ptr<DeviceRegion>> regions;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const c10::Storage& storage : storages) {
      const Registered* found = find_registered(storage);
      regions.push_back(found != nullptr ? found->region.lock() : nullptr);  // null is refused by all ranks together
    }
  }
  lane.communicator->unregister_memory(std::move(regions));
  // Only now may they be freed: no rank maps them any more.
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(registered_, [&](const Registered& entry) {
    return std::any_of(storages.begin(), storages.end(),
                       [&](const c10::Storage& storage) { return entry.storage.is_alias_of(storage); });
  });
}

bool CudaSide::is_registered(const at::Tensor& tensor) const {
  if (!tensor.is_cuda() || tensor.layout() != at::kStrided) return false;
  const StreamCommunicatorPtr made = devices_->made_group();
  return made != nullptr && made->is_registered(tensor.storage().data(), tensor.storage().nbytes());
}

std::vector<at::Tensor> CudaSide::peer_tensors(const at::Tensor& tensor) const {
  static_cast<void>(storages_of({tensor}, "peer_tensors"));  // refuses others
  std::shared_ptr<DeviceRegion> region;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Registered* const found = find_registered(tensor.storage());
    if (found != nullptr) region = found->region.lock();
  }
  if (region == nullptr) {
    refuse("peer_tensors: the tensor is not registered: call register_tensors on every rank first");
  }
  const c10::InferenceMode off(false);
  const auto first = static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
  std::vector<at::Tensor> tensors;
  for (int rank = 0; rank < devices_->size(); ++rank) {
    tensors.push_back(at::for_blob(region->data(rank) + first, tensor.sizes())
                          .strides(tensor.strides())
                          .options(tensor.options())
                          .target_device(tensor.device())
                          .make_tensor());
  }
  return tensors;
}

std::uint64_t CudaSide::direct_calls() const {
  const StreamCommunicatorPtr made = devices_->made_group();
  return made != nullptr ? made->direct_calls() : 0;
}

}  // namespace tutti::face
