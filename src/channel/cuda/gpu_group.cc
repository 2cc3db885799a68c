#include "channel/cuda/gpu_group.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <new>

#include "base/process.h"
#include "base/secret.h"
#include "channel/cuda/probe_args.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/links.h"
#include "device/cuda/own_memory.h"
#include "device/cuda/relaxed_capture.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

// Long enough for ranks that time-slice one GPU, short enough not to be taken for a hang.
constexpr std::uint64_t kProbeTimeoutNs = 5'000'000'000;

std::string model_of(int device) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties.name;
}

}  // namespace

GpuGroup::GpuGroup(BootstrapPtr bootstrap, const GpuGroupRequest& request)
    : bootstrap_(std::move(bootstrap)), request_(request) {
  const DeviceGuard guard(request_.device);
  try {
    agree();
    check_cuda(cudaFree(nullptr), "cudaFree");
    state_ = std::reinterpret_pointer_cast<RankState>(make_own_memory(request_.device, sizeof(RankState)));
    RankState fresh;
    for (BlockState& block : fresh.blocks) block.sequence = block.pieces = request_.first_sequence;
    make_stream();
    check_cuda(cudaMemcpyAsync(state_.get(), &fresh, sizeof(fresh), cudaMemcpyHostToDevice, stream_),
               "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    const std::shared_ptr<std::byte> pinned = make_own_pinned(sizeof(device::HostControl));
    host_control_ = {pinned, new (pinned.get()) device::HostControl};
    if (request_.secret.empty()) {
      request_.secret = all_gather("secret", bootstrap_->rank() == 0 ? random_secret() : "")[0];
    }
    if (request_.transport == "host") {
      connect(false);
      transport_ = "pinned host memory: TUTTI_CUDA_TRANSPORT=host";
    } else if (!try_peer_memory()) {
      if (request_.transport == "peer")
        throw_error(ErrorKind::kUnsupported, "TUTTI_CUDA_TRANSPORT=peer: " + transport_);
      connect(false);
      transport_ = "pinned host memory: " + transport_;
    }
    describe_gpus();
  } catch (...) {
    release();
    throw;
  }
}

GpuGroup::~GpuGroup() { release(); }

void GpuGroup::release() noexcept {
  give_back_on(request_.device, [this] {
    ports_.reset();
    scratch_.reset();
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  });
  ports_.reset();  // where CUDA is gone: its thread reads the words that follow
  scratch_.reset();
  stream_ = nullptr;
  host_control_.reset();
  state_.reset();
}

// For what the group itself does, and waits for, on its GPU: a stream that shares nothing with those of calls. A
// pending call may wait for a peer that waits for this very group: so never the legacy stream, never the whole device,
// and the highest priority, whose streams have hardware queues of their own.
void GpuGroup::make_stream() { stream_ = make_urgent_stream(); }

SymmetricRequest GpuGroup::symmetric_request(const std::string& what, std::size_t bytes) const {
  SymmetricRequest request;
  request.name = what;
  request.secret = request_.secret;
  request.device = request_.device;
  request.on_device = on_device_;
  request.stream = stream_;
  request.bytes = bytes;
  request.timeout = request_.timeout;
  return request;
}

ScratchLayout GpuGroup::layout() const {
  return ScratchLayout(bootstrap_->size(), request_.messages_only ? ScratchUse::kMessages : ScratchUse::kAll);
}

// Exchanges scratch and fills world_.
void GpuGroup::connect(bool on_device) {
  scratch_.reset();
  on_device_ = on_device;
  scratch_ = std::make_unique<SymmetricMemory>(
      *bootstrap_, symmetric_request(on_device ? "peer scratch" : "host scratch", layout().total_bytes()));
  most_blocks_ = std::clamp(scratch_->processors() / scratch_->sharers(), 1, std::min(wanted_blocks_, kMaxBlocks));
  make_world();
}

std::shared_ptr<SymmetricMemory> GpuGroup::allocate(const std::string& name, std::size_t bytes,
                                                    const std::string& problem) const {
  SymmetricRequest request = symmetric_request(name, bytes);
  request.problem = problem;
  return std::make_shared<SymmetricMemory>(*bootstrap_, request);
}

std::vector<std::shared_ptr<RegisteredMemory>> GpuGroup::share(const std::string& name,
                                                               const std::vector<CudaRange>& ranges,
                                                               const std::string& problem) const {
  if (!on_device_) {
    throw_error(ErrorKind::kUnsupported, "memory is not registered: the ranks reach each other by " + transport_);
  }
  RegisterRequest request;
  request.name = name;
  request.secret = request_.secret;
  request.process = process_token();
  request.device = request_.device;
  request.timeout = request_.timeout;
  request.ranges = ranges;
  request.problem = problem;
  return register_ranges(*bootstrap_, request, cuda_memory_sharing());
}

GpuPorts& GpuGroup::ports() {
  const std::lock_guard lock(ports_mutex_);
  if (ports_ == nullptr) {
    const DeviceGuard guard(request_.device);
    const RelaxedCapture relaxed;
    ports_ = std::make_unique<GpuPorts>(world_.control, request_.device, stream_);
    // release: publishes them to port_failure().
    made_ports_.store(ports_.get(), std::memory_order_release);
  }
  return *ports_;
}

std::optional<Error> GpuGroup::port_failure() const {
  // acquire: pairs with the release in ports().
  GpuPorts* const made = made_ports_.load(std::memory_order_acquire);
  return made == nullptr ? std::nullopt : made->proxy().failure();
}

std::shared_ptr<SymmetricMemory> GpuGroup::allocate_on_host(const std::string& name, std::size_t bytes) const {
  SymmetricRequest request = symmetric_request(name, bytes);
  request.on_device = false;
  return std::make_shared<SymmetricMemory>(*bootstrap_, request);
}

void GpuGroup::agree() {
  const GpuCard mine{request_.settings, request_.max_blocks, model_of(request_.device)};
  agreement_ = agree_on_gpus(*bootstrap_, mine, request_.timeout);
  if (agreement_.max_blocks > 0) wanted_blocks_ = std::min(wanted_blocks_, agreement_.max_blocks);
}

// Of what all ranks have told, or know equally.
void GpuGroup::describe_gpus() {
  std::vector<std::string> kinds = agreement_.models;
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  for (const std::string& kind : kinds) gpus_ += (gpus_.empty() ? "" : " and ") + kind;
  if (sharers() > 1) gpus_ += ", " + std::to_string(sharers()) + " ranks on one";
  gpus_ += on_device_ ? ", peer memory" : ", pinned host memory";
  if (!ll128_) gpus_ += ", without lines of 128 bytes";
}

bool GpuGroup::read_state(RankState& state) const noexcept {
  // Another thread may be capturing in the global mode, which forbids this one to copy.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) return false;
  cudaError_t error = cudaMemcpyAsync(&state, state_.get(), sizeof(state), cudaMemcpyDeviceToHost, stream_);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
  static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error == cudaSuccess;
}

void GpuGroup::make_world() {
  world_ = {};
  world_.rank = bootstrap_->rank();
  world_.size = bootstrap_->size();
  world_.layout = layout();
  world_.state = state_.get();
  world_.control.rank = bootstrap_->rank();
  world_.control.size = bootstrap_->size();
  world_.control.failed = &state_->failed;
  world_.control.host = host_control_.get();
  for (int r = 0; r < bootstrap_->size(); ++r) {
    world_.scratch[r] = scratch_->data(r);
    world_.control.peer_poison[r] = reinterpret_cast<std::uint64_t*>(world_.scratch[r] + world_.layout.poison());
  }
  world_.control.poison = world_.control.peer_poison[bootstrap_->rank()];
}

// Bits of the peers whose data came whole, and above them of those whose lines did.
std::uint64_t GpuGroup::run_probe(std::uint64_t round, bool lines) const {
  ProbeArgs args{round, kProbeTimeoutNs, lines ? 1 : 0};
  DeviceWorld world = world_;
  void* parameters[] = {&world, &args};
  std::uint64_t result = 0;
  cudaError_t error = cudaLaunchKernel(request_.probe_kernel, dim3(1), dim3(kProbeThreads), parameters, 0, stream_);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(&result, &state_->probe, sizeof(result), cudaMemcpyDeviceToHost, stream_);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
  check_cuda(error, "the probe of the GPUs' memory");
  return result;
}

// A bit for each peer to whose GPU the link has native atomics, as the driver says.
ProbeResult GpuGroup::native_links() const {
  ProbeResult bits = 0;
  for (int p = 0; p < bootstrap_->size(); ++p) {
    if (has_native_atomics(request_.device, scratch_->uuid(p))) bits |= native_atomics_with(p);
  }
  return bits;
}

// True if all pairs can use peer memory; else transport_ says why not, the same on every rank.
bool GpuGroup::try_peer_memory() {
  try {
    connect(true);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kUnsupported) throw;
    transport_ = e.what();
    return false;
  }
  const ProbeResult result = bootstrap_->size() > 1 ? run_probe(1, true) | native_links() : 0;
  std::vector<ProbeResult> results;
  for (const std::string& text : all_gather("probe", std::to_string(result))) results.push_back(std::stoull(text));
  const ProbeVerdict verdict = judge_probes(results);
  ll128_ = verdict.lines;
  transport_ = verdict.whole ? std::string("peer memory") : "peer memory does not pass its probe: " + verdict.problem;
  if (verdict.whole && !verdict.lines) transport_ += ", without lines of 128 bytes: " + verdict.problem;
  return verdict.whole;
}

}  // namespace tutti::cuda
