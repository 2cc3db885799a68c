// The store's protocol: frames cut from a stream, requests, answers and greetings.
#include <cstddef>

#include "base/bytes.h"
#include "bootstrap/tcp_store_protocol.h"
#include "fuzz_main.h"

namespace tutti::fuzz {
namespace {

constexpr std::size_t kMost = 1024;

// However the stream is cut into pieces, the same frames come out.
std::vector<std::string> frames_of(std::string_view stream, std::size_t piece, bool& broken) {
  FrameBuffer buffer;
  std::vector<std::string> frames;
  for (std::size_t at = 0; at < stream.size() && !buffer.broken(); at += piece) {
    buffer.append(stream.substr(at, piece));
    while (const auto frame = buffer.next(kMost)) {
      require(frame->size() <= kMost, "no frame is longer than allowed");
      frames.emplace_back(*frame);
    }
    buffer.drop_taken();
  }
  broken = buffer.broken();
  return frames;
}

void read_payload(std::string_view payload) {
  if (const auto request = decode_request(payload)) {
    require(encode(*request) == payload, "a request is what its encoder writes");
  }
  if (const auto nonce = decode_challenge(payload)) {
    require(encode_challenge(*nonce) == payload, "a challenge is what its encoder writes");
  }
  if (const auto response = decode_response(payload)) {
    require(encode(*response) == payload, "a response is what its encoder writes");
  }
  for (const std::size_t keys : {0, 1, 3}) {
    if (const auto values = decode_values(payload, keys)) {
      require(values->texts.size() == (values->status == StoreReply::kDone ? keys : 1), "a value a key");
    }
  }
  decode_sum(payload);
}

StoreRequest request(StoreOp op, std::string_view key) {
  StoreRequest r;
  r.op = op;
  r.key = key;
  return r;
}

}  // namespace

void run(std::string_view bytes) {
  read_payload(bytes);
  bool broken = false;
  bool broken_too = false;
  const std::vector<std::string> frames = frames_of(bytes, bytes.size() + 1, broken);
  require(frames == frames_of(bytes, 3, broken_too), "frames do not depend on how the stream arrives");
  require(broken == broken_too, "nor does its end");
  for (const std::string& frame : frames) read_payload(frame);
}

std::vector<std::string> seeds() {
  StoreRequest set = request(StoreOp::kSet, "key");
  set.value = "value";
  StoreRequest get = request(StoreOp::kGet, "");
  get.timeout_ms = 1000;
  get.keys = {"one", "two", "three"};
  StoreRequest add = request(StoreOp::kAdd, "key");
  add.amount = 1;
  StoreRequest will = request(StoreOp::kWill, "");
  will.value = "why";
  will.keys = {"one", "two"};
  std::vector<std::string> made = {encode(set),
                                   encode(will),
                                   encode(get),
                                   encode(add),
                                   encode(request(StoreOp::kErase, "key")),
                                   encode_challenge(Nonce{}),
                                   encode(StoreResponse{}),
                                   ByteWriter().u8(0).text("a").text("b").text("c").str(),
                                   ByteWriter().u8(1).text("missing").str(),
                                   ByteWriter().u8(0).u64(7).str()};
  std::string stream;
  for (const std::string& payload : made) stream += framed(payload);
  made.push_back(stream);
  return made;
}

}  // namespace tutti::fuzz
