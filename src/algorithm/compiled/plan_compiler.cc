#include "algorithm/compiled/plan_compiler.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "base/registry.h"
#include "base/thread.h"
#include "tutti/error.h"

namespace tutti {

// Of the process. Never destroyed: exit() may come to it at any time.
struct PlanCompiler::Live {
  std::mutex mutex;  // guards `all`; held while they stop, so it comes before theirs
  std::vector<PlanCompiler*> all;
  std::mutex preparing;   // guards `prepared`; comes after theirs
  bool prepared = false;  // exit() stops all
};

PlanCompiler::Live& PlanCompiler::live() {
  static Live* const of_process = new Live;
  return *of_process;
}

void PlanCompiler::stop_all() noexcept {
  if (forked_child()) return;  // it has none of the threads, and the locks may be held for good
  const std::lock_guard lock(live().mutex);
  for (PlanCompiler* compiler : live().all) compiler->stop();
}

PlanCompiler::PlanCompiler(const std::string& folder, std::string architecture, std::string nvrtc)
    : store_(folder), architecture_(std::move(architecture)), nvrtc_path_(std::move(nvrtc)) {
  const std::lock_guard lock(live().mutex);
  live().all.push_back(this);
}

PlanCompiler::~PlanCompiler() {
  if (forked_child()) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  stop();
  // Only now: exit() on another thread waits for the compilation under way as well.
  const std::lock_guard lock(live().mutex);
  std::erase(live().all, this);
}

void PlanCompiler::end() noexcept {
  if (!forked_child()) stop();
}

void PlanCompiler::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  {
    const std::lock_guard lock(joining_);
    if (thread_.joinable()) thread_.join();
  }
  const std::lock_guard lock(mutex_);
  for (const Job& job : jobs_) job.code->fail("the group, or the process, has ended");
  jobs_.clear();
}

std::shared_ptr<const CompiledPlanCode> PlanCompiler::request(std::function<KernelText()> source) {
  auto code = std::make_shared<CompiledPlanCode>();
  const std::lock_guard lock(mutex_);
  if (stop_) {
    code->fail("the group, or the process, has ended");
    return code;
  }
  if (!unusable_.empty()) {
    code->fail(unusable_.c_str());
    return code;
  }
  if (!thread_.joinable()) {
    try {
      prepare();
    } catch (const Error& error) {
      unusable_ = error.what();
      code->fail(error.what());
      return code;
    }
    try {
      thread_ = start_thread("compiled plans", [this] { work(); });
    } catch (const Error& error) {
      unusable_ = error.what();  // not for each call to try anew, and to look for NVRTC
      throw;
    }
  }
  jobs_.push_back({std::move(source), code});
  changed_.notify_all();
  return code;
}

// exit() waits for the thread before statics that were made by now go; NVRTC's later ones stay (lasting_statics.h).
void PlanCompiler::prepare() {
  nvrtc_ = Nvrtc::load(nvrtc_path_);
  const std::lock_guard lock(live().preparing);
  if (live().prepared) return;
  if (std::atexit(stop_all) != 0) throw_error(ErrorKind::kExhausted, "atexit: no room for another handler");
  live().prepared = true;
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
      job.code->fail(error.what());
    }
  }
}

void PlanCompiler::compile(const Job& job) {
  const KernelText source = job.source();
  job.code->workers_ = source.workers;
  job.code->cluster_ = source.cluster;
  const std::string key = KernelStore::key(source.text, architecture_, nvrtc_->identity());
  if (std::optional<std::string> kept = store_.find(key)) {
    job.code->cubin_ = std::move(*kept);
    return;
  }
  job.code->cubin_ = nvrtc_->compile(source.text, architecture_).cubin;
  store_.keep(key, job.code->cubin_);
}

}  // namespace tutti
