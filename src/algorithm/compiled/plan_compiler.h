// Compiles plans beside the calls that want them: on a thread of its own, one after another. What is on disk is not
// compiled again.
//
// Thread rule: request() and end() from any thread; a CompiledPlanCode may be looked at by any thread. end(), and the
// destructor, wait for the compilation under way, a matter of seconds, and leave out the others; so does the end of the
// process, which takes NVRTC's state away.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "algorithm/compiled/kernel_store.h"
#include "algorithm/compiled/nvrtc.h"

namespace tutti {

// One kernel's source, and the threads that it counts on.
struct KernelText {
  std::string text;
  int workers = 0;  // lanes of a block of the GPU, without the control warp
  int cluster = 1;  // such blocks that run a thread block of a plan together
};

// What becomes of one request. The rest counts once state() is what it says.
class CompiledPlanCode {
 public:
  enum class State { kPending, kReady, kFailed };
  // acquire: pairs with the release in set().
  State state() const noexcept { return state_.load(std::memory_order_acquire); }
  const std::string& cubin() const noexcept { return cubin_; }  // kReady
  int workers() const noexcept { return workers_; }             // kReady: as of KernelText
  int cluster() const noexcept { return cluster_; }             // likewise
  const std::string& why() const noexcept { return why_; }      // kFailed

 private:
  friend class PlanCompiler;
  void fail(const char* why) {
    why_ = why;
    set(State::kFailed);
  }
  void set(State state) noexcept {
    // release: publishes the members; pairs with the acquire in state().
    state_.store(state, std::memory_order_release);
    state_.notify_all();
  }

  std::atomic<State> state_{State::kPending};
  std::string cubin_, why_;
  int workers_ = 0;
  int cluster_ = 1;
};

class PlanCompiler {
 public:
  // `folder`: as of KernelStore. `nvrtc`: as of Nvrtc::load(). The compiler is looked for at the first request.
  PlanCompiler(const std::string& folder, std::string architecture, std::string nvrtc);
  ~PlanCompiler();
  PlanCompiler(const PlanCompiler&) = delete;
  PlanCompiler& operator=(const PlanCompiler&) = delete;

  // `source` is called on the compiler's thread. What it throws is the request's failure. Throws Exhausted if no thread
  // can be started; what is requested after that fails. So does a request behind end(), or at the end of the process.
  std::shared_ptr<const CompiledPlanCode> request(std::function<KernelText()> source);
  // What has not been begun fails.
  void end() noexcept;
  // Waits for it on this thread.
  static void wait(const CompiledPlanCode& code) noexcept;

 private:
  struct Job {
    std::function<KernelText()> source;
    std::shared_ptr<CompiledPlanCode> code;
  };
  struct Live;
  static Live& live();
  // What exit() calls.
  static void stop_all() noexcept;
  void stop() noexcept;
  void prepare();
  void work();
  void compile(const Job& job);

  const KernelStore store_;
  const std::string architecture_, nvrtc_path_;
  std::optional<Nvrtc> nvrtc_;  // set before the thread starts, const then
  std::mutex joining_;          // held while the thread is joined: by one that ends, or by exit(); before mutex_
  std::mutex mutex_;            // guards what follows
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool stop_ = false;
  std::string unusable_;  // why no thread could be started with a compiler
  std::thread thread_;    // from the first request on, until it is stopped, and then also guarded by joining_
};

}  // namespace tutti
