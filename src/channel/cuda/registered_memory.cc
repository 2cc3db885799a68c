#include "channel/cuda/registered_memory.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "bootstrap/exchange.h"
#include "channel/cuda/cards.h"
#include "channel/cuda/fd_exchange.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

// Bounds what a rank believes of another's card.
constexpr std::uint64_t kMostOfACard = std::uint64_t{1} << 20;

struct CardPiece {
  Allocation allocation;
  ShareKind kind = ShareKind::kIpc;
  std::string handle;
};

struct CardRange {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  std::vector<CardPiece> pieces;
};

// What a rank tells the others.
struct Card {
  std::string process;
  int device = 0;
  std::string socket;
  std::string problem;
  std::vector<CardRange> ranges;

  std::size_t descriptors() const {
    std::size_t count = 0;
    for (const CardRange& range : ranges) {
      for (const CardPiece& piece : range.pieces) count += piece.kind == ShareKind::kDescriptor ? 1 : 0;
    }
    return count;
  }

  std::string pack() const {
    ByteWriter out;
    out.text(process).u32(static_cast<std::uint32_t>(device)).text(socket).text(problem);
    out.u64(ranges.size());
    for (const CardRange& range : ranges) {
      out.u64(range.address).u64(range.bytes).u64(range.pieces.size());
      for (const CardPiece& piece : range.pieces) {
        out.u64(piece.allocation.base).u64(piece.allocation.bytes).u64(piece.allocation.id);
        out.u8(static_cast<std::uint8_t>(piece.kind)).text(piece.handle);
      }
    }
    return std::move(out).str();
  }

  static Card unpack(std::string_view text) {
    ByteReader in(text);
    Card card;
    card.process = in.text();
    card.device = static_cast<int>(in.u32());
    card.socket = in.text();
    card.problem = in.text();
    card.ranges.resize(std::min(in.u64(), kMostOfACard));
    for (CardRange& range : card.ranges) {
      range.address = in.u64();
      range.bytes = in.u64();
      range.pieces.resize(std::min(in.u64(), kMostOfACard));
      for (CardPiece& piece : range.pieces) {
        piece.allocation.base = in.u64();
        piece.allocation.bytes = in.u64();
        piece.allocation.id = in.u64();
        piece.kind = static_cast<ShareKind>(in.u8());
        piece.handle = in.text();
      }
    }
    require_done(in);
    return card;
  }
};

// The allocations that hold [begin, begin + bytes), in order, without a gap.
std::vector<Allocation> walk(const MemorySharing& sharing, int device, std::uintptr_t begin, std::size_t bytes) {
  std::vector<Allocation> found;
  const std::uintptr_t end = begin + bytes;
  for (std::uintptr_t at = begin; at < end;) {
    const Allocation next = sharing.find(device, at);
    if (next.base > at || next.base + next.bytes <= at) {
      throw_error(ErrorKind::kInternal, "the driver gives another allocation than that of the address");
    }
    found.push_back(next);
    at = next.base + next.bytes;
  }
  return found;
}

// What this process has mapped of others. One a process, for all groups; never destroyed, since mappings may be given
// up at exit.
struct Imports {
  std::mutex mutex;  // guards mapped; held while something is mapped, so that nobody maps the same beside it
  std::map<std::string, std::weak_ptr<std::byte>> mapped;
};
Imports& imports() {
  static Imports* const instance = new Imports;
  return *instance;
}

// Empty if the driver does not number the allocations: such an import is not shared.
std::string import_key(const Card& owner, const CardRange& range, int device) {
  ByteWriter key;
  key.text(owner.process).u32(static_cast<std::uint32_t>(device));
  for (const CardPiece& piece : range.pieces) {
    if (piece.allocation.id == 0) return {};
    key.u64(piece.allocation.base).u64(piece.allocation.bytes).u64(piece.allocation.id);
  }
  return std::move(key).str();
}

std::shared_ptr<std::byte> open_once(const std::string& key, int device, std::span<const ForeignAllocation> pieces,
                                     const MemorySharing& sharing) {
  if (key.empty()) return sharing.open(device, pieces);
  Imports& all = imports();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.mapped, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<std::byte>& entry = all.mapped[key];
  std::shared_ptr<std::byte> mapping = entry.lock();
  if (mapping == nullptr) entry = mapping = sharing.open(device, pieces);
  return mapping;
}

class Registration {
 public:
  Registration(Bootstrap& bootstrap, const RegisterRequest& request, const MemorySharing& sharing)
      : bootstrap_(bootstrap), request_(request), sharing_(sharing) {}

  std::vector<std::shared_ptr<RegisteredMemory>> run() {
    FdServer server;
    std::vector<UniqueFd> fds;
    exchange_cards(make_card(server, fds));
    check_cards();
    for (const CudaRange& range : request_.ranges) {
      made_.push_back(std::make_shared<RegisteredMemory>(range.bytes, cards_.size()));
    }
    try {
      map(server, fds);
    } catch (const KnownToAll&) {
      throw;
    } catch (const Error& e) {
      problem_ = e.what();
    }
    const std::vector<std::string> problems =
        bootstrap_.all_gather(request_.name + ", mapped", problem_, request_.timeout);
    for (std::size_t r = 0; r < problems.size(); ++r) {
      if (!problems[r].empty()) refuse(r, "cannot map the others' memory: " + problems[r]);
    }
    return std::move(made_);
  }

 private:
  [[noreturn]] static void refuse(std::size_t rank, const std::string& why) {
    throw_error(ErrorKind::kUnsupported,
                "memory is not registered: rank " + std::to_string(rank) + " " + why +
                    "; allocate it by tutti.empty or in tutti.mem_pool() (C++: CudaCommunicator::allocate)");
  }

