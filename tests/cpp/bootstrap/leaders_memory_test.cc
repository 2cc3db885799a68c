// What a leader hands out as shared memory, tried by a leader of the test's own: who maps it must not be killed by it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mapping.h"
#include "bootstrap/exchange.h"
#include "bootstrap/host_group_requests.h"
#include "bootstrap/host_protocol.h"
#include "bootstrap/limits.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"
#include "net/local_socket.h"

namespace tutti {
namespace {

using test::request_of;

// Rank 0, which says that `segment` has 8192 bytes. Whether rank 1 has mapped it.
bool lead(Store& store, const UniqueFd& segment) {
  const HostGroupRequest request = request_of(0, 2, "here");
  const HostCard own{"chosen:here", "tutti-" + random_secret().substr(0, 32), random_nonce(), 8192, {}, {}, 0, {}};
  const UniqueFd listener = listen_local(own.socket_name);
  std::vector<HostCard> cards;
  for (const std::string& blob : exchange(store, request.id, kHostTopic, 0, 2, encode(own), kLong)) {
    cards.push_back(*decode_card(blob));
  }
  Deadline deadline = Deadline::after(kLong);
  const HostContext context{store, request, cards, {0, 1}, 0, deadline, request.secret, true};
  const HostPair pair(context, 1);
  UniqueFd member;
  EXPECT_TRUE(test::soon([&] { return static_cast<bool>(member = accept_local(listener.get()).socket); }));
  LocalMessage message;
  const auto hears = [&] {
    pollfd fd{member.get(), POLLIN, 0};
    return ::poll(&fd, 1, 20'000) == 1 && receive_message(member.get(), message) == SocketStatus::kOk;
  };
  EXPECT_TRUE(hears());
  const std::optional<HostEntry> entry = pair.read_hello(message.bytes);
  EXPECT_TRUE(entry);
  HostWelcome welcome{0, 1, 8192, random_nonce(), {own_entry(request), entry.value_or(HostEntry{})}};
  for (HostEntry& each : welcome.entries) each.has_arena = each.has_pidfd = false;
  const std::array<int, 1> fds{segment.get()};
  EXPECT_EQ(send_message(member.get(), pair.welcome(welcome), fds), SocketStatus::kOk);
  const bool mapped = hears() && pair.read_ack(message.bytes, welcome.challenge);
  HostVerdict verdict;
  verdict.ranks = mapped ? std::vector{0, 1} : std::vector{0};
  store.set(verdict_key(request.id, 0), encode(verdict));
  if (mapped) send_message(member.get(), pair.verdict(verdict), {});
  return mapped;
}

HostGroup joined(const UniqueFd& segment, bool accepted) {
  MemoryStore store;
  HostGroup group;
  const auto errors = test::run_threads(2, [&](int rank) {
    if (rank == 0) EXPECT_EQ(lead(store, segment), accepted);
    if (rank == 1) group = form_host_group(store, request_of(1, 2, "here"));
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  return group;
}

UniqueFd memory_of(std::size_t bytes, int seals) {
  UniqueFd memory(::memfd_create("a segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(memory.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(memory.get(), F_ADD_SEALS, seals), 0);
  return memory;
}

TEST(LeadersMemory, WhatCannotShrinkIsTaken) {
  for (const int seals : {F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_SEAL}) {
    EXPECT_EQ(joined(memory_of(8192, seals), true).members.size(), 2U);
  }
  EXPECT_EQ(joined(create_memfd("a segment", 8192), true).members.size(), 2U) << "as a leader makes it";
}

// Its leader could cut it off under the ranks that map it: a signal would end them.
TEST(LeadersMemory, WhatMayShrinkIsRefusedAndSaidSo) {
  for (const int seals : {0, F_SEAL_GROW, F_SEAL_SEAL}) {
    const HostGroup group = joined(memory_of(8192, seals), false);
    EXPECT_EQ(test::ranks_of(group), std::vector{1});
    EXPECT_FALSE(group.segment);
    EXPECT_NE(group.alone_because.find("the memory that rank 0 offers could shrink"), std::string::npos)
        << group.alone_because;
  }
}

TEST(LeadersMemory, WhatIsSmallerThanItSaysIsRefusedAndSaidSo) {
  const HostGroup group = joined(memory_of(8191, F_SEAL_SHRINK), false);
  EXPECT_EQ(test::ranks_of(group), std::vector{1});
  EXPECT_NE(group.alone_because.find("or is smaller than it says"), std::string::npos) << group.alone_because;
}

// What cannot be sealed at all.
TEST(LeadersMemory, AFileIsRefused) {
  char name[] = "/tmp/tutti-segment-XXXXXX";
  const UniqueFd file(::mkostemp(name, O_CLOEXEC));
  ASSERT_TRUE(file);
  ::unlink(name);
  ASSERT_EQ(::ftruncate(file.get(), 8192), 0);
  EXPECT_EQ(test::ranks_of(joined(file, false)), std::vector{1});
}

}  // namespace
}  // namespace tutti
