#include "tools/tuning_group.h"

#include <utility>

#include "tutti/communicator.h"
#include "tutti/error.h"

namespace tutti {
namespace {

class HostGroup final : public TuningGroup {
 public:
  explicit HostGroup(std::shared_ptr<Communicator> made) : made_(std::move(made)) {}
  void start(const Call& call) override { made_->run(call); }
  void finish() override {}
  std::string algorithm() override { return only_algorithm(made_->metrics()); }
  void reset() override { made_->reset_metrics(); }

 private:
  const std::shared_ptr<Communicator> made_;
};

class HostPlace final : public TuningPlace {
 public:
  HostPlace(std::shared_ptr<Store> store, int rank, int size) : store_(std::move(store)), rank_(rank), size_(size) {}

  std::shared_ptr<TuningGroup> make_group(const TuningCandidate& candidate, const std::string& name) override {
    CommunicatorOptions options;
    options.timeout = kTuningTimeout;
    options.config = unchoosing_config();
    options.config.plan_path = candidate.plan_path;
    options.config.algorithm = candidate.plan_path.empty() ? candidate.algorithm : "";
    options.name = name;
    return std::make_shared<HostGroup>(Communicator::create(*store_, name, rank_, size_, options));
  }
  const Call& take(SampleCall& sample) override { return sample.call(); }
  void put(const SampleCall&) override {}
  void fetch(SampleCall&) override {}
  std::string gpus() const override { return {}; }

 private:
  const std::shared_ptr<Store> store_;
  const int rank_, size_;
};

}  // namespace

Config unchoosing_config() {
  Config config = config_from_environment();
  config.tuning_path = "none";
  config.local_world_size = 0;
  config.plan_path.clear();
  config.algorithm.clear();
  config.cuda_algorithm.clear();
  return config;
}

std::string only_algorithm(const Metrics& metrics) {
  return metrics.rows.empty() ? std::string() : metrics.rows.front().algorithm;
}

std::unique_ptr<TuningPlace> make_tuning_place(const std::string& device, std::shared_ptr<Store> store, int rank,
                                               int size) {
  if (device == "cpu") return std::make_unique<HostPlace>(std::move(store), rank, size);
  if (device == "cuda") return make_gpu_tuning_place(std::move(store), rank, size);
  throw_error(ErrorKind::kInvalidArgument, "a device to tune is cpu or cuda, not " + device);
}

}  // namespace tutti
