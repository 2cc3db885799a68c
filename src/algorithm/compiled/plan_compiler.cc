#include "algorithm/compiled/plan_compiler.h"

#include <utility>

#include "base/thread.h"
#include "tutti/error.h"

namespace tutti {

PlanCompiler::PlanCompiler(const std::string& folder, std::string architecture, std::string nvrtc)
    : store_(folder), architecture_(std::move(architecture)), nvrtc_path_(std::move(nvrtc)) {}

PlanCompiler::~PlanCompiler() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const Job& job : jobs_) {
    job.code->why_ = "the group has ended";
    job.code->set(CompiledPlanCode::State::kFailed);
  }
}

std::shared_ptr<const CompiledPlanCode> PlanCompiler::request(std::function<KernelText()> source) {
  auto code = std::make_shared<CompiledPlanCode>();
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = start_thread("compiled plans", [this] { work(); });
  jobs_.push_back({std::move(source), code});
  changed_.notify_all();
  return code;
}

void PlanCompiler::wait(const CompiledPlanCode& code) noexcept {
  code.state_.wait(CompiledPlanCode::State::kPending, std::memory_order_acquire);
}

void PlanCompiler::work() {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (stop_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    try {
      compile(job);
      job.code->set(CompiledPlanCode::State::kReady);
    } catch (const std::exception& error) {
      job.code->why_ = error.what();
      job.code->set(CompiledPlanCode::State::kFailed);
    }
  }
}

void PlanCompiler::compile(const Job& job) {
  if (!nvrtc_) nvrtc_ = Nvrtc::load(nvrtc_path_);
  const KernelText source = job.source();
  job.code->workers_ = source.workers;
  const std::string key = KernelStore::key(source.text, architecture_, nvrtc_->version());
  if (std::optional<std::string> kept = store_.find(key)) {
    job.code->cubin_ = std::move(*kept);
    return;
  }
  job.code->cubin_ = nvrtc_->compile(source.text, architecture_).cubin;
  store_.keep(key, job.code->cubin_);
}

}  // namespace tutti
