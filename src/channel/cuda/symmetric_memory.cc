#include "channel/cuda/symmetric_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/process.h"
#include "bootstrap/exchange.h"
#include "channel/cuda/cards.h"
#include "channel/cuda/fd_exchange.h"
#include "device/cuda/cuda_check.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

cudaDeviceProp properties_of(int device) {
  cudaDeviceProp prop{};
  check_cuda(cudaGetDeviceProperties(&prop, device), "cudaGetDeviceProperties");
  return prop;
}

// What a rank tells the others before memory is exchanged.
struct Card {
  std::string process;       // token
  std::uint64_t memory = 0;  // address of its shared_ptr, for ranks of the same process
  std::string socket;
  std::string uuid;
  int processors = 0;                        // multiprocessors of its device
  std::string problem;                       // why it has no memory of this kind; empty: it has
  ErrorKind kind = ErrorKind::kUnsupported;  // of that

  std::string pack() const {
    ByteWriter out;
    out.text(process).u64(memory).text(socket).text(uuid).u32(static_cast<std::uint32_t>(processors)).text(problem);
    out.u32(static_cast<std::uint32_t>(kind));
    return std::move(out).str();
  }
  static Card unpack(std::string_view text) {
    ByteReader in(text);
    Card card;
    card.process = in.text();
    card.memory = in.u64();
    card.socket = in.text();
    card.uuid = in.text();
    card.processors = static_cast<int>(in.u32());
    card.problem = in.text();
    card.kind = static_cast<ErrorKind>(in.u32());
    require_done(in);
    return card;
  }
};

// This rank's own memory, or the reason why there is none of this kind.
std::shared_ptr<SharedMemory> make_own(const SymmetricRequest& request, std::string& problem) {
  try {
    return request.on_device ? make_device_memory(request.device, request.bytes, request.stream)
                             : make_host_memory(request.bytes);
  } catch (const Error& e) {
    problem = e.what();
    return nullptr;
  }
}

}  // namespace

SymmetricMemory::SymmetricMemory(Bootstrap& bootstrap, const SymmetricRequest& request) : rank_(bootstrap.rank()) {
  Card mine;
  FdServer server;
  std::shared_ptr<SharedMemory> own;
  mine.process = process_token();
  mine.problem = request.problem;
  // What goes wrong here is said to all, so that nobody waits.
  try {
    server = make_fd_server();
    mine.socket = server.name;
    const cudaDeviceProp prop = properties_of(request.device);
    mine.uuid = std::string(prop.uuid.bytes, sizeof(prop.uuid.bytes));
    mine.processors = prop.multiProcessorCount;
    if (mine.problem.empty()) own = make_own(request, mine.problem);
  } catch (const Error& e) {
    mine.problem = e.what();
    mine.kind = e.kind();
  } catch (const std::bad_alloc&) {
    mine.problem = "has no memory";  // within the string
    mine.kind = ErrorKind::kExhausted;
  }
  mine.memory = reinterpret_cast<std::uintptr_t>(&own);
  std::vector<Card> cards;
  for (const std::string& text : bootstrap.all_gather(request.name, mine.pack(), request.timeout)) {
    cards.push_back(Card::unpack(text));
  }
  for (std::size_t r = 0; r < cards.size(); ++r) {
    if (!cards[r].problem.empty()) {
      throw KnownToAll(cards[r].kind, "rank " + std::to_string(r) + ": " + cards[r].problem);
    }
  }
  std::string problem;
  try {
    FdExchange fds{bootstrap.id() + "/" + request.name, request.secret, rank_, {}, 0, request.timeout,
                   [&] { bootstrap.watch(); }};
    for (const Card& card : cards) {
      const bool here = card.process == mine.process;
      fds.peers.push_back({here ? "" : card.socket, here ? std::size_t{0} : std::size_t{1}});
      fds.clients += here ? 0 : 1;
    }
    const UniqueFd own_fd = own->export_fd();
    const int own_number = own_fd.get();
    std::vector<UniqueFd> received(cards.size());
    exchange_fds(server, fds, {&own_number, 1},
                 [&](std::size_t peer, std::vector<UniqueFd> one) { received[peer] = std::move(one.front()); });
    for (std::size_t r = 0; r < cards.size(); ++r) {
      if (static_cast<int>(r) == rank_) {
        memory_.push_back(own);
      } else if (cards[r].process == mine.process) {
        // The other rank keeps its pointer where it is until all have said below that they are ready.
        const auto address = static_cast<std::uintptr_t>(cards[r].memory);
        memory_.push_back(*reinterpret_cast<const std::shared_ptr<SharedMemory>*>(address));
        if (cards[r].uuid != mine.uuid) memory_.back()->allow(request.device);
      } else {
        memory_.push_back(request.on_device ? open_device_memory(request.device, received[r].get(), own->bytes())
                                            : open_host_memory(received[r].get(), own->bytes()));
      }
    }
  } catch (const KnownToAll&) {
    throw;
  } catch (const std::exception& e) {
    problem = e.what();
  }
  const std::vector<std::string> problems = bootstrap.all_gather(request.name + ", mapped", problem, request.timeout);
  for (std::size_t r = 0; r < problems.size(); ++r) {
    if (!problems[r].empty()) {
      throw KnownToAll(ErrorKind::kUnsupported,
                       "rank " + std::to_string(r) + " cannot map the others' memory: " + problems[r]);
    }
  }
  processors_ = cards[0].processors;
  for (const Card& card : cards) {
    uuids_.push_back(card.uuid);
    processors_ = std::min(processors_, card.processors);
    const auto same = [&](const Card& other) { return other.uuid == card.uuid; };
    sharers_ = std::max(sharers_, static_cast<int>(std::count_if(cards.begin(), cards.end(), same)));
  }
}

}  // namespace tutti::cuda
