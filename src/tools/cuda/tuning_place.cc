// What `tutti tune --device cuda` times: samples in the memory of this machine's GPUs, and groups on them.
#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "communicator/device_entry.h"
#include "device/device.h"
#include "tools/tuning_group.h"
#include "tutti/cuda/communicator.h"
#include "tutti/cuda/report.h"

namespace tutti {
namespace {

class GpuGroup final : public TuningGroup {
 public:
  explicit GpuGroup(std::shared_ptr<CudaCommunicator> made) : made_(std::move(made)), stream_(made_->own_stream()) {}
  void start(const Call& call) override { made_->run(call, stream_); }
  void finish() override { made_->synchronize(stream_); }
  // A plan is the same, compiled or not.
  std::string algorithm() override {
    constexpr std::string_view kCompiled = "+compiled";
    std::string name = only_algorithm(made_->metrics());
    if (name.ends_with(kCompiled)) name.resize(name.size() - kCompiled.size());
    return name;
  }
  void reset() override { made_->reset_metrics(); }

 private:
  const std::shared_ptr<CudaCommunicator> made_;
  const CudaStream stream_;
};

// Ranks take GPUs in turn.
class GpuPlace final : public TuningPlace {
 public:
  GpuPlace(std::shared_ptr<Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size), device_(device_of_kind("cuda")) {
    const CudaReport report = cuda_report();
    devices_ = std::max<int>(1, static_cast<int>(report.devices.size()));
    owner_ = communicator({}, "tune");
  }

  std::shared_ptr<TuningGroup> make_group(const TuningCandidate& candidate, const std::string& name) override {
    return std::make_shared<GpuGroup>(communicator(candidate, name));
  }

  const Call& take(SampleCall& sample) override {
    call_ = sample.call();
    if (call_.collective == Collective::kBarrier) return call_;
    reserve(inputs_, sample.inputs().size());
    reserve(outputs_, sample.outputs().size());
    const auto moved = [&](const Blocks& blocks, std::byte* to) { return Blocks::single(to, blocks.bytes); };
    call_.input = moved(call_.input, inputs_->data(rank_));
    call_.output = moved(call_.output, sample.outputs().empty() ? inputs_->data(rank_) : outputs_->data(rank_));
    return call_;
  }
  void put(const SampleCall& sample) override {
    copy(inputs_, sample.inputs(), true);
    copy(outputs_, sample.outputs(), true);
    // A copy from pageable memory may still be on its way, and calls are on a stream that waits for no other one.
    device_.synchronize_stream(-1, nullptr);
  }
  void fetch(SampleCall& sample) override {
    copy(inputs_, sample.inputs(), false);
    copy(outputs_, sample.outputs(), false);
  }
  std::string gpus() const override { return owner_->gpus(); }

 private:
  std::shared_ptr<CudaCommunicator> communicator(const TuningCandidate& candidate, const std::string& name) {
    CudaOptions options;
    options.timeout = kTuningTimeout;
    options.config = unchoosing_config();
    options.device = rank_ % devices_;
    options.name = name;
    options.config->plan_path = candidate.plan_path;
    options.config->cuda_algorithm = candidate.plan_path.empty() ? candidate.algorithm : "";
    // A table is for calls that go on: what is timed is compiled, where plans are compiled at all.
    if (options.config->cuda_compile == "on") options.config->cuda_compile = "wait";
    return CudaCommunicator::create(store_, name, rank_, size_, options);
  }

  // As much on all ranks, who take the same samples.
  void reserve(std::shared_ptr<CudaMemory>& memory, std::size_t bytes) {
    if (bytes == 0 || (memory != nullptr && memory->bytes() >= bytes)) return;
    memory.reset();
    memory = owner_->allocate("sample" + std::to_string(allocated_++), bytes);
  }
  void copy(const std::shared_ptr<CudaMemory>& memory, std::span<std::byte> here, bool there) {
    if (here.empty()) return;
    std::byte* const far = memory->data(rank_);
    device_.copy(there ? far : here.data(), there ? here.data() : far, here.size());
  }

  const std::shared_ptr<Store> store_;
  const int rank_, size_;
  Device& device_;
  int devices_ = 1;
  std::shared_ptr<CudaCommunicator> owner_;  // of the samples' memory
  std::shared_ptr<CudaMemory> inputs_, outputs_;
  int allocated_ = 0;
  Call call_;
};

}  // namespace

std::unique_ptr<TuningPlace> make_gpu_tuning_place(std::shared_ptr<Store> store, int rank, int size) {
  return std::make_unique<GpuPlace>(std::move(store), rank, size);
}

}  // namespace tutti
