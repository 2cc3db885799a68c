#include "bootstrap/tcp_store_protocol.h"

#include <array>

#include "base/bytes.h"

namespace tutti {

std::string framed(std::string_view payload) { return std::move(ByteWriter().text(payload)).str(); }

std::optional<std::string_view> FrameBuffer::next(std::size_t most) noexcept {
  const std::string_view rest = std::string_view(bytes_).substr(taken_);
  if (broken_ || rest.size() < 4) return std::nullopt;
  const std::uint32_t length = ByteReader(rest).u32();
  if (length > most) {
    broken_ = true;
    return std::nullopt;
  }
  if (rest.size() - 4 < length) return std::nullopt;
  taken_ += 4 + length;
  return rest.substr(4, length);
}

void FrameBuffer::drop_taken() {
  bytes_.erase(0, taken_);
  taken_ = 0;
  // A rare large value does not hold its memory for good.
  if (bytes_.empty() && bytes_.capacity() > (std::size_t{1} << 16)) bytes_.shrink_to_fit();
}

Digest store_proof(std::string_view secret, std::string_view role, const Nonce& server, const Nonce& client) {
  const std::array<std::string_view, 4> parts = {"tutti store", role, text_of(server), text_of(client)};
  return hmac(secret, parts);
}

}  // namespace tutti
