// Groups whose calls on GPUs are NCCL's, with ranks that are threads, and NCCL and a device of fake_nccl.h's.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/exchange.h"
#include "bootstrap/memory_store.h"
#include "communicator/fake_nccl.h"
#include "communicator/nccl/nccl_communicator.h"

namespace tutti::test {

struct Rank {
  int rank, size;
  std::shared_ptr<HostWork> work;
  std::shared_ptr<NcclCommunicator> group;

  // Has run a call, and waited for it.
  void run(const Call& call) const {
    group->run(call, work->own_stream(), {});
    group->synchronize(work->own_stream());
  }
};

class Groups {
 public:
  explicit Groups(int size) : size_(size) {
    // As long as the process, as the real one: threads that were left inside it come back when they do.
    static auto* const libraries = new std::deque<NcclLibrary>;
    for (int r = 0; r < size; ++r) libraries_.push_back(&libraries->emplace_back(fake_nccl()));
    fake_faults().fails_to_begin = fake_faults().waits_inside = fake_faults().refuses = -1;
    fake_faults().asynchronous = 0;
    fake_faults().aborts = fake_faults().ends = fake_faults().messages = 0;
  }
  ~Groups() { end_fakes(); }
  NcclLibrary& library(int rank) { return *libraries_[static_cast<std::size_t>(rank)]; }
  std::chrono::milliseconds timeout{20'000};
  bool messages_only = false;
  std::function<BootstrapPtr(BootstrapPtr)> wrap = [](BootstrapPtr real) { return real; };

  // What each rank has thrown; empty: nothing.
  std::vector<std::string> errors(const std::function<void(Rank&)>& body) {
    MemoryStore memory;
    const std::shared_ptr<Store> store(std::shared_ptr<void>(), &memory);
    std::vector<std::string> said(static_cast<std::size_t>(size_));
    std::vector<std::thread> threads;
    for (int r = 0; r < size_; ++r) {
      threads.emplace_back([&, r] {
        try {
          const BootstrapPtr bootstrap = wrap(store_bootstrap(store, "over NCCL", r, size_));
          DeviceOptions options;
          options.name = "far";
          options.timeout = timeout;
          options.messages_only = messages_only;
          Rank rank{r, size_, std::make_shared<HostWork>(), nullptr};
          rank.group = telling(*bootstrap, [&] {
            return std::make_shared<NcclCommunicator>(bootstrap, options, rank.work, library(r), "it has two hosts");
          });
          body(rank);
        } catch (const std::exception& error) {
          said[static_cast<std::size_t>(r)] = error.what();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return said;
  }
  void run(const std::function<void(Rank&)>& body) {
    for (const std::string& error : errors(body)) EXPECT_EQ(error, "");
  }

 private:
  const int size_;
  std::vector<NcclLibrary*> libraries_;  // by rank
};

inline Call call_of(Collective collective, std::size_t count, int root = -1) {
  Call call;
  call.collective = collective;
  call.dtype = DataType::kFloat32;
  call.count = count;
  call.root = root;
  return call;
}

}  // namespace tutti::test
