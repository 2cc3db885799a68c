// The ranks of one communicator on GPUs of one host: their scratch memory, mapped by all, and what kernels need to
// know.
//
// Made collectively: memory is allocated, exchanged and then tried. A pair of ranks trusts each other's memory only
// after a probe has sent data both ways and checked it; if any pair fails, all ranks move to pinned host memory, and
// the reason is kept.
//
// Ownership: owns all mappings. It must outlive every kernel that uses world(): graphs that hold such kernels keep it
// alive. Thread rule: one thread makes it; const afterwards, except the control words and what ports() makes.
// Lock: ports_mutex_ is held while ports_ is made; a leaf.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "channel/cuda/device_world.h"
#include "channel/cuda/gpu_agreement.h"
#include "channel/cuda/gpu_ports.h"
#include "channel/cuda/probe_verdict.h"
#include "channel/cuda/registered_memory.h"
#include "channel/cuda/symmetric_memory.h"
#include "tutti/cuda/communicator.h"

namespace tutti::cuda {

struct GpuGroupRequest {
  int device = 0;
  std::string transport;                // "", "peer" or "host"
  std::string secret;                   // empty: rank 0 makes one up
  std::chrono::milliseconds timeout{};  // of what the ranks make together
  const void* probe_kernel = nullptr;   // takes (DeviceWorld, ProbeArgs)
  std::uint64_t first_sequence = 0;
  int max_blocks = 0;          // of a kernel, as this rank wants it; 0: no wish
  bool messages_only = false;  // no collectives
  AgreedSettings settings;     // compared
};

class GpuGroup {
 public:
  GpuGroup(BootstrapPtr bootstrap, const GpuGroupRequest& request);
  ~GpuGroup();
  GpuGroup(const GpuGroup&) = delete;
  GpuGroup& operator=(const GpuGroup&) = delete;

  const DeviceWorld& world() const noexcept { return world_; }
  device::HostControl& control() const noexcept { return *host_control_; }
  int device() const noexcept { return request_.device; }
  // All pairs store lines of 128 bytes whole: the probe has found none torn, and all links have native atomics.
  bool ll128() const noexcept { return ll128_; }
  const std::string& transport() const noexcept { return transport_; }
  // CudaCommunicator::gpus().
  const std::string& gpus() const noexcept { return gpus_; }
  // Of optional settings: compare_settings().
  const std::string& differences() const noexcept { return agreement_.differences; }
  // Most blocks of a kernel, the same on all ranks: the least that a rank wants; and the blocks of ranks that share a
  // GPU wait for each other, so all of them must find room on it at once.
  int most_blocks() const noexcept { return most_blocks_; }
  // The least that a rank wants alone; and the fewest multiprocessors of a rank's GPU.
  int wanted_blocks() const noexcept { return wanted_blocks_; }
  int processors() const noexcept { return scratch_->processors(); }
  // Most ranks on one GPU.
  int sharers() const noexcept { return scratch_->sharers(); }
  // Each rank has a GPU of its own, and peer memory lies on it: copy engines move bytes from GPU to GPU.
  bool between_gpus() const noexcept { return on_device_ && sharers() == 1; }
  // Zeroed memory of `bytes` on every rank, of the scratch's kind. Collective; `name` is new in the group. `problem` is
  // this rank's reason not to take part, which becomes the error of all.
  std::shared_ptr<SymmetricMemory> allocate(const std::string& name, std::size_t bytes,
                                            const std::string& problem = {}) const;
  // Callers' memory, as register_ranges(). Collective; `name` and `problem` as above. Throws Error(kUnsupported) where
  // the ranks have no peer memory.
  std::vector<std::shared_ptr<RegisteredMemory>> share(const std::string& name, const std::vector<CudaRange>& ranges,
                                                       const std::string& problem) const;
  // What each rank has given. `topic` is new in the group.
  std::vector<std::string> all_gather(const std::string& topic, const std::string& blob) const {
    return bootstrap_->all_gather(topic, blob, request_.timeout);
  }
  // Made at the first call, which must come before kernels that wait.
  GpuPorts& ports();
  // What the ports' proxy has met; empty without one. Asked before each call: takes no lock.
  std::optional<Error> port_failure() const;
  // The same in host memory that all ranks map.
  std::shared_ptr<SymmetricMemory> allocate_on_host(const std::string& name, std::size_t bytes) const;
  // Copies what this rank's GPU keeps between calls, beside whatever runs there. False if it cannot be read.
  bool read_state(RankState& state) const noexcept;

 private:
  std::uint64_t run_probe(std::uint64_t round, bool lines) const;
  ProbeResult native_links() const;
  bool try_peer_memory();
  void connect(bool on_device);
  void make_stream();
  void agree();
  void describe_gpus();
  ScratchLayout layout() const;
  SymmetricRequest symmetric_request(const std::string& what, std::size_t bytes) const;
  void make_world();
  void release() noexcept;

  const BootstrapPtr bootstrap_;
  GpuGroupRequest request_;
  std::unique_ptr<SymmetricMemory> scratch_;
  std::shared_ptr<RankState> state_;                   // on the GPU
  std::shared_ptr<device::HostControl> host_control_;  // pinned
  DeviceWorld world_;
  bool ll128_ = false;
  bool on_device_ = true;
  int wanted_blocks_ = kMostPlanBlocks;  // least of all ranks' wishes
  int most_blocks_ = kMaxBlocks;
  cudaStream_t stream_ = nullptr;  // make_stream()
  std::string transport_;
  GpuAgreement agreement_;
  std::string gpus_;
  std::mutex ports_mutex_;
  std::unique_ptr<GpuPorts> ports_;
  std::atomic<GpuPorts*> made_ports_{nullptr};  // ports_, once made
};

}  // namespace tutti::cuda
