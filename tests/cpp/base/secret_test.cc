#include "base/secret.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/bytes.h"
#include "support/child_process.h"

namespace tutti {
namespace {

// RFC 4231: key, data, HMAC-SHA-256.
struct Known {
  std::string key;
  std::string data;
  std::string digest;
};

TEST(Secret, GivesTheDigestsOfRfc4231) {
  std::string counting;
  for (char c = 1; c <= 25; ++c) counting.push_back(c);
  const std::vector<Known> cases = {
      {std::string(20, '\x0b'), "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {counting, std::string(50, '\xcd'), "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
  };
  for (const Known& c : cases) EXPECT_EQ(hexadecimal(hmac_sha256(c.key, c.data)), c.digest) << c.data;
}

TEST(Secret, EveryPartIsPrecededByItsLength) {
  const std::array<std::string_view, 2> parts = {"ab", "c"};
  const std::string message = ByteWriter().u64(2).raw("ab").u64(1).raw("c").str();
  EXPECT_EQ(hmac("key", parts), hmac_sha256("key", message));
  const std::array<std::string_view, 2> shifted = {"a", "bc"};
  EXPECT_NE(hmac("key", parts), hmac("key", shifted));
}

TEST(Secret, AnotherSecretOrNoneGivesAnotherProof) {
  const std::array<std::string_view, 1> parts = {"text"};
  EXPECT_NE(hmac("key", parts), hmac("kez", parts));
  EXPECT_NE(hmac("key", parts), hmac({}, parts));
  EXPECT_TRUE(equal(hmac({}, parts), hmac("", parts)));
  EXPECT_FALSE(equal(hmac("key", parts), hmac("kez", parts)));
}

TEST(Secret, RandomOnesDiffer) {
  EXPECT_NE(random_nonce(), random_nonce());
  EXPECT_EQ(random_secret().size(), 64u);
  EXPECT_NE(random_secret(), random_secret());
}

TEST(Bytes, AReaderNeverReadsPastItsInput) {
  const std::string whole = ByteWriter().u8(1).u32(2).u64(3).text("four").str();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    ByteReader in(std::string_view(whole).substr(0, length));
    in.u8(), in.u32(), in.u64(), in.text();
    EXPECT_FALSE(in.ok()) << length;
  }
  ByteReader in(whole);
  EXPECT_EQ(in.u8(), 1u);
  EXPECT_EQ(in.u32(), 2u);
  EXPECT_EQ(in.u64(), 3u);
  EXPECT_EQ(in.text(), "four");
  EXPECT_TRUE(in.done());
}

// FIPS 180-2, appendix B.1.
TEST(Secret, HashesByTheStandard) {
  EXPECT_EQ(hexadecimal(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hexadecimal(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// Whatever other threads do at the fork: a lock that one of them holds is let go by nobody in the child.
TEST(Secret, AForkAmidOtherThreadsProofsLeavesNoLockBehind) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    const auto prove = [] { hmac_sha256("key", sha256("text") == random_nonce() ? "" : "text"); };
    // relaxed: the flag carries no data. A new thread each time: its first random bytes are the dearest.
    while (!stop.load(std::memory_order_relaxed)) std::thread(prove).join();
  });
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    EXPECT_EQ(test::run_in_child([] {
                ::alarm(10);
                return random_nonce() != hmac_sha256("key", "text") && sha256("text") != random_nonce() ? 0 : 1;
              }),
              0);
  }
  stop.store(true, std::memory_order_relaxed);
  busy.join();
}

}  // namespace
}  // namespace tutti
