#include "communicator/cuda/registrations.h"

#include <algorithm>

#include "algorithm/cuda/launch_args.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

// Below this a call through scratch is faster: it has one barrier less.
constexpr std::size_t kLeastDirect = std::size_t{1} << 20;
// Of the library's kernels and copy engines, unlike a plan's.
constexpr std::uint64_t kOwnCalls = 1;

std::uint64_t mix64(std::uint64_t x) noexcept {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

// Of what has been added one after another: every bit of it counts, and no regular step of offsets cancels another one.
class Identity {
 public:
  explicit Identity(std::uint64_t kind) : hash_(mix64(kind)) {}
  void add(std::uint64_t value) { hash_ = mix64(hash_ * 0x9e3779b97f4a7c15ULL + value + 1); }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_;
};

}  // namespace

std::optional<DirectSizes> direct_sizes(const Call& call, int size) {
  const bool direct = call.collective == Collective::kAllReduce || call.collective == Collective::kReduceScatter ||
                      call.collective == Collective::kAllGather;
  if (!direct || size == 1 || call.uneven || call.op == ReduceOp::kPremulSum || call.input.pointers != nullptr ||
      call.output.pointers != nullptr) {
    return std::nullopt;
  }
  const std::size_t bytes = agreed_bytes(call, size);
  const auto n = static_cast<std::size_t>(size);
  DirectSizes sizes;
  sizes.input = call.collective == Collective::kReduceScatter ? n * bytes : bytes;
  sizes.output = call.collective == Collective::kAllGather ? n * bytes : bytes;
  sizes.shared_input = call.collective != Collective::kAllGather;
  sizes.shared_output = call.collective != Collective::kReduceScatter;
  if (std::max(sizes.input, sizes.output) < kLeastDirect) return std::nullopt;
  return sizes;
}

DirectSizes copied_sizes(const Call& call, int rank, int size) {
  const Collective c = call.collective;
  const std::size_t bytes = agreed_bytes(call, size), all = bytes * static_cast<std::size_t>(size);
  const bool root = rank == call.root;
  DirectSizes sizes;
  sizes.input = c == Collective::kAllToAll || c == Collective::kScatter ? all : bytes;
  sizes.output = c == Collective::kAllToAll || c == Collective::kAllGather || c == Collective::kGather ? all : bytes;
  if (c == Collective::kScatter && !root) sizes.input = 0;
  if (c == Collective::kGather && !root) sizes.output = 0;
  // A gather is pulled by its root; everything else is pushed.
  sizes.shared_input = c == Collective::kAllReduce || c == Collective::kGather;
  sizes.shared_output = c != Collective::kGather;
  return sizes;
}

std::uint32_t choice_of(const DirectPlace& place, int blocks, DirectWay way) noexcept {
  Identity identity(2);
  identity.add(place.number);
  identity.add(static_cast<std::uint64_t>(blocks));
  identity.add(static_cast<std::uint64_t>(way));
  return static_cast<std::uint32_t>(identity.value() ^ identity.value() >> 32);
}

std::string describe(const DirectPlace& place) {
  std::string text;
  const auto add = [&](const char* what, const DirectBuffer& buffer) {
    if (buffer.range == 0) return;
    text += std::string(text.empty() ? "" : ", ") + what + " in range " + std::to_string(buffer.range) + " at byte " +
            std::to_string(buffer.offset);
  };
  add("input", place.input);
  add("output", place.output);
  return text;
}

Registrations::Room Registrations::room_at(const std::byte* base) {
  Entries one;
  one.try_emplace(base);
  return one.extract(one.begin());
}

void Registrations::add(std::shared_ptr<const CudaRegion> region, Room room, bool allocated) noexcept {
  const std::size_t bytes = region->bytes();
  room.mapped() = {std::move(region), ++made_, bytes, allocated};
  entries_.erase(room.key());
  entries_.insert(std::move(room));
  const std::lock_guard lock(texts_mutex_);
  any_ = true;
}

void Registrations::remove(const CudaRegion& region) {
  std::erase_if(entries_, [&](const auto& entry) { return entry.second.region.get() == &region; });
}

bool Registrations::holds(const CudaRegion& region) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry.second.region.get() == &region && !entry.second.allocated;
  });
}

bool Registrations::touches(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const auto above = entries_.lower_bound(begin + bytes);
  if (above == entries_.begin()) return false;
  const auto& [base, entry] = *std::prev(above);  // ranges do not overlap, so only the last one can reach it
  return base + entry.bytes > begin;
}

const std::pair<const std::byte* const, Registrations::Entry>* Registrations::find(const void* data,
                                                                                   std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const auto above = entries_.upper_bound(begin);
  if (above == entries_.begin()) return nullptr;
  const auto& found = *std::prev(above);
  const auto offset = static_cast<std::size_t>(begin - found.first);
  return offset <= found.second.bytes && bytes <= found.second.bytes - offset ? &found : nullptr;
}

std::optional<DirectPlace> Registrations::locate(const Call& call, const DirectSizes& sizes, std::uint64_t kind,
                                                 bool allocated) const {
  DirectPlace place;
  Identity identity(kind);
  const auto found_in = [&](const Blocks& blocks, std::size_t bytes, DirectBuffer& buffer) {
    if (blocks.pointers != nullptr) return false;
    const auto* found = find(blocks.base, bytes);
    if (found == nullptr || (allocated && !found->second.allocated)) return false;
    buffer = {found->second.region, static_cast<std::size_t>(blocks.base - found->first), found->second.number};
    identity.add(buffer.range);
    identity.add(buffer.offset);
    return true;
  };
  const bool input = sizes.shared_input && sizes.input > 0, output = sizes.shared_output && sizes.output > 0;
  if (input && !found_in(call.input, sizes.input, place.input)) return std::nullopt;
  if (output && !found_in(call.output, sizes.output, place.output)) return std::nullopt;
  place.number = identity.value();
  return place;
}

std::optional<DirectPlace> Registrations::place_of(const Call& call, const DirectSizes& sizes,
                                                   std::uint64_t kind) const {
  return locate(call, sizes, kind, false);
}

std::optional<DirectPlace> Registrations::place_of(const Call& call, int rank, int size, CopyEngines engines) const {
  if (entries_.empty()) return std::nullopt;
  std::optional<DirectPlace> place;
  if (engines != CopyEngines::kNowhere) place = locate(call, copied_sizes(call, rank, size), kOwnCalls, true);
  const bool copied = place.has_value();
  if (const auto sizes = direct_sizes(call, size); !copied && sizes) place = locate(call, *sizes, kOwnCalls, false);
  if (place) place->by_copy_engines = copied || engines == CopyEngines::kEverywhere;
  return place;
}

void Registrations::remember(std::uint32_t fingerprint, const DirectPlace& place) {
  const std::lock_guard lock(texts_mutex_);
  if (texts_.contains(fingerprint)) return;
  if (texts_.size() > 4096) texts_.clear();
  texts_.emplace(fingerprint, describe(place));
}

std::string Registrations::explain(std::uint32_t fingerprint) const {
  const std::lock_guard lock(texts_mutex_);
  if (!any_) return {};
  const auto found = texts_.find(fingerprint);
  return "; here " +
         (found != texts_.end() ? "it uses registered memory (" + found->second + ")"
                                : std::string("it uses no registered memory")) +
         ": all ranks must pass the same registered range at the same offset, or none of them registered memory";
}

}  // namespace tutti::cuda
