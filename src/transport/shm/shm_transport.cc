#include "transport/shm/shm_transport.h"

#include <bit>

#include "transport/shm/ring.h"
#include "tutti/error.h"

namespace tutti {

class ShmTransport::ShmLink final : public Link {
 public:
  ShmLink(int rank, std::byte* out, std::byte* in, std::size_t capacity, const std::function<Status(int)>& liveness)
      : writer_(out, capacity), reader_(in, capacity), rank_(rank), liveness_(liveness) {}

  std::size_t write_some(ConstBytes head, ConstBytes body) noexcept override { return writer_.write(head, body); }
  std::size_t read_some(MutableBytes into) noexcept override { return reader_.read(into); }
  bool has_input() const noexcept override { return !reader_.broken() && !reader_.empty(); }
  bool is_drained() const noexcept override { return writer_.drained(); }
  Status status() const noexcept override {
    if (writer_.broken() || reader_.broken()) return Status::kInternal;
    return liveness_ ? liveness_(rank_) : Status::kOk;
  }

 private:
  RingWriter writer_;
  RingReader reader_;
  int rank_;
  const std::function<Status(int)>& liveness_;
};

ShmTransport::ShmTransport(ShmTransportOptions options) : options_(std::move(options)) {
  if (!std::has_single_bit(options_.ring_capacity) || options_.ring_capacity < kLinkSlack)
    throw_error(ErrorKind::kInvalidArgument, "a ring's capacity must be a power of two, at least 4096");
  const int n = static_cast<int>(options_.rank_of_index.size());
  links_.resize(options_.rank_of_index.size());
  for (int i = 0; i < n; ++i) {
    if (i == options_.index) continue;
    links_[static_cast<std::size_t>(i)] = std::make_unique<ShmLink>(
        options_.rank_of_index[static_cast<std::size_t>(i)], options_.ring_memory(options_.index, i),
        options_.ring_memory(i, options_.index), options_.ring_capacity, options_.liveness);
  }
}

ShmTransport::~ShmTransport() = default;

Link* ShmTransport::link(int peer) noexcept {
  for (std::size_t i = 0; i < links_.size(); ++i)
    if (options_.rank_of_index[i] == peer) return links_[i].get();
  return nullptr;
}

// Every ring may carry something from the start, so each peer is told once.
int ShmTransport::accept_new(std::span<int> peers) noexcept {
  int n = 0;
  for (; told_ < links_.size() && n < static_cast<int>(peers.size()); ++told_)
    if (links_[told_] != nullptr) peers[static_cast<std::size_t>(n++)] = options_.rank_of_index[told_];
  return n;
}

}  // namespace tutti
