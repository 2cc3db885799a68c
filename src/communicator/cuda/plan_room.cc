#include "communicator/cuda/plan_room.h"

#include "channel/cuda/device_world.h"

namespace tutti::cuda {

PlanRoom room_of(int processors, int each, int threads, int sharers, int wanted) {
  const int held = processors * each / sharers;
  if (held <= wanted && held <= kMostPlanBlocks) {
    std::string why = "the GPU has room for " + std::to_string(held) + " of them: " + std::to_string(processors) +
                      " multiprocessors with " + std::to_string(each) + (each == 1 ? " block" : " blocks") + " of " +
                      std::to_string(threads) + " threads each";
    if (sharers > 1) why += ", which " + std::to_string(sharers) + " ranks share";
    return {held, why};
  }
  if (wanted < kMostPlanBlocks) {
    return {wanted,
            "a kernel of this group has at most " + std::to_string(wanted) + " at once (TUTTI_CUDA_MAX_BLOCKS)"};
  }
  return {kMostPlanBlocks, "a kernel has at most " + std::to_string(kMostPlanBlocks) + " at once"};
}

}  // namespace tutti::cuda
