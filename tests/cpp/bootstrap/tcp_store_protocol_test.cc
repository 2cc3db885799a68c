// A store's messages: what one side writes the other reads, and nothing else is read as a message.
#include "bootstrap/tcp_store_protocol.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace tutti::test {
namespace {

StoreRequest request(StoreOp op) {
  StoreRequest r;
  r.op = op;
  r.key = "key";
  if (op == StoreOp::kSet) r.value = std::string_view("a\0b", 3);
  if (op == StoreOp::kAdd) r.amount = ~std::uint64_t{6};
  if (op == StoreOp::kGet || op == StoreOp::kWill) {
    r.key = "";
    r.keys = {"one", "", "three"};
  }
  if (op == StoreOp::kGet) r.timeout_ms = 1500;
  if (op == StoreOp::kWill) r.value = "gone";
  return r;
}

constexpr StoreOp kOps[] = {StoreOp::kSet, StoreOp::kGet, StoreOp::kAdd, StoreOp::kErase, StoreOp::kWill};

TEST(TcpStoreProtocol, RequestsArriveAsTheyWereSent) {
  for (const StoreOp op : kOps) {
    const StoreRequest sent = request(op);
    const std::string bytes = encode(sent);
    const auto got = decode_request(bytes);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->op, op);
    EXPECT_EQ(got->key, sent.key);
    EXPECT_EQ(got->value, sent.value);
    EXPECT_EQ(got->amount, sent.amount);
    EXPECT_EQ(got->timeout_ms, sent.timeout_ms);
    EXPECT_EQ(got->keys, sent.keys);
  }
}

TEST(TcpStoreProtocol, PartsAndExtensionsOfARequestAreNone) {
  for (const StoreOp op : kOps) {
    const std::string bytes = encode(request(op));
    for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(decode_request(std::string_view(bytes).substr(0, n)));
    EXPECT_FALSE(decode_request(bytes + "x"));
  }
  EXPECT_FALSE(decode_request(std::string(1, '\0')));
  EXPECT_FALSE(decode_request(std::string(1, '\6')));
}

TEST(TcpStoreProtocol, AnAnnouncedCountCostsNoMemory) {
  const std::string bytes =
      ByteWriter().u8(static_cast<std::uint8_t>(StoreOp::kGet)).u64(0).u32(0xffffffff).u32(0).str();
  EXPECT_FALSE(decode_request(bytes));
}

TEST(TcpStoreProtocol, AnswersMustFitTheQuestion) {
  const std::string two = ByteWriter().u8(0).text("a").text("").str();
  ASSERT_TRUE(decode_values(two, 2));
  EXPECT_EQ(decode_values(two, 2)->texts, (std::vector<std::string_view>{"a", ""}));
  EXPECT_FALSE(decode_values(two, 1));
  EXPECT_FALSE(decode_values(two, 3));
  const std::string missing = ByteWriter().u8(1).text("key").str();
  ASSERT_TRUE(decode_values(missing, 5));
  EXPECT_EQ(decode_values(missing, 5)->status, StoreReply::kMissing);
  EXPECT_EQ(decode_values(missing, 5)->texts.front(), "key");
  EXPECT_FALSE(decode_values(ByteWriter().u8(1).str(), 5)) << "a missing key has a name";
  EXPECT_FALSE(decode_values(ByteWriter().u8(2).str(), 0)) << "no answer to a get";
  ASSERT_TRUE(decode_values(ByteWriter().u8(3).text("why").str(), 5));
  EXPECT_EQ(decode_values(ByteWriter().u8(3).text("why").str(), 5)->status, StoreReply::kLost);

  EXPECT_EQ(decode_sum(ByteWriter().u8(0).u64(7).str())->sum, 7U);
  EXPECT_EQ(decode_sum(ByteWriter().u8(2).str())->status, StoreReply::kNoNumber);
  EXPECT_FALSE(decode_sum(ByteWriter().u8(0).str()));
  EXPECT_FALSE(decode_sum(ByteWriter().u8(2).u64(7).str()));
  EXPECT_FALSE(decode_sum(ByteWriter().u8(1).str())) << "no answer to an add";
}

TEST(TcpStoreProtocol, GreetingsCarryTheProtocolsNumber) {
  const Nonce nonce = random_nonce();
  const Digest proof = random_nonce();
  EXPECT_EQ(decode_challenge(encode_challenge(nonce)), nonce);
  const auto response = decode_response(encode(StoreResponse{nonce, proof}));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->nonce, nonce);
  EXPECT_EQ(response->proof, proof);
  EXPECT_FALSE(decode_challenge(ByteWriter().u32(kStoreMagic + 1).digest(nonce).str()));
  EXPECT_FALSE(decode_response(ByteWriter().u32(kStoreMagic + 1).digest(nonce).digest(proof).str()));
  EXPECT_FALSE(decode_response(encode_challenge(nonce)));
}

}  // namespace
}  // namespace tutti::test
