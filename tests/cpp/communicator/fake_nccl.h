// NCCL for ranks that are threads of the test, on a device that is the host: streams are threads that work off what
// they are given, so a call is under way as it is on a GPU. What a rank gives is copied when its stream comes to the
// call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "communicator/nccl/library.h"
#include "communicator/nccl/stream_work.h"

namespace tutti::test {

class HostStream {
 public:
  HostStream() : thread_([this] { work(); }) {}
  ~HostStream() {
    put([this] { over_ = true; });
    thread_.join();
  }
  void put(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

 private:
  void work() {
    while (!over_) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool over_ = false;  // of the thread alone
  std::thread thread_;
};

inline HostStream& stream_of(DeviceStream stream) { return *static_cast<HostStream*>(stream); }

class HostWork final : public StreamWork {
 public:
  int device() const noexcept override { return 0; }
  bool reduces_fp8() const noexcept override { return new_enough; }
  bool is_capturing(DeviceStream) const override { return capturing; }
  Mark mark(DeviceStream stream) override {
    auto passed = std::make_shared<std::atomic<bool>>(false);
    stream_of(stream).put([passed] { passed->store(true); });
    return passed;
  }
  void follow(const Mark& mark, DeviceStream stream) override {
    stream_of(stream).put([passed = std::static_pointer_cast<std::atomic<bool>>(mark)] {
      while (!*passed) std::this_thread::yield();
    });
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes, DeviceStream stream) override {
    stream_of(stream).put([=] { std::memcpy(to, from, bytes); });
  }
  std::shared_ptr<std::byte> memory(std::size_t bytes, DeviceStream stream) override {
    return {new std::byte[bytes]{}, [stream](std::byte* used) { stream_of(stream).put([used] { delete[] used; }); }};
  }
  bool reached(const Mark& mark) noexcept override { return static_cast<std::atomic<bool>*>(mark.get())->load(); }
  DeviceStream own_stream() override { return &own_; }
  void wait(DeviceStream stream) override {
    const Mark here = mark(stream);
    while (!reached(here)) std::this_thread::yield();
  }
  void run(const std::function<void()>& work) override { work(); }

  std::atomic<bool> capturing{false};
  std::atomic<bool> new_enough{true};

 private:
  HostStream own_;
};

}  // namespace tutti::test

struct ncclComm;

namespace tutti::test {

// What the ranks of one communicator share.
struct FakeGroup {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::tuple<int, int>, std::vector<std::byte>> given;               // by the number of the call and rank
  std::map<std::tuple<int, int>, std::deque<std::vector<std::byte>>> mailed;  // by sender and receiver
  int came = 0;
};

// How the library is to fail, for the tests that want it; of the process.
struct FakeFaults {
  std::atomic<int> fails_to_begin{-1};    // this rank's ncclCommInitRank
  std::atomic<int> waits_inside{-1};      // this rank's all-reduces, until they are aborted
  std::atomic<int> refuses{-1};           // this rank's all-reduces
  std::atomic<unsigned> asynchronous{0};  // what ncclCommGetAsyncError says to rank 0
  std::atomic<int> aborts{0}, ends{0};    // how many communicators have ended so
  std::atomic<int> messages{0};           // sends and receives
};
FakeFaults& fake_faults();

// How many groups of calls the calling thread has begun and not ended.
int fake_depth();

// Ends what still waits for ranks that have not begun, and waits for that.
void end_fakes();

// The functions; `problem` and `version` are the test's.
NcclLibrary fake_nccl();

}  // namespace tutti::test
