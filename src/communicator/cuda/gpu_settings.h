// What the ranks of a group on GPUs compare while it forms.
#pragma once

#include "algorithm/plan/plan_files.h"
#include "algorithm/tuning/tuned.h"
#include "bootstrap/agreed_settings.h"
#include "tutti/device_options.h"

namespace tutti::cuda {

AgreedSettings gpu_settings(int size, const DeviceOptions& options, const PlanFiles& plans, const Tuning& tuning);

}  // namespace tutti::cuda
