// What the face of span_face.h promises. Compiled with the public headers alone, as somebody else's program would be.
#include "span_face.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <thread>

namespace {

void run_ranks(int size, const std::function<void(span_face::Team&, int rank)>& body) {
  const tutti::GroupId id = tutti::make_group_id({}, "localhost");
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      span_face::Team team(id, r, size);
      body(team, r);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(SpanFace, SumsSpans) {
  run_ranks(3, [](span_face::Team& team, int rank) {
    std::vector<double> data{1, 2, static_cast<double>(rank)};
    team.sum(std::span(data));
    EXPECT_EQ(data, (std::vector<double>{3, 6, 3}));
  });
}

// The caller lets go of its vector while the other rank has not even begun.
TEST(SpanFace, MemoryLivesUntilTheWorkIsDone) {
  std::promise<void> dropped;
  run_ranks(2, [&](span_face::Team& team, int rank) {
    auto data = std::make_shared<std::vector<float>>(100'000, 1.0F);
    const std::weak_ptr<std::vector<float>> watched = data;
    if (rank == 1) dropped.get_future().wait();
    const tutti::WorkPtr work = team.start_sum(data);
    const auto held = rank == 1 ? data : nullptr;
    data.reset();
    EXPECT_FALSE(watched.expired());
    if (rank == 0) dropped.set_value();
    work->wait();
    if (held == nullptr) return;
    EXPECT_EQ(*held, std::vector<float>(100'000, 2.0F));
  });
}

TEST(SpanFace, ErrorsAreTheStandardLibrarys) {
  EXPECT_THROW(span_face::Team(tutti::make_group_id({}, "localhost"), 5, 2), std::invalid_argument);
}

}  // namespace
