#include "channel/cuda/symmetric_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>

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
  std::string process;  // token
  std::string memory;   // address of its shared_ptr, for ranks of the same process
  std::string socket;
  std::string uuid;
  std::string processors;  // multiprocessors of its device
  std::string problem;     // why it has no memory of this kind; empty: it has

  std::string pack() const {
    std::string text;
    for (const std::string* field : {&process, &memory, &socket, &uuid, &processors, &problem}) put_field(text, *field);
    return text;
  }
  static Card unpack(std::string_view text) {
    Card card;
    for (std::string* field : {&card.process, &card.memory, &card.socket, &card.uuid, &card.processors, &card.problem})
      *field = take_field(text);
    return card;
  }
};

// This rank's own memory, or the reason why there is none.
std::shared_ptr<SharedMemory> make_own(const SymmetricRequest& request, std::string& problem) {
  try {
    return request.on_device ? make_device_memory(request.device, request.bytes, request.stream)
                             : make_host_memory(request.bytes);
  } catch (const Error& e) {
    problem = e.what();  // said to all, so that nobody waits
    return nullptr;
  }
}

}  // namespace

SymmetricMemory::SymmetricMemory(Store& store, const SymmetricRequest& request) : rank_(request.rank) {
  Card mine;
  const FdServer server = make_fd_server();
  mine.process = process_token();
  mine.socket = server.name;
  const cudaDeviceProp prop = properties_of(request.device);
  mine.uuid = std::string(prop.uuid.bytes, sizeof(prop.uuid.bytes));
  mine.processors = std::to_string(prop.multiProcessorCount);
  const std::shared_ptr<SharedMemory> own = make_own(request, mine.problem);
  mine.memory = std::to_string(reinterpret_cast<std::uintptr_t>(&own));
  std::vector<Card> cards;
  const std::function<void()> look = [&] { throw_if_told(store, request.group, request.rank); };
  for (const std::string& text :
       exchange(store, request.id, "cuda-card", request.rank, request.size, mine.pack(), request.timeout, look)) {
    cards.push_back(Card::unpack(text));
  }
  for (std::size_t r = 0; r < cards.size(); ++r) {
    if (!cards[r].problem.empty()) {
      throw KnownToAll(ErrorKind::kUnsupported, "rank " + std::to_string(r) + ": " + cards[r].problem);
    }
  }
  std::string problem;
  try {
    FdExchange fds{request.id, request.secret, request.rank, {}, 0, request.timeout, look};
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
      if (static_cast<int>(r) == request.rank) {
        memory_.push_back(own);
      } else if (cards[r].process == mine.process) {
        // The other rank keeps its pointer where it is until all have said below that they are ready.
        const auto address = static_cast<std::uintptr_t>(std::stoull(cards[r].memory));
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
  const std::vector<std::string> problems =
      exchange(store, request.id, "cuda-mapped", request.rank, request.size, problem, request.timeout, look);
  for (std::size_t r = 0; r < problems.size(); ++r) {
    if (!problems[r].empty()) {
      throw KnownToAll(ErrorKind::kUnsupported,
                       "rank " + std::to_string(r) + " cannot map the others' memory: " + problems[r]);
    }
  }
  processors_ = std::stoi(cards[0].processors);
  for (const Card& card : cards) {
    uuids_.push_back(card.uuid);
    processors_ = std::min(processors_, std::stoi(card.processors));
    const auto same = [&](const Card& other) { return other.uuid == card.uuid; };
    sharers_ = std::max(sharers_, static_cast<int>(std::count_if(cards.begin(), cards.end(), same)));
  }
}

}  // namespace tutti::cuda
