#include "communicator/buffer_choice.h"

#include <bit>

namespace tutti {

BufferChoice choose_buffer(const std::vector<BufferOffer>& offers, std::size_t made) noexcept {
  for (const BufferOffer& offer : offers) {
    if (offer.shares == 0 || offer.bytes != offers.front().bytes) return {};
  }
  for (std::size_t word = 0; word < offers.front().free.size(); ++word) {
    std::uint64_t everywhere = ~std::uint64_t{0};
    for (const BufferOffer& offer : offers) everywhere &= offer.free[word];
    if (everywhere != 0) {
      return {BufferSource::kReused, word * 64 + static_cast<std::size_t>(std::countr_zero(everywhere))};
    }
  }
  return {made < BufferOffer::kMost ? BufferSource::kNew : BufferSource::kOrdinary};
}

}  // namespace tutti
