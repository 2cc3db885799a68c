#include "nccl/background.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "base/registry.h"
#include "base/thread.h"
#include "nccl/error_codes.h"

namespace tutti::nccl {
namespace {

constexpr std::chrono::seconds kGrace{2};

struct Task {
  std::function<void()> end;
  bool over = false;
  std::thread thread;
};

// Never destroyed: exit() may come to it at any time.
struct Background {
  std::mutex mutex;  // guards what follows; abort() of a communicator, which takes leaves only, is called under it
  std::condition_variable changed;
  std::list<Task> tasks;
  bool stops_at_exit = false;
  // relaxed throughout: it is looked at again and again, and nothing else is read by it.
  std::atomic<bool> ending{false};
};
Background& background() {
  static Background* const of_process = new Background;
  return *of_process;
}

void stop() noexcept {
  if (forked_child()) return;
  Background& all = background();
  std::unique_lock lock(all.mutex);
  all.ending.store(true, std::memory_order_relaxed);
  const auto over = [&] { return std::ranges::all_of(all.tasks, &Task::over); };
  if (!all.changed.wait_for(lock, kGrace, over)) {
    for (const Task& task : all.tasks) {
      if (!task.over && task.end) task.end();
    }
    all.changed.wait_for(lock, kGrace, over);
  }
  for (Task& task : all.tasks) task.over ? task.thread.join() : task.thread.detach();
}

void run(std::list<Task>::iterator task, std::function<void()>& work) noexcept {
  quietly(work);
  work = {};
  Background& all = background();
  const std::lock_guard lock(all.mutex);
  task->over = true;
  all.changed.notify_all();  // under the lock: the task may be gone behind it
}

}  // namespace

bool in_background(std::function<void()> work, std::function<void()> end) noexcept try {
  Background& all = background();
  const std::lock_guard lock(all.mutex);
  if (process_ends()) return false;
  // Behind CUDA's own handler, since NCCL has used it by now: so exit() comes here first.
  if (!all.stops_at_exit) all.stops_at_exit = std::atexit(stop) == 0;
  if (!all.stops_at_exit) return false;
  std::erase_if(all.tasks, [](Task& task) { return task.over ? task.thread.join(), true : false; });
  const auto task = all.tasks.insert(all.tasks.end(), Task{std::move(end), false, {}});
  try {
    task->thread =
        start_thread("that forms or ends a group", [task, work = std::move(work)]() mutable { run(task, work); });
  } catch (...) {
    all.tasks.erase(task);
    throw;
  }
  return true;
} catch (const std::exception&) {
  return false;
}

bool process_ends() noexcept { return background().ending.load(std::memory_order_relaxed); }

}  // namespace tutti::nccl
