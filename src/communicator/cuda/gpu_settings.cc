#include "communicator/cuda/gpu_settings.h"

#include "communicator/group_settings.h"

namespace tutti::cuda {

AgreedSettings gpu_settings(int size, const DeviceOptions& options, const PlanFiles& plans, const Tuning& tuning) {
  return {version_setting(),
          size_setting(size),
          text_setting("DeviceOptions::messages_only", options.messages_only ? "true" : "false"),
          text_setting("TUTTI_CUDA_TRANSPORT", options.config->cuda_transport),
          text_setting("TUTTI_CUDA_ALGORITHM", options.config->cuda_algorithm),
          text_setting("TUTTI_SECRET", options.config->secret.empty() ? "" : "set"),
          given_setting(options.given),
          plan_setting(options.config->plan_path, plans.identity),
          tuning_setting(tuning.path, tuning.identity)};
}

}  // namespace tutti::cuda
