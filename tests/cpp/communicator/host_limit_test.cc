// As many ranks of one machine as can share its memory, and one more.
#include <gtest/gtest.h>

#include "bootstrap/exchange.h"
#include "bootstrap/forwarding_store.h"
#include "bootstrap/host_protocol.h"
#include "channel/host_segment.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

// Rank 0 finds there that all others are of its machine, and say of themselves what it does.
class Crowd final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    const std::string own = below_.get(keys.front(), timeout);
    std::optional<HostCard> card = decode_card(own);
    std::vector<std::string> values;
    for (std::size_t r = 0; r < keys.size(); ++r) {
      if (card) card->rank = static_cast<int>(r);
      values.push_back(card ? encode(*card) : own);
    }
    return values;
  }
};

Error formed(int size) {
  MemoryStore memory;
  Crowd store(memory);
  CommunicatorOptions options;
  options.config.log_level = "error";
  options.timeout = std::chrono::milliseconds(300);  // those others never come
  return error_of([&] { Communicator::create(store, "crowd", 0, size, options); });
}

TEST(HostLimit, OneRankMoreThanFitIsRefused) {
  const Error error = formed(kMaxHostRanks + 1);
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
  EXPECT_NE(std::string(error.what())
                .find("1025 of its ranks are on one host (rank 0 is the first), and at most 1024 can share a host's "
                      "memory. Give them several names by TUTTI_HOST_ID"),
            std::string::npos)
      << error.what();
}

TEST(HostLimit, AsManyAsFitAreWaitedFor) {
  const Error error = formed(kMaxHostRanks);
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
  EXPECT_NE(std::string(error.what()).find("did not reach rank 0 of the same host"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace tutti::test
