#include "base/peer_processes.h"

#include "base/process.h"
#include "base/registry.h"

namespace tutti {

PeerProcesses& PeerProcesses::instance() {
  const auto make = []() -> void* { return new PeerProcesses; };
  return *static_cast<PeerProcesses*>(ProcessRegistry::instance().member(RegistryMember::kPeerProcesses, make));
}

PeerProcesses::PeerProcesses() { raise_descriptor_limit(); }

std::shared_ptr<const UniqueFd> PeerProcesses::share(const ProcessName& name, UniqueFd fresh) {
  const std::lock_guard lock(mutex_);
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = known_.find(name); found != known_.end()) {
    // As long as it has not ended nobody else can have its number.
    if (auto shared = found->second.lock(); shared != nullptr && !pidfd_ended(shared->get())) return shared;
  }
  const auto shared = std::make_shared<const UniqueFd>(std::move(fresh));
  if (*shared && name.pid != 0) known_[name] = shared;
  return shared;
}

}  // namespace tutti
