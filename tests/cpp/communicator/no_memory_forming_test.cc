// Want of memory while a group is made, split or shrunk.
#include "communicator/group_bootstrap.h"
#include "communicator/no_memory.h"
#include "communicator/subgroup.h"
#include "tutti/group_id.h"

namespace tutti::test {
namespace {

TEST(NoMemoryForming, OfAGroupFromAStore) {
  Scene scene;
  scene.during = [](const Rank& rank, const Group&) { return rank.create(); };
  sweep_all(scene, {"aa", "ab", "aab"}, 20);
}

TEST(NoMemoryForming, OfASplit) {
  Scene scene;
  scene.before = [](const Rank& rank) { return rank.create(); };
  const std::string name = "a part whose name takes memory";
  scene.during = [&](const Rank& rank, const Group& parent) {
    return again(*parent, [&] { return split_group(*parent, 0, rank.rank, name); });
  };
  sweep_all(scene, {"aa", "ab"}, 10);
}

TEST(NoMemoryForming, OfASubgroup) {
  Scene scene;
  scene.before = [](const Rank& rank) { return rank.create(); };
  const std::vector<std::vector<int>> all{{}, {}, all_ranks(2), all_ranks(3)};
  scene.during = [&](const Rank& rank, const Group& parent) {
    return form_in(*parent, all[rank.layout.size()], "part", [&] { return rank.options(); });
  };
  sweep_all(scene, {"aa", "ab", "aab"}, 10);
}

TEST(NoMemoryForming, OfAShrink) {
  Scene scene;
  scene.before = [](const Rank& rank) { return rank.create(); };
  scene.during = [](const Rank& rank, const Group& parent) {
    return parent->shrink(rank.store, "smaller", {}, nullptr);
  };
  sweep_all(scene, {"aa", "ab"}, 20);
}

}  // namespace
}  // namespace tutti::test
