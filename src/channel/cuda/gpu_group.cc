#include "channel/cuda/gpu_group.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/secret.h"
#include "bootstrap/exchange.h"
#include "channel/cuda/fd_exchange.h"
#include "channel/cuda/probe_args.h"
#include "device/cuda/cuda_check.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

// Long enough for ranks that time-slice one GPU, short enough not to be taken for a hang.
constexpr std::uint64_t kProbeTimeoutNs = 5'000'000'000;

// Names this process among others: ranks with equal tokens share one address space.
const std::string& process_token() {
  static const std::string token = random_secret();
  return token;
}

cudaDeviceProp properties_of(int device) {
  cudaDeviceProp prop{};
  check_cuda(cudaGetDeviceProperties(&prop, device), "cudaGetDeviceProperties");
  return prop;
}

void put(std::string& text, const std::string& field) { text += std::to_string(field.size()) + ":" + field; }
std::string take(std::string_view& text) {
  const std::size_t colon = text.find(':');
  const std::size_t length = colon == std::string_view::npos ? 0 : std::stoul(std::string(text.substr(0, colon)));
  if (colon == std::string_view::npos || text.size() - colon - 1 < length) {
    throw_error(ErrorKind::kInternal, "a rank's card of GPU memory cannot be read: use one version on all ranks");
  }
  std::string field(text.substr(colon + 1, length));
  text.remove_prefix(colon + 1 + length);
  return field;
}

}  // namespace

// What a rank tells the others before memory is exchanged.
struct GpuGroup::Card {
  std::string process;  // token
  std::string memory;   // address of its shared_ptr, for ranks of the same process
  std::string socket;
  std::string uuid;
  std::string processors;  // multiprocessors of its device
  std::string problem;     // why it has no memory of this kind; empty: it has

  std::string pack() const {
    std::string text;
    for (const std::string* field : {&process, &memory, &socket, &uuid, &processors, &problem}) put(text, *field);
    return text;
  }
  static Card unpack(std::string_view text) {
    Card card;
    for (std::string* field : {&card.process, &card.memory, &card.socket, &card.uuid, &card.processors, &card.problem})
      *field = take(text);
    return card;
  }
};

GpuGroup::GpuGroup(Store& store, const GpuGroupRequest& request) : request_(request) {
  const DeviceGuard guard(request_.device);
  try {
    check_cuda(cudaFree(nullptr), "cudaFree");
    void* state = nullptr;
    check_cuda(cudaMalloc(&state, sizeof(RankState)), "cudaMalloc");
    state_ = static_cast<RankState*>(state);
    RankState fresh;
    for (BlockState& block : fresh.blocks) block.sequence = block.pieces = request_.first_sequence;
    check_cuda(cudaMemcpy(state_, &fresh, sizeof(fresh), cudaMemcpyHostToDevice), "cudaMemcpy");
    void* pinned = nullptr;
    check_cuda(cudaHostAlloc(&pinned, sizeof(device::HostControl), cudaHostAllocPortable | cudaHostAllocMapped),
               "cudaHostAlloc");
    host_control_ = new (pinned) device::HostControl;
    if (request_.secret.empty()) {
      const std::string mine = request_.rank == 0 ? random_secret() : "";
      request_.secret =
          exchange(store, request_.id, "cuda-secret", request_.rank, request_.size, mine, request_.timeout)[0];
    }
    if (request_.transport == "host") {
      connect(store, "host");
      transport_ = "pinned host memory: TUTTI_CUDA_TRANSPORT=host";
    } else if (!try_peer_memory(store)) {
      if (request_.transport == "peer")
        throw_error(ErrorKind::kUnsupported, "TUTTI_CUDA_TRANSPORT=peer: " + transport_);
      connect(store, "host");
      transport_ = "pinned host memory: " + transport_;
    }
  } catch (...) {
    release();
    throw;
  }
}

GpuGroup::~GpuGroup() { release(); }

void GpuGroup::release() noexcept {
  memory_.clear();
  own_.reset();
  if (host_control_ != nullptr) static_cast<void>(cudaFreeHost(host_control_));
  if (state_ != nullptr) static_cast<void>(cudaFree(state_));
  host_control_ = nullptr;
  state_ = nullptr;
}

