// Want of memory in the first call of a plan, which makes what runs it.
#include "communicator/no_memory.h"
#include "communicator/plan_calls.h"
#include "executor/executor_plans.h"
#include "executor/host_plans.h"

namespace tutti::test {
namespace {

struct Subject {
  const char* name;
  plan::Plan made;
  const char* layout;
};

class NoMemoryPlans : public RefusedMemory<> {};

TEST_F(NoMemoryPlans, ForTheFirstCall) {
  const Subject subjects[] = {{"two_step", plan::two_step_all_reduce(2), "aa"},
                              {"packets", plan::packet_two_step_all_reduce(2), "aa"},
                              {"ring", plan::hosts_ring_all_reduce({2, 1}), "ab"},
                              {"far_packets", plan::hosts_packet_all_reduce({2, 1}), "ab"}};
  for (const Subject& subject : subjects) {
    SCOPED_TRACE(subject.name);
    PlanFolder folder;
    Scene scene;
    scene.plan_path = folder.add(subject.name, subject.made);
    scene.before = [](const Rank& rank) { return rank.create(); };
    std::vector<std::vector<float>> data(2, std::vector<float>(5000));
    scene.during = [&](const Rank& rank, const Group& group) {
      std::vector<float>& x = data[static_cast<std::size_t>(rank.rank)];
      again(*group, [&] {
        std::ranges::fill(x, static_cast<float>(rank.rank + 1));
        group->run(all_reduce(x));
        return true;
      });
      spare_me();  // what follows is the test's own
      EXPECT_TRUE(std::ranges::all_of(x, [](float value) { return value == 3; })) << "on rank " << rank.rank;
      const bool counted = ran(*group, "plan:" + std::string(subject.name));
      EXPECT_TRUE(counted || Refusal::refused() != 0) << "on rank " << rank.rank;
      return group;
    };
    sweep_all(scene, {subject.layout}, 6);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tutti::test
