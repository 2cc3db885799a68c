#include "channel/cuda/gpu_agreement.h"

#include <algorithm>
#include <utility>

#include "bootstrap/exchange.h"
#include "tutti/error.h"

namespace tutti::cuda {

GpuAgreement agree_on_gpus(Bootstrap& bootstrap, const GpuCard& own, std::chrono::milliseconds timeout) {
  ByteWriter mine;
  write_settings(mine, own.settings);
  mine.u32(static_cast<std::uint32_t>(own.max_blocks)).text(own.model);
  GpuAgreement agreed;
  std::vector<AgreedSettings> settings;
  for (const std::string& text : bootstrap.all_gather(kCudaTopic, mine.str(), timeout)) {
    ByteReader in(text);
    settings.push_back(read_settings(in));
    const int wanted = static_cast<int>(in.u32());
    agreed.models.emplace_back(in.text());
    if (!in.done()) settings.back().clear();  // of another version
    if (wanted > 0) agreed.max_blocks = agreed.max_blocks > 0 ? std::min(agreed.max_blocks, wanted) : wanted;
  }
  agreed.differences = compare_settings(bootstrap.id(), settings);
  return agreed;
}

}  // namespace tutti::cuda