// Exchanges memory of the kind and fills world_. Throws what this rank meets; a peer's problem is an Error too.
void GpuGroup::connect(Store& store, const std::string& kind) {
  memory_.clear();
  own_.reset();
  const ScratchLayout layout(request_.size);
  Card mine;
  const FdServer server = make_fd_server();
  mine.process = process_token();
  mine.socket = server.name;
  const cudaDeviceProp prop = properties_of(request_.device);
  mine.uuid = std::string(prop.uuid.bytes, sizeof(prop.uuid.bytes));
  mine.processors = std::to_string(prop.multiProcessorCount);
  try {
    own_ = kind == "peer" ? make_device_memory(request_.device, layout.total_bytes())
                          : make_host_memory(layout.total_bytes());
    const auto address = reinterpret_cast<std::uintptr_t>(&own_);
    mine.memory = std::to_string(address);
  } catch (const Error& e) {
    mine.problem = e.what();  // said to all, so that nobody waits
  }
  std::vector<Card> cards;
  for (const std::string& text :
       exchange(store, request_.id, "cuda-card-" + kind, request_.rank, request_.size, mine.pack(), request_.timeout)) {
    cards.push_back(Card::unpack(text));
  }
  for (std::size_t r = 0; r < cards.size(); ++r) {
    if (!cards[r].problem.empty()) {
      throw_error(ErrorKind::kUnsupported, "rank " + std::to_string(r) + ": " + cards[r].problem);
    }
  }
  std::string problem;
  try {
    FdExchange fds{request_.id + "/" + kind, request_.secret, request_.rank, {}, request_.timeout};
    for (const Card& card : cards) fds.peer_sockets.push_back(card.process == mine.process ? "" : card.socket);
    const UniqueFd own_fd = own_->export_fd();
    const std::vector<UniqueFd> received = exchange_fds(server, fds, own_fd.get());
    for (std::size_t r = 0; r < cards.size(); ++r) {
      if (static_cast<int>(r) == request_.rank) {
        memory_.push_back(own_);
      } else if (cards[r].process == mine.process) {
        // The other rank keeps its pointer where it is until all have said below that they are ready.
        const auto address = static_cast<std::uintptr_t>(std::stoull(cards[r].memory));
        memory_.push_back(*reinterpret_cast<const std::shared_ptr<SharedMemory>*>(address));
        if (cards[r].uuid != mine.uuid) memory_.back()->allow(request_.device);
      } else {
        memory_.push_back(kind == "peer" ? open_device_memory(request_.device, received[r].get(), own_->bytes())
                                         : open_host_memory(received[r].get(), own_->bytes()));
      }
    }
  } catch (const Error& e) {
    problem = e.what();
  }
  const std::vector<std::string> problems =
      exchange(store, request_.id, "cuda-mapped-" + kind, request_.rank, request_.size, problem, request_.timeout);
  for (std::size_t r = 0; r < problems.size(); ++r) {
    if (!problems[r].empty()) {
      throw_error(ErrorKind::kUnsupported,
                  "rank " + std::to_string(r) + " cannot map the others' memory: " + problems[r]);
    }
  }
  count_sharers(cards);
  make_world();
}

void GpuGroup::count_sharers(const std::vector<Card>& cards) {
  int processors = std::stoi(cards[0].processors);
  sharers_ = 1;
  for (const Card& card : cards) {
    processors = std::min(processors, std::stoi(card.processors));
    const auto same = [&](const Card& other) { return other.uuid == card.uuid; };
    sharers_ = std::max(sharers_, static_cast<int>(std::count_if(cards.begin(), cards.end(), same)));
  }
  most_blocks_ = std::clamp(processors / sharers_, 1, kMaxBlocks);
}

void GpuGroup::make_world() {
  world_ = {};
  world_.rank = request_.rank;
  world_.size = request_.size;
  world_.layout = ScratchLayout(request_.size);
  world_.state = state_;
  world_.control.rank = request_.rank;
  world_.control.size = request_.size;
  world_.control.failed = &state_->failed;
  world_.control.host = host_control_;
  for (int r = 0; r < request_.size; ++r) {
    world_.scratch[r] = memory_[static_cast<std::size_t>(r)]->data();
    world_.control.peer_poison[r] = reinterpret_cast<std::uint64_t*>(world_.scratch[r] + world_.layout.poison());
  }
  world_.control.poison = world_.control.peer_poison[request_.rank];
}

// Bits of the peers whose data came whole, and above them of those whose lines did.
std::uint64_t GpuGroup::run_probe(std::uint64_t round, bool lines) const {
  ProbeArgs args{round, kProbeTimeoutNs, lines ? 1 : 0};
  DeviceWorld world = world_;
  void* parameters[] = {&world, &args};
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  cudaError_t error = cudaLaunchKernel(request_.probe_kernel, dim3(1), dim3(kProbeThreads), parameters, 0, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  std::uint64_t result = 0;
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(&result, &state_->probe, sizeof(result), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  static_cast<void>(cudaStreamDestroy(stream));
  check_cuda(error, "the probe of the GPUs' memory");
  return result;
}

// True if all pairs can use peer memory; else transport_ says why not, the same on every rank.
bool GpuGroup::try_peer_memory(Store& store) {
  try {
    connect(store, "peer");
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kUnsupported) throw;
    transport_ = e.what();
    return false;
  }
  const std::uint64_t result = request_.size > 1 ? run_probe(1, true) : 0;
  bool whole = true, lines = true;
  std::string failed;
  const std::vector<std::string> results = exchange(store, request_.id, "cuda-probe", request_.rank, request_.size,
                                                    std::to_string(result), request_.timeout);
  for (int r = 0; r < request_.size; ++r) {
    const std::uint64_t bits = std::stoull(results[static_cast<std::size_t>(r)]);
    for (int p = 0; p < request_.size; ++p) {
      if (p == r) continue;
      if ((bits >> p & 1) == 0) {
        whole = false;
        if (failed.empty())
          failed = "data from rank " + std::to_string(p) + " does not reach rank " + std::to_string(r);
      }
      if ((bits >> (32 + p) & 1) == 0) lines = false;
    }
  }
  ll128_ = whole && lines;
  transport_ = whole ? std::string("peer memory") : "peer memory does not pass its probe: " + failed;
  if (whole && !lines) transport_ += ", without lines of 128 bytes";
  return whole;
}

}  // namespace tutti::cuda