  // What goes wrong here is said to all, so that nobody waits.
  Card make_card(FdServer& server, std::vector<UniqueFd>& fds) const {
    Card card;
    card.process = request_.process;
    card.device = request_.device;
    card.problem = request_.problem;
    try {
      server = make_fd_server();
      card.socket = server.name;
      for (const CudaRange& range : request_.ranges) {
        if (!card.problem.empty()) break;
        card.ranges.push_back({reinterpret_cast<std::uintptr_t>(range.data), range.bytes, {}});
        CardRange& mine = card.ranges.back();
        for (const Allocation& allocation : walk(sharing_, request_.device, mine.address, mine.bytes)) {
          SharedAllocation shared = sharing_.share(allocation);
          mine.pieces.push_back({allocation, shared.kind, shared.handle});
          if (shared.kind == ShareKind::kDescriptor) fds.push_back(std::move(shared.fd));
        }
        const bool ipc = std::any_of(mine.pieces.begin(), mine.pieces.end(),
                                     [](const CardPiece& piece) { return piece.kind == ShareKind::kIpc; });
        if (ipc && mine.pieces.size() > 1) card.problem = "registers a range that spans several allocations";
        if (mine.bytes == 0) card.problem = "registers a range without bytes";
      }
    } catch (const std::exception& e) {
      card.problem = std::string("cannot share its memory: ") + e.what();
    }
    if (!card.problem.empty()) {
      card.ranges.clear();
      fds.clear();
    }
    return card;
  }

  void exchange_cards(const Card& mine) {
    for (const std::string& text : bootstrap_.all_gather(request_.name, mine.pack(), request_.timeout)) {
      cards_.push_back(Card::unpack(text));
    }
  }

  // All ranks come to the same verdict.
  void check_cards() const {
    for (std::size_t r = 0; r < cards_.size(); ++r) {
      if (!cards_[r].problem.empty()) refuse(r, cards_[r].problem);
    }
    for (std::size_t r = 1; r < cards_.size(); ++r) {
      const std::vector<CardRange>& mine = cards_[r].ranges;
      const std::vector<CardRange>& first = cards_[0].ranges;
      if (mine.size() != first.size()) {
        throw_error(ErrorKind::kInvalidArgument, "memory is not registered: rank " + std::to_string(r) + " registers " +
                                                     std::to_string(mine.size()) + " ranges, rank 0 registers " +
                                                     std::to_string(first.size()));
      }
      for (std::size_t i = 0; i < mine.size(); ++i) {
        if (mine[i].bytes == first[i].bytes) continue;
        throw_error(ErrorKind::kInvalidArgument, "memory is not registered: range " + std::to_string(i) + " has " +
                                                     std::to_string(mine[i].bytes) + " bytes on rank " +
                                                     std::to_string(r) + " and " + std::to_string(first[i].bytes) +
                                                     " on rank 0");
      }
    }
  }

  bool here(std::size_t rank) const { return cards_[rank].process == request_.process; }

  void map(const FdServer& server, const std::vector<UniqueFd>& own) {
    FdExchange fds{bootstrap_.id() + "/" + request_.name, request_.secret, bootstrap_.rank(), {}, 0, request_.timeout,
                   [this] { bootstrap_.watch(); }};
    for (std::size_t r = 0; r < cards_.size(); ++r) {
      fds.peers.push_back({cards_[r].socket, here(r) ? 0 : cards_[r].descriptors()});
      fds.clients += here(r) || own.empty() ? 0 : 1;
    }
    std::vector<int> numbers;
    for (const UniqueFd& fd : own) numbers.push_back(fd.get());
    // A failure is kept until all descriptors have passed: peers wait for them.
    const auto guarded = [&](std::size_t r, const std::vector<UniqueFd>& received) {
      try {
        map_rank(r, received);
      } catch (const Error& e) {
        if (problem_.empty()) problem_ = e.what();
      }
    };
    exchange_fds(server, fds, numbers,
                 [&](std::size_t peer, const std::vector<UniqueFd>& received) { guarded(peer, received); });
    for (std::size_t r = 0; r < cards_.size(); ++r) {
      if (fds.peers[r].fds == 0) guarded(r, {});
    }
  }

  void map_rank(std::size_t r, const std::vector<UniqueFd>& received) {
    const Card& owner = cards_[r];
    auto fd = received.begin();
    for (std::size_t i = 0; i < owner.ranges.size(); ++i) {
      const CardRange& range = owner.ranges[i];
      RegisteredMemory& made = *made_[i];
      if (here(r)) {
        made.place(r, reinterpret_cast<std::byte*>(range.address));
        if (owner.device == request_.device) continue;
        for (const CardPiece& piece : range.pieces) sharing_.allow(request_.device, owner.device, piece.allocation);
        continue;
      }
      std::vector<ForeignAllocation> pieces;
      for (const CardPiece& piece : range.pieces) {
        const bool by_fd = piece.kind == ShareKind::kDescriptor;
        pieces.push_back({piece.kind, piece.allocation.bytes, by_fd ? (fd++)->get() : -1, piece.handle});
      }
      made.place(r, open_once(import_key(owner, range, request_.device), request_.device, pieces, sharing_),
                 range.address - range.pieces.front().allocation.base);
    }
  }

  Bootstrap& bootstrap_;
  const RegisterRequest& request_;
  const MemorySharing& sharing_;
  std::vector<Card> cards_;
  std::vector<std::shared_ptr<RegisteredMemory>> made_;
  std::string problem_;
};

}  // namespace

std::vector<std::shared_ptr<RegisteredMemory>> register_ranges(Bootstrap& bootstrap, const RegisterRequest& request,
                                                               const MemorySharing& sharing) {
  return Registration(bootstrap, request, sharing).run();
}

}  // namespace tutti::cuda
