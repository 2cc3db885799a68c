#include "bootstrap/tcp_store_protocol.h"

#include <array>
#include <utility>

#include "base/bytes.h"

namespace tutti {
namespace {

// False if `in` cannot hold so many texts: nothing is allocated for what is only announced.
bool read_texts(ByteReader& in, std::size_t count, std::vector<std::string_view>& texts) {
  if (count > in.left() / 4) return false;  // each has a length at least
  texts.reserve(count);
  for (std::size_t i = 0; i < count; ++i) texts.push_back(in.text());
  return in.ok();
}

void write_texts(ByteWriter& out, const std::vector<std::string_view>& texts) {
  out.u32(static_cast<std::uint32_t>(texts.size()));
  for (const std::string_view text : texts) out.text(text);
}

}  // namespace

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

std::string encode(const StoreRequest& request) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(request.op));
  switch (request.op) {
    case StoreOp::kSet:
      out.text(request.key).text(request.value);
      break;
    case StoreOp::kGet:
      write_texts(out.u64(request.timeout_ms), request.keys);
      break;
    case StoreOp::kAdd:
      out.text(request.key).u64(request.amount);
      break;
    case StoreOp::kErase:
      out.text(request.key);
      break;
    case StoreOp::kWill:
      write_texts(out.text(request.value), request.keys);
      break;
  }
  return std::move(out).str();
}

std::optional<StoreRequest> decode_request(std::string_view payload) {
  ByteReader in(payload);
  StoreRequest request;
  request.op = static_cast<StoreOp>(in.u8());
  switch (request.op) {
    case StoreOp::kSet:
      request.key = in.text();
      request.value = in.text();
      break;
    case StoreOp::kGet:
      request.timeout_ms = in.u64();
      if (!read_texts(in, in.u32(), request.keys)) return std::nullopt;
      break;
    case StoreOp::kAdd:
      request.key = in.text();
      request.amount = in.u64();
      break;
    case StoreOp::kErase:
      request.key = in.text();
      break;
    case StoreOp::kWill:
      request.value = in.text();
      if (!read_texts(in, in.u32(), request.keys)) return std::nullopt;
      break;
    default:
      return std::nullopt;
  }
  if (!in.done()) return std::nullopt;
  return request;
}

std::optional<StoreValues> decode_values(std::string_view payload, std::size_t keys) {
  ByteReader in(payload);
  StoreValues values;
  values.status = static_cast<StoreReply>(in.u8());
  const bool done = values.status == StoreReply::kDone;
  if (!done && values.status != StoreReply::kMissing && values.status != StoreReply::kLost) return std::nullopt;
  if (!read_texts(in, done ? keys : 1, values.texts) || !in.done()) return std::nullopt;
  return values;
}

std::optional<StoreSum> decode_sum(std::string_view payload) {
  ByteReader in(payload);
  StoreSum sum;
  sum.status = static_cast<StoreReply>(in.u8());
  const bool done = sum.status == StoreReply::kDone;
  if (!done && sum.status != StoreReply::kNoNumber) return std::nullopt;
  if (done) sum.sum = in.u64();
  if (!in.done()) return std::nullopt;
  return sum;
}

std::string encode_challenge(const Nonce& nonce) { return ByteWriter().u32(kStoreMagic).digest(nonce).str(); }

std::optional<Nonce> decode_challenge(std::string_view payload) {
  ByteReader in(payload);
  const std::uint32_t magic = in.u32();
  const Nonce nonce = in.digest();
  if (!in.done() || magic != kStoreMagic) return std::nullopt;
  return nonce;
}

std::string encode(const StoreResponse& response) {
  return ByteWriter().u32(kStoreMagic).digest(response.nonce).digest(response.proof).str();
}

std::optional<StoreResponse> decode_response(std::string_view payload) {
  ByteReader in(payload);
  const std::uint32_t magic = in.u32();
  StoreResponse response;
  response.nonce = in.digest();
  response.proof = in.digest();
  if (!in.done() || magic != kStoreMagic) return std::nullopt;
  return response;
}

Digest store_proof(std::string_view secret, std::string_view role, const Nonce& server, const Nonce& client) {
  const std::array<std::string_view, 4> parts = {"tutti store", role, text_of(server), text_of(client)};
  return hmac(secret, parts);
}

}  // namespace tutti
