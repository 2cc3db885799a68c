// The bytes between a TcpStore and its server.
//
// A frame is its payload's length (4 bytes) and the payload. On connection the server sends a challenge, the client
// answers with a nonce and a proof, the server with its own; then the client sends one request at a time. Set, erase
// and will have no answer.
//
//   server  Challenge  magic, nonce                    client  Set    key, value
//   client  Response   magic, nonce, proof             client  Get    timeout, keys    -> values, the missing key, or
//                                                                                         why one will not come
//   server  Welcome    proof                           client  Add    key, amount      -> sum
//                                                      client  Erase  key
//                                                      client  Will   text, keys
//
// A will holds until the client replaces it (by one without keys: withdraws it). If the connection ends before, a get
// of any of its keys is answered by its text, whatever else is awaited.
//
// What is read here was sent by somebody who need not be honest: a decoder takes exactly what an encoder makes, and
// gives nothing for any other bytes. What it gives borrows them.
//
// Thread rule: values of one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.h"

namespace tutti {

inline constexpr std::uint32_t kStoreMagic = 0x54530002;  // "TS" and the protocol's number
inline constexpr std::size_t kMaxStrangerFrame = 128;     // what one may send that has proven nothing
inline constexpr std::size_t kMaxStoreFrame = std::size_t{64} << 20;

enum class StoreOp : std::uint8_t { kSet = 1, kGet = 2, kAdd = 3, kErase = 4, kWill = 5 };
enum class StoreReply : std::uint8_t { kDone = 0, kMissing = 1, kNoNumber = 2, kLost = 3 };

// The payload with its length before it.
std::string framed(std::string_view payload);

// Cuts frames out of a stream. Memory follows what has come, not what a length announces.
class FrameBuffer {
 public:
  void append(std::string_view bytes) { bytes_.append(bytes); }
  // The next whole frame, valid until append() or drop_taken(); nothing while it is not all there.
  std::optional<std::string_view> next(std::size_t most) noexcept;
  // A length above the bound was announced: the stream is of no use any more.
  bool broken() const noexcept { return broken_; }
  void drop_taken();
  std::size_t left() const noexcept { return bytes_.size() - taken_; }

 private:
  std::string bytes_;
  std::size_t taken_ = 0;
  bool broken_ = false;
};

struct StoreRequest {
  StoreOp op = StoreOp::kSet;
  std::string_view key = {};                // all but kGet and kWill
  std::string_view value = {};              // kSet, kWill
  std::uint64_t amount = 0;                 // kAdd, in two's complement
  std::uint64_t timeout_ms = 0;             // kGet; as it came: any number
  std::vector<std::string_view> keys = {};  // kGet, kWill
};
std::string encode(const StoreRequest& request);
std::optional<StoreRequest> decode_request(std::string_view payload);

// The answer to a kGet: with kDone a value for each of the keys asked for, with kMissing one key that is not there,
// with kLost the text of a will.
struct StoreValues {
  StoreReply status = StoreReply::kDone;
  std::vector<std::string_view> texts;
};
std::optional<StoreValues> decode_values(std::string_view payload, std::size_t keys);

// The answer to a kAdd: the sum with kDone, else kNoNumber.
struct StoreSum {
  StoreReply status = StoreReply::kDone;
  std::uint64_t sum = 0;
};
std::optional<StoreSum> decode_sum(std::string_view payload);

struct StoreResponse {
  Nonce nonce{};
  Digest proof{};
};
std::string encode_challenge(const Nonce& nonce);
std::optional<Nonce> decode_challenge(std::string_view payload);
std::string encode(const StoreResponse& response);
std::optional<StoreResponse> decode_response(std::string_view payload);

// What the server says to a proof that is wrong, before it closes: a connection that ends without it was taken for a
// stranger's for another reason (a crowd, a bound of time), and may be tried again.
inline constexpr std::string_view kStoreRefusal = "another secret";

// The server's own key: the hosts of the first connections that were refused so. Who waits in vain names them.
inline constexpr std::string_view kRefusedKey = "tutti/refused";

// What the server says in place of a challenge where its process has no descriptor to keep the connection.
inline constexpr std::string_view kStoreFull = "no descriptors";

// What each side proves: that it knows the secret, now, in this role.
Digest store_proof(std::string_view secret, std::string_view role, const Nonce& server, const Nonce& client);

}  // namespace tutti
